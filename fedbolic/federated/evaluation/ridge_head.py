"""The least-squares head of common features: exact sums over clients, its solution, its scores."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import normalize, one_hot
from typing_extensions import override

from fedbolic import tree
from fedbolic.data.client import Client
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.mean import Sum
from fedbolic.federated.evaluation.score import chunks, score_logits
from fedbolic.federated.gradient_method import GradientMethod
from fedbolic.federated.method import CohortKind, Method
from fedbolic.federated.update import AggregatedUpdate, Update
from fedbolic.rng import Rng
from fedbolic.types import Meta, Params, Tree


def unit_features(
    method: GradientMethod, message: Tree, client: Client, client_state: Tree
) -> Callable[[Params], Float64[Tensor, "n width"]]:
    """The function from a batch to the features of its examples, each of length 1.

    Args:
        method: Whose :meth:`~fedbolic.federated.gradient_method.GradientMethod.features` are taken.
        message: What the client received.
        client: Where the batches are from.
        client_state: What it keeps.
    """
    model = method.model(client.meta)
    local, context = method.start(message, client, client_state)

    def unit(batch: Params) -> Float64[Tensor, "n width"]:
        with torch.no_grad():
            return normalize(method.features(model, local, batch, context).double())

    return unit


def ridge_sums(method: GradientMethod, message: Tree, client: Client, client_state: Tree) -> Tree:
    """A client's ``gram`` Z'Z and ``cross`` Z'Y: all that a least-squares head needs to know.

    Z holds the unit-length features of its training examples, Y their one-hot labels. A client with
    fewer examples than features reveals the span of its features to whoever reads its sums.

    Args:
        method: Gives the features.
        message: What the client received.
        client: Whose training examples are summed.
        client_state: What it keeps.
    """
    unit = unit_features(method, message, client, client_state)

    def products(index: Tensor) -> Tree:
        batch = client.train.at(index)
        z, y = unit(batch), one_hot(batch["y"], client.meta.num_classes).double()
        return {"gram": z.T @ z, "cross": z.T @ y}

    return functools.reduce(tree.add, map(products, chunks(client.size)))


def solve_ridge(total: Tree, ridge: float) -> Float64[Tensor, "width num_classes"]:
    r"""The head of ridge regression without intercept, from the sums of everybody.

    .. math:: W = (Z^T Z + \varepsilon I)^{-1} Z^T Y

    Args:
        total: ``gram`` and ``cross``.
        ridge: Epsilon, as a share of the mean of the diagonal of Z'Z; above 0.

    References:
        Dong et al. (2022), Sec. 3, arXiv:2207.09413.

    Example:
        >>> total = {"gram": torch.eye(2).double(), "cross": torch.tensor([[3.0], [6.0]]).double()}
        >>> solve_ridge(total, ridge=0.5)
        tensor([[2.],
                [4.]], dtype=torch.float64)
    """
    gram, cross = total["gram"], total["cross"]
    mean = gram.diagonal().mean()
    epsilon = ridge * (mean if mean > 0 else 1.0)  # features that are all 0 have the head 0
    return torch.linalg.solve(gram + epsilon * torch.eye(len(gram)).to(gram), cross)


@dataclass(frozen=True)
class RidgeHeadPhase(Method):
    """Another method's features under the least-squares head of all clients' training examples.

    One exchange finds the head; the other method's state is carried along as it is.

    Args:
        inner: Gives the features, which must be common to all clients.
        ridge: As in :func:`solve_ridge`.
    """

    inner: GradientMethod
    ridge: float

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
        return {"inner": self.inner.init(meta, rng)}

    @override
    def admit(self, server_state: Tree, sizes: Sequence[int]) -> Tree:
        return {"inner": self.inner.admit(server_state["inner"], sizes)}

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        return {**server_state, "inner": self.inner.broadcast(server_state["inner"], client_id)}

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        payload = ridge_sums(self.inner, message["inner"], client, client_state)
        return Update(payload, weight=float(client.size)), client_state

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        return {**server_state, "head": solve_ridge(total.payload, self.ridge)}

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        unit = unit_features(self.inner, message["inner"], client, client_state)
        return score_logits(lambda batch: unit(batch) @ message["head"], client)
