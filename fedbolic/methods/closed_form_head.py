"""The ridge-regression head of frozen features, computed in one exchange."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from typing_extensions import override

from fedbolic.data.client import Client
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.mean import Sum
from fedbolic.federated.evaluation.ridge_head import ridge_sums, solve_ridge
from fedbolic.federated.gradient_method import GradientMethod
from fedbolic.federated.method import CohortKind, Method
from fedbolic.federated.update import AggregatedUpdate, Update
from fedbolic.rng import Rng
from fedbolic.types import Meta, Tree


@dataclass(frozen=True)
class ClosedFormHead(Method):
    """One exchange over all clients that solves for the head of a trained classifier.

    The clients' :func:`~fedbolic.federated.evaluation.ridge_head.ridge_sums` add up to those of the
    pooled data, so the head equals the centralized solution.

    Args:
        inner: Method whose model gives the features.
        head: Name of the head's weights, with one row per class.
        ridge: Regularization, as in
            :func:`~fedbolic.federated.evaluation.ridge_head.solve_ridge`.
    """

    inner: GradientMethod
    head: str
    ridge: float

    @property
    def rounds(self) -> int:  # type: ignore[override]  # a field of other methods
        """Number of rounds of the inner method."""
        return self.inner.rounds

    @property
    @override
    def aggregator(self) -> Aggregator:
        return Sum()

    @property
    @override
    def cohort(self) -> CohortKind:
        return "all"

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return self.inner.init(meta, rng)

    @override
    def admit(self, server_state: Tree, sizes: Sequence[int]) -> Tree:
        return self.inner.admit(server_state, sizes)

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        return self.inner.broadcast(server_state, client_id)

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        payload = ridge_sums(self.inner, message, client, client_state)
        return Update(payload, weight=float(client.size)), client_state

    @override
    def template(self, message: Tree) -> Tree:
        num_classes, width = message["parameters"][self.head].shape
        zeros = torch.zeros(width, width + num_classes, dtype=torch.float64)
        return {"gram": zeros[:, :width], "cross": zeros[:, width:]}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        weight = solve_ridge(total.payload, self.ridge).T
        old = server_state["parameters"][self.head]
        parameters = {**server_state["parameters"], self.head: weight.to(old.dtype)}
        return {**server_state, "parameters": parameters}

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        return self.inner.evaluate(message, client, client_state, rng)
