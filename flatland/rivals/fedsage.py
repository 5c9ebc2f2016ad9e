"""FedSage+: generators of missing neighbours, trained across clients, then federated averaging."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data import Client
from fedbolic.federated.contract.jagged import Jagged
from fedbolic.federated.contract.method import Method
from flatland.graphs.blocks import GraphBlock
from flatland.graphs.graph_method import GraphMethod
from flatland.graphs.model import GCN
from flatland.rivals.mending import mended
from flatland.rivals.neighbour_exchanges import CrossGradients, GeneratorTraining
from flatland.rivals.neighbours import NeighbourGenerator


@dataclass(frozen=True)
class FedSagePlus(GraphMethod):
    r"""Federated averaging on graphs mended with generated neighbours.

    Before the first round every client trains a generator of missing neighbours on its own graph,
    of which it hides some nodes:

    .. math::
        L = \lambda_d L_d + \lambda_f L_f + \lambda_c L_c, \qquad
        L_f = \frac1n \sum_v \Bigl( \sum_p \min_{u \in \text{hidden}(v)} \| \tilde x_v^p - x_u \|^2
        + \alpha \sum_{j \ne i} \sum_p \min_{u \in V_j} \| \tilde x_v^p - x_u \|^2 \Bigr)

    with the smooth L1 distance of the numbers of neighbours and the cross-entropy of a classifier
    on the mended graph. The second part of :math:`L_f` needs the features of other clients: a
    client sends its feature layer and noisy embeddings of some nodes, every other client returns
    the gradient of its part, and the server hands the sum back. Then each client mends its whole
    graph once, and the classifier is trained by federated averaging.

    A training round of the generators is one exchange for local steps and one for gradients, which
    are added to those of the next local step; no round of the run passes. Without such rounds no
    neighbour is generated: FedSage, that is FedAvg. Generated neighbours stay at their client, and
    the server's own test set is scored without them.

    Departs from the paper: graph convolutions take the place of GraphSage, as for all Euclidean
    rows of FlatLand's table; :func:`~flatland.rivals.mending.feature_loss` says which vectors count
    in the
    first part of :math:`L_f`; in the second, ``num_codes`` random nodes with all P vectors stand
    for all nodes; the classifier of :math:`L_c` has no dropout.

    Args:
        network: Euclidean graph network.
        rounds: Communication rounds of the classifier, at least 1.
        lr: Local step size of the classifier, above 0.
        optimizer: Local optimiser, without weight decay.
        weight_decay: Coefficient of L2 regularisation in the gradient, at least 0; not applied to
            the generators.
        generator: Generator of neighbours and its training.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Zhang et al. (2021), Sec. 4.3 and Algorithm 1 of the supplement, arXiv:2106.13430.

    Example:
        >>> FedSagePlus(generator=NeighbourGenerator(rounds=3)).num_stages
        5
    """

    network: GCN = GCN()
    generator: NeighbourGenerator = field(default_factory=NeighbourGenerator)

    unsent = "generators", "gradients"

    @property
    def num_stages(self) -> int:
        """Number of exchanges before the first round."""
        rounds = self.generator.rounds
        # nobody waits for gradients after the last local steps
        return max(2 * rounds - 1, 0) if self.generator.cross_weight else rounds

    @override
    def phase(self, server_state: Tree) -> Method:
        stage = server_state["stage"]
        if stage == self.num_stages:
            return self
        settings = (self.generator, self.network, self.optimizer)
        if self.generator.cross_weight and stage % 2:
            return CrossGradients(*settings)
        return GeneratorTraining(*settings, is_last=stage == self.num_stages - 1)

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        logger.info("FedSage+ adds noise that no ledger counts: it claims no epsilon")
        server_state = super().init(meta, rng)
        return {**server_state, "stage": 0, "generators": {}, "gradients": {}}

    @override
    def received(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        local, context = super().received(message, client, client_state)
        (graph,) = context["own"]["graph"].parts
        neighbours = client_state.get("neighbours") or {
            "features": client.no_inputs.clone(),
            "owner": graph.labels[:0].clone(),
        }
        graph = mended(graph, neighbours)
        own = {
            **context["own"],
            "graph": Jagged((graph,), (len(graph),), GraphBlock),
            "neighbours": Jagged((neighbours,), (0,)),
        }
        return local, {**context, "own": own}

    @override
    def additions(
        self, local: Tree, clients: Sequence[Client], context: Tree
    ) -> tuple[Params, Tree]:
        """Generated neighbours, which a client keeps."""
        return {}, {"neighbours": context["own"]["neighbours"]}
