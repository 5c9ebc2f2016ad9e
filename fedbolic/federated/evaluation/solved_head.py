"""Methods whose server solves for a head in closed form, and the exchange in which it does so."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.mean import Sum
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.method import CohortKind
from fedbolic.federated.contract.wrapping_method import WrappingMethod
from fedbolic.federated.evaluation.ridge_head import BODY, find_impossible_sums, ridge_sums
from fedbolic.federated.updates.update import AggregatedUpdate, Update

WEIGHT = "head.weight"
"""Name of the weight of a head."""


class SolvedHead(GradientMethod):
    """A method whose server solves for a head in a separate :class:`HeadExchange`."""

    ridge: float
    """Regularization, as in :func:`~fedbolic.federated.evaluation.ridge_head.solve_ridge`."""

    @property
    @abstractmethod
    def solves(self) -> bool:
        """True if a run has such an exchange."""

    @property
    def source(self) -> tuple[GradientMethod, str]:
        """Method and name of the layer that give the features; by default its own ``body``."""
        return self, BODY

    def expansion(self, message: Tree) -> Callable[[Tensor], Tensor] | None:
        """Map of the unit-length features to those of the sums; by default there is none."""
        return None

    @abstractmethod
    def sums_form(self, message: Tree) -> Tree:
        """Form of a client's sums, as ``ridge_sums`` returns them."""

    @abstractmethod
    def with_head(self, server_state: Tree, sums: Tree) -> Tree:
        """Server state with the head for the sums over all clients."""


@dataclass(frozen=True)
class HeadExchange(WrappingMethod):
    """One exchange over all clients that solves for the head of a trained classifier.

    The clients' :func:`~fedbolic.federated.evaluation.ridge_head.ridge_sums` add up to those of the
    pooled data, so the head equals the centralized solution.

    Args:
        method: Method whose head is solved for.
        ends_round: Whether a round ends with this exchange.
    """

    method: SolvedHead
    ends_round: bool = True

    @property
    @override
    def aggregator(self) -> Aggregator:
        return Sum()

    @property
    @override
    def cohort(self) -> CohortKind:
        return "all"

    @property
    @override
    def evaluates(self) -> bool:
        return self.ends_round

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return self.method.init(meta, rng)

    @override
    def admit(self, server_state: Tree, sizes: Sequence[int]) -> Tree:
        return self.method.admit(server_state, sizes)

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        return self.method.broadcast(server_state, client_id)

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        method, layer = self.method.source
        given = method, message, client, client_state
        payload = ridge_sums(*given, layer=layer, expand=self.method.expansion(message))
        return Update(payload, weight=float(client.size)), client_state

    @override
    def template(self, message: Tree) -> Tree:
        return self.method.sums_form(message)

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        return find_impossible_sums(payload)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        return self.method.with_head(server_state, total.payload)

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        return self.method.evaluate(message, client, client_state, rng)
