"""The least-squares head of frozen features, from one exchange of exact sums."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from typing_extensions import override

from fedbolic.data.client import Client
from fedbolic.federated.aggregate import Aggregator, Sum
from fedbolic.federated.calibrated import solve, sums
from fedbolic.federated.method import Cohort, Method, Total, Update
from fedbolic.federated.stepped import Stepped
from fedbolic.rng import Rng
from fedbolic.types import Meta, Tree


@dataclass(frozen=True)
class Calibration(Method):
    """One exchange over all clients that solves for the head of a trained classifier.

    The :func:`~fedbolic.federated.calibrated.sums` are those of all data in one place, so the head
    is too.

    Args:
        inner: The method whose model is calibrated.
        head: The name of the head's weights, one row per class.
        ridge: As in :func:`~fedbolic.federated.calibrated.solve`.
    """

    inner: Stepped
    head: str
    ridge: float

    @property
    def rounds(self) -> int:  # type: ignore[override]  # a field of the others
        """The inner method's."""
        return self.inner.rounds

    @property
    @override
    def aggregator(self) -> Aggregator:
        return Sum()

    @property
    @override
    def cohort(self) -> Cohort:
        return "all"

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return self.inner.init(meta, rng)

    @override
    def admit(self, state: Tree, sizes: Sequence[int]) -> Tree:
        return self.inner.admit(state, sizes)

    @override
    def broadcast(self, state: Tree, client_id: int) -> Tree:
        return self.inner.broadcast(state, client_id)

    @override
    def local_update(
        self, message: Tree, client: Client, memory: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        payload = sums(self.inner, message, client, memory)
        return Update(payload, weight=float(client.size)), memory

    @override
    def template(self, message: Tree) -> Tree:
        num_classes, width = message["parameters"][self.head].shape
        zeros = torch.zeros(width, width + num_classes, dtype=torch.float64)
        return {"gram": zeros[:, :width], "cross": zeros[:, width:]}

    @override
    def server_update(self, state: Tree, total: Total) -> Tree:
        weight = solve(total.payload, self.ridge).T
        old = state["parameters"][self.head]
        parameters = {**state["parameters"], self.head: weight.to(old.dtype)}
        return {**state, "parameters": parameters}

    @override
    def evaluate(self, message: Tree, client: Client, memory: Tree, rng: Rng) -> dict[str, float]:
        return self.inner.evaluate(message, client, memory, rng)
