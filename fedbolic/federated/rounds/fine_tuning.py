"""Fine-tuning at the clients, scored and then discarded."""

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.aggregator import Gather
from fedbolic.federated.aggregators.update import AggregatedUpdate, StackedUpdates, Update
from fedbolic.federated.batched.joint import joint
from fedbolic.federated.batched.stacked_scores import scores_of_stack
from fedbolic.federated.contract.wrapping_method import DelegatedSteps
from fedbolic.federated.scores.score import score


@dataclass(frozen=True)
class FineTuningPhase(DelegatedSteps):
    """The local training of another method; its result is scored at the client and not sent.

    Args:
        method: Method with the epochs and step size of the fine-tuning.
    """

    aggregator = Gather()

    @override
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        scores = score(self.method, local, context, client)
        return Update({}, weight=float(client.size), metrics=scores), {}

    @override
    def template(self, message: Tree) -> Tree:
        return {}

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        return None

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        return server_state

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        return {}


@joint(FineTuningPhase.finish)
def _scores_of_all(
    method: FineTuningPhase, local: Tree, clients: Sequence[Client], context: Tree, *, axes: Tree
) -> StackedUpdates:
    scores = scores_of_stack(method.method, local, clients, context, axes=axes)
    return StackedUpdates({}, {}, [float(client.size) for client in clients], scores)
