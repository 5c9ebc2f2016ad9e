"""Federated embedding of a hierarchy: clients hold pairs, and the table of embeddings is common.

A round: the server sends the table; every client trains the rows of the nodes that it knows,
against negative examples from the whole table; each row is averaged over the clients that know its
node.
"""

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.figure import Figure
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data import HOLDOUT, Client, FederatedData, HierarchySplit
from fedbolic.federated.aggregators.update import Update
from fedbolic.federated.contract.capabilities import NodePlaces
from fedbolic.federated.contract.gradient_method import BatchPlan, LocalTraining
from fedbolic.federated.contract.table_method import TableMethod
from fedbolic.hierarchies.disc import disc
from fedbolic.hierarchies.node_table import TABLE, Bias, NodeTable, Score
from fedbolic.hierarchies.scored_places import places_of
from fedbolic.hierarchies.scores import check_sample, score_distances
from fedbolic.nn.loss.burn_in import BurnInSchedule
from fedbolic.nn.loss.negatives import NegativeSampler
from fedbolic.nn.network.model import Model
from fedbolic.optim import SGD, Adam

FEWEST_ROWS = 8192
"""Least height of a client's table below that of all nodes: shorter ones save little time."""


@dataclass(frozen=True)
class HierarchyEmbedding(TableMethod):
    r"""A common table of hyperbolic embeddings, learnt from pairs that stay at their clients.

    .. math::
        \min_W \sum_k \sum_{(u, v) \in P_k} -\log \frac{e^{-d(u, v)}}
            {e^{-d(u, v)} + \sum_{j \in N(u)} e^{-d(u, j)}}, \qquad
        W_i \leftarrow W_i + \frac{\sum_k c_{ki} (w_{ki} - W_i)}{\sum_k c_{ki}}

    The table :math:`W` holds tangents at the origin of a Lorentz space, and :math:`d` is the
    distance of their exponentials. Client :math:`k` holds the pairs :math:`P_k` of descendants
    and ancestors, and :math:`c_{ki}` of them, at most ``max_weight``, contain node :math:`i`.
    Negative examples :math:`N(u)` are uniform among all nodes; ancestors of :math:`u` in
    :math:`P_k`, and nodes of which nobody knows whether they are ancestors, are left out. A client
    moves only the rows of nodes in its pairs, and sends only these rows and their weights. Under a
    secure sum it sends the whole table.

    A payload holds, under the name of the table, what :class:`~fedbolic.federated.RowMean` adds.
    The numbers of its rows say which nodes a client holds, and a mean of each row divides by how
    many clients hold it, so this cannot be made private. With ``sends`` as ``table`` a payload is
    the change of the whole table, one vector in the tangent space at the origin, where the metric
    is Euclidean: ``privacy`` and :class:`~fedbolic.federated.DistributedNoise` clip it as one, and
    every row has the noise. The
    server adds ``server_lr`` times the mean over all clients, in which clients that do not hold a
    node count as a change of 0.

    With a ``bias``, or products as ``score``, minus the score of a pair stands for :math:`d` (see
    :class:`~fedbolic.hierarchies.node_table.NodeTable`). A bias is one number more in the row of
    its node: it is trained, sent and averaged with the row. So ``dim: 4`` with a bias has as many
    numbers a node as ``dim: 5`` without.

    Args:
        dim: Dimensions of the space, at least 1, without the bias.
        c: Minus the sectional curvature, at least 0; 0 for flat space.
        rounds: Communication rounds, at least 1.
        local: Local epochs and batch size.
        steps: Local steps per round, at least 1, instead of ``local.epochs``: the passes of a
            client with few pairs are repeated, so that all clients take equally many; ``None`` for
            epochs.
        lr: Local step size, above 0, at the schedule's multiplier of 1.
        optimizer: Local optimiser.
        optimizer_state: ``reset``: every round starts with a new state, which is better if clients
            hold branches; ``personal``: every client keeps its own between rounds, which is better
            if pairs are spread at random.
        schedule: Multiplier of the step size by round.
        negatives: Draws of negative examples.
        max_weight: Largest weight of a client in the mean of a row, at least 1; unused for tables.
        sends: Part of the table that a client sends: the ``rows`` of its nodes, or the ``table``.
        server_lr: Step size of the server along the aggregated change, above 0. For tables, about
            the number of clients over the number of those that hold a node.
        personal: Whether every client keeps a personal table and sends nothing, which is local
            training; its negative examples are the client's nodes.
        bias: Nodes of a pair whose learnt bias is added to its score: ``none``, the ``ancestor``,
            or ``both``. The bias of the descendant changes no ranking and no training.
        score: Similarity of two points: minus their ``distance``, or the ``dot`` product of their
            tangents, which needs ``c`` of 0.
        sample: Nodes whose ancestors are ranked, at least 2, drawn at every evaluation; ``None``
            for all. The scores are then estimates with errors: see
            :func:`~fedbolic.hierarchies.scores.ranking_scores`.

    Raises:
        ValueError: If a value is outside its range, a client with a personal table would send
            one, or products are asked for in curved space.

    References:
        Nickel and Kiela (2017), arXiv:1705.08039, for the loss; ``README.md`` in this folder for
        the protocol.

    Example:
        >>> from fedbolic.data import PartitionedHierarchy
        >>> from fedbolic.federated import Trainer
        >>> method = HierarchyEmbedding(dim=2, rounds=1)
        >>> *_, (state, rows) = Trainer().run(method, PartitionedHierarchy().load(Rng(0)), Rng(0))
        >>> state.server_state["parameters"]["weight"].shape
        torch.Size([511, 2])
    """

    dim: int = 5
    c: float = 1.0
    rounds: int = 25
    local: LocalTraining = LocalTraining(epochs=4, batch_size=64)
    steps: int | None = None
    lr: float = 0.1
    optimizer: Adam | SGD = Adam()
    optimizer_state: Literal["personal", "reset"] = "reset"
    schedule: BurnInSchedule = field(default_factory=BurnInSchedule)
    negatives: NegativeSampler = field(default_factory=NegativeSampler)
    max_weight: int = 10
    sends: Literal["rows", "table"] = "rows"
    server_lr: float = 1.0
    personal: bool = False
    bias: Bias = "none"
    score: Score = "distance"
    sample: int | None = None

    learns_from = HierarchySplit

    def __post_init__(self) -> None:
        check_sample(self.sample)
        _ = self.table  # checks its settings
        self.check_settings(self.negatives)
        if self.steps is not None:
            check.at_least(1, steps=self.steps)
        if self.personal and self.sends == "table":
            raise ValueError(
                "personal clients send nothing: set sends to rows, or personal to false"
            )

    @property
    def table(self) -> NodeTable:
        """The rows of nodes and their scores."""
        return NodeTable(self.dim, self.c, self.bias, self.score)

    @override
    def model(self, meta: Meta) -> Model:
        return self.table.model(meta.num_classes)

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        counts = client.split_of(HierarchySplit).node_counts
        nodes = counts.nonzero().flatten()
        table = client_state.get("parameters", message["parameters"])[TABLE]
        height = max(FEWEST_ROWS, 1 << max(0, len(nodes) - 1).bit_length())
        if self.personal or self.optimizer_state == "personal" or height >= len(table):
            at, rows = nodes, table
        else:  # clients of like size have tables of one height
            at = torch.arange(len(nodes), device=nodes.device)
            rows = table[functional.pad(nodes, (0, height - len(nodes)))]
        local, rate = self.begun(message, client_state, {TABLE: rows})
        place = torch.full_like(counts, -1).index_copy(0, nodes, at)
        weights = counts.clamp(max=self.max_weight).to(table.dtype)
        shared = {"table": message["parameters"][TABLE], "rate": rate}
        return local, {"shared": shared, "own": {"weights": weights, "place": place}}

    @override
    def plan(self, model: Model, client: Client, rng: Rng) -> BatchPlan:
        if self.steps is not None:  # as many epochs as this client needs for its steps
            batches = -(-client.size // (self.local.batch_size or client.size))
            local = dataclasses.replace(self.local, epochs=-(-self.steps // batches))
            enough = dataclasses.replace(self, local=local, steps=None)
            return enough.plan(model, client, rng).cut(self.steps)
        plan = super().plan(model, client, rng)
        split, num_nodes = client.split_of(HierarchySplit), client.meta.num_classes
        device = split.hierarchy.pairs.device
        drawn = self.negatives.draw(
            tuple(plan.positions.shape),
            num_nodes,
            generator=rng.at("negatives").generator(),
            # the rows of other nodes would stay where they begin
            candidates=split.node_counts.nonzero().flatten() if self.personal else None,
        ).to(device)
        nodes = split.hierarchy.pairs[plan.positions.to(device), 0]
        # masked here, where the sets of pairs of all clients need not have one length
        mask = self.negatives.mask(nodes, drawn, known=split.hierarchy.keys, num_nodes=num_nodes)
        unrelated = mask & ~split.is_unknown(nodes, drawn)
        return dataclasses.replace(plan, draws={"negatives": drawn, "unrelated": unrelated})

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        negatives = batch["negatives"][: len(batch["x"])]
        unrelated = batch["unrelated"][: len(batch["x"])]
        rows = _rows(torch.cat((batch["x"], negatives), dim=-1), parameters, context)
        return self.table.losses(rows, unrelated), buffers

    @override
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        weights, before = context["own"]["weights"], context["shared"]["table"]
        client_state = self.next_state(local)
        if self.personal:
            client_state["parameters"] = local["parameters"]
            weights = torch.zeros_like(weights)
        rows = context["own"]["place"][weights.nonzero().flatten()]
        after = {TABLE: local["parameters"][TABLE][rows]}
        return self.sent({TABLE: before}, after, {TABLE: weights}), client_state

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        nodes = torch.arange(len(context["shared"]["table"]), device=batch["x"].device)
        embedded = self.table.embed(_rows(nodes, local["parameters"], context))
        return -self.table.gaps(embedded, batch["x"][:, 0])

    @override
    def node_places(self, message: Tree, client: Client, client_state: Tree) -> NodePlaces | None:
        if self.personal and client.id == HOLDOUT:
            return None
        table = client_state.get("parameters", message["parameters"])[TABLE]
        nodes = torch.arange(len(table))
        if self.personal:  # the rows of other nodes are where they began
            nodes = client.split_of(HierarchySplit).node_counts.nonzero().flatten()
        return nodes, places_of(self.table, table.double())[nodes]

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        parameters = client_state.get("parameters", message["parameters"])
        if self.personal and client.id == HOLDOUT:
            return {}  # there is no global model
        table = self.table
        embedded = table.embed(parameters[TABLE])
        return score_distances(
            lambda nodes: partial(table.gaps, embedded[nodes]), client, rng=rng, sample=self.sample
        )

    @override
    def figures(self, server_state: Tree, data: FederatedData) -> dict[str, Figure]:
        if self.dim != 2 or self.personal or not self.c or data.holdout is None:
            return {}
        table = self.table
        points = table.points(table.embed(server_state["parameters"][TABLE]))
        return {
            "tree": disc(points, data.holdout.split_of(HierarchySplit, "test").hierarchy, c=self.c)
        }


def _rows(nodes: Tensor, parameters: Params, context: Tree) -> Tensor:
    """Rows of nodes: those that a client trains, and of all others those of the server."""
    place = context["own"]["place"][nodes]
    own = functional.embedding(place.clamp(min=0), parameters[TABLE])
    others = functional.embedding(nodes, context["shared"]["table"])
    return torch.where((place >= 0).unsqueeze(-1), own, others)
