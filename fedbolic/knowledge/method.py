"""Federated knowledge graphs: clients hold triples and share tables of entities and relations.

A round: the server sends the tables; every client trains the rows of the entities and relations in
its triples; each row is averaged over the clients that hold it. Tables may stay at the clients.
"""

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.pair_keys import contains_pair
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import HOLDOUT, Client
from fedbolic.data.knowledge.triple_split import TripleSplit
from fedbolic.federated.aggregators.update import Update
from fedbolic.federated.contract.gradient_method import BatchPlan, LocalTraining
from fedbolic.federated.contract.table_method import TableMethod
from fedbolic.knowledge.ranking import TailScores, tail_rank_scores
from fedbolic.knowledge.triple_scorer import TripleScorer
from fedbolic.knowledge.triple_scores import Biases, ScoreName, TripleScore
from fedbolic.nn.loss.burn_in import BurnInSchedule
from fedbolic.nn.loss.negatives import NegativeSampler
from fedbolic.nn.loss.pair_loss import RankingLoss
from fedbolic.nn.network.model import Model
from fedbolic.optim import SGD, Adam

TableName: TypeAlias = Literal["entity", "relation", "curvature"]
"""Names of the tables."""


@dataclass(frozen=True)
class KnowledgeEmbedding(TableMethod):
    r"""Common tables of a knowledge graph, learnt from triples that stay at their clients.

    .. math::
        \min \sum_k \sum_{(h, r, t) \in T_k} \frac{\ell(h, r, t) + \ell(t, r^{-1}, h)}{2}, \qquad
        \ell(h, r, t) = -\log \frac{e^{s(h, r, t)}}{\sum_{e \in N} e^{s(h, r, e)}}, \qquad
        W_i \leftarrow W_i + \frac{\sum_k c_{ki} (w_{ki} - W_i)}{\sum_k c_{ki}}

    The scores :math:`s` are those of :class:`~fedbolic.knowledge.TripleScore`, and every relation
    has an inverse with a row of its own, so heads are ranked as tails. The sum goes over all
    entities (1-N), or over t and negatives that are uniform among all entities but those that the
    client :math:`k` knows to be true. Client :math:`k` moves the rows of the entities and relations
    in its triples :math:`T_k`, and sends these rows alone; :math:`c_{ki}` of its triples, at most
    ``max_weight``, contain i. Rows hold tangents at the origin, which may be averaged.

    A table that is ``personal`` stays at its clients, where it begins as the server's. With
    ``relation`` and ``curvature`` this is FedE for ``max_weight`` 1, with ``entity`` FedR, and with
    all three every client trains alone. With ``curvature`` alone, every client has its own
    curvature of each relation around common tangents.

    The numbers of the rows say which entities a client holds, and a mean of each row divides by how
    many clients hold it, so this cannot be made private; under a secure sum a client sends whole
    tables with their weights. With ``sends`` as ``table`` a payload is the change of whole tables,
    one vector in the tangent space at the origin, which ``privacy`` and
    :class:`~fedbolic.federated.DistributedNoise` clip as one. The server adds ``server_lr`` times
    the mean over all clients, in which those that do not hold a row count as a change of 0.

    Args:
        score: Name of the score.
        dim: Dimensions of the space, at least 1, without the biases of an entity.
        bias: Biases of an entity. That of the head changes no ranking and, with these losses, no
            training.
        rounds: Communication rounds, at least 1.
        local: Local epochs and batch size.
        lr: Local step size, above 0, at the schedule's multiplier of 1.
        optimizer: Local optimiser, without weight decay.
        optimizer_state: ``personal``: every client keeps its own between rounds; ``reset``: every
            round starts with a new state.
        schedule: Multiplier of the step size by round.
        negatives: Draws of negative tails, at least 1; ``None`` for all entities.
        n3: Weight of :meth:`TripleScore.cubes <fedbolic.knowledge.TripleScore.cubes>` of a triple
            and of its inverse, 0 or more.
        max_weight: Largest weight of a client in the mean of a row, at least 1; unused for tables.
        sends: Part of the tables that a client sends: the ``rows`` that it holds, or the ``table``.
        server_lr: Step size of the server along the aggregated change, above 0. For tables, about
            the number of clients over the number of those that hold a row.
        personal: Tables that stay at the clients.

    Raises:
        ValueError: If a value is out of range.

    References:
        Chami et al. (2020), arXiv:2005.00545, for the scores; Lacroix et al. (2018),
        arXiv:1806.07297, for inverse relations, the 1-N loss and ``n3``; Chen et al. (2021), FedE,
        arXiv:2010.12882; Zhang et al. (2022), FedR, arXiv:2203.09553.

    Example:
        >>> from fedbolic.data import PartitionedTriples
        >>> from fedbolic.federated import Trainer
        >>> method = KnowledgeEmbedding(dim=4, rounds=1)
        >>> *_, (state, rows) = Trainer().run(method, PartitionedTriples().load(Rng(0)), Rng(0))
        >>> {name: tuple(x.shape) for name, x in state.server_state["parameters"].items()}
        {'entity': (62, 5), 'relation': (6, 6), 'curvature': (6, 1)}
    """

    score: ScoreName = "RotH"
    dim: int = 30
    bias: Biases = "tail"
    rounds: int = 25
    local: LocalTraining = LocalTraining(epochs=2, batch_size=128)
    lr: float = 0.01
    optimizer: Adam | SGD = Adam()
    optimizer_state: Literal["personal", "reset"] = "personal"
    schedule: BurnInSchedule = field(default_factory=lambda: BurnInSchedule(share=0.0))
    negatives: NegativeSampler | None = field(default_factory=lambda: NegativeSampler(50))
    n3: float = 0.0
    max_weight: int = 10
    sends: Literal["rows", "table"] = "rows"
    server_lr: float = 1.0
    personal: tuple[TableName, ...] = ()

    learns_from = TripleSplit

    def __post_init__(self) -> None:
        _ = self.scorer  # checks its settings
        self.check_settings(self.negatives)
        check.not_negative(n3=self.n3)
        for name in self.personal:
            check.one_of(get_args(TableName), personal=name)
        if self.optimizer.weight_decay:
            raise ValueError(
                "weight_decay would move the rows that a client does not hold: use n3, which is of "
                "the rows in a triple"
            )

    @property
    def scorer(self) -> TripleScore:
        """Score of triples."""
        return TripleScore(self.score, self.dim, self.bias)

    @property
    @override
    def kept(self) -> tuple[str, ...]:
        names = ("entity", "relation", "curvature")
        learnt = names if self.scorer.parts.curvature == "learnt" else names[:2]
        return tuple(name for name in learnt if name in self.personal)

    @override
    def model(self, meta: Meta) -> Model:
        return _model(self.scorer, meta.num_classes, 2 * meta.input_shape[1])

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        before = message["parameters"]
        parameters = {**before, **client_state.get("own", {})}
        held = client.split_of(TripleSplit)
        relations = held.relation_counts
        counts = {"entity": held.entity_counts, "relation": torch.cat((relations, relations))}
        if "curvature" in before:
            counts["curvature"] = counts["relation"]
        dtype = before["entity"].dtype
        local, rate = self.begun(message, client_state, parameters)
        weights = {name: n.clamp(max=self.max_weight).to(dtype) for name, n in counts.items()}
        known = (counts["entity"] > 0).to(dtype).unsqueeze(-1)
        own = {"weights": weights, "known": known}
        return local, {"shared": {"before": before, "rate": rate}, "own": own}

    @override
    def plan(self, model: Model, client: Client, rng: Rng) -> BatchPlan:
        plan = super().plan(model, client, rng)
        if self.negatives is None:
            return plan
        held, n = client.split_of(TripleSplit), client.meta.num_classes
        shape = (*plan.positions.shape, 2)  # tails, and heads as tails of the inverse relation
        drawn = self.negatives.draw(shape, n, generator=rng.at("negatives").generator())
        triples = held.triples[plan.positions.to(held.triples.device)]
        heads, relations, _ = _both_ways(triples, len(held.relations))
        keys, drawn = held.tail_keys, drawn.to(triples.device)
        first = (relations * n + heads).unsqueeze(-1)
        unknown = ~contains_pair(keys, first, drawn, num_nodes=n)
        return dataclasses.replace(plan, draws={"negatives": drawn, "unknown": unknown})

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        scorer, entity = self.scorer, parameters["entity"]
        heads, relations, tails = _both_ways(batch["x"], len(parameters["relation"]) // 2)
        # the head's bias cancels in the losses, and its rounding would move it in Adam
        query = scorer.query_of(parameters, heads, relations)._replace(bias=None)
        if self.negatives is None:
            found = scorer.scores(query, entity)
            right = found.gather(-1, tails.unsqueeze(-1)).squeeze(-1)
            losses = found.logsumexp(-1) - right
        else:
            negatives, unknown = (batch[x][: len(heads)] for x in ("negatives", "unknown"))
            drawn = torch.cat((tails.unsqueeze(-1), negatives), -1)
            gaps = -scorer.scores(query, functional.embedding(drawn, entity))
            losses = RankingLoss()(gaps[..., 0], gaps[..., 1:], mask=unknown)
        if self.n3:
            both = torch.stack((heads, relations, tails), -1)
            losses = losses + self.n3 * scorer.cubes(parameters, both)
        return losses.mean(-1), buffers

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        # the rows of entities that the client does not hold stay where the server has them
        known = {"entity": gradients["entity"] * context["own"]["known"]}
        return super().step(local, {**gradients, **known}, context)

    @override
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        tables, weights = local["parameters"], context["own"]["weights"]
        after = {n: x[weights[n] > 0] for n, x in tables.items() if n not in self.kept}
        state = self.next_state(local)
        if self.kept:
            state["own"] = {name: tables[name] for name in self.kept}
        return self.sent(context["shared"]["before"], after, weights), state

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        heads, relations, _ = batch["x"].unbind(-1)
        return self._tail_scores(local["parameters"])(heads, relations)

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        found = self.triple_tables(message, client, client_state)
        if found is None:
            return {}  # there is no global model
        scores = self._tail_scores({name: x.double() for name, x in found["tables"].items()})
        found = {}
        for split in ("validation", "test"):
            named = tail_rank_scores(scores, client.split_of(TripleSplit, split))
            found |= {f"{split}/{name}": value for name, value in named.items()}
        return found

    @override
    def triple_tables(self, message: Tree, client: Client, client_state: Tree) -> Tree | None:
        if client.id == HOLDOUT and self.kept:
            return None
        tables = {**message["parameters"], **client_state.get("own", {})}
        return {"score": dataclasses.asdict(self.scorer), "tables": tables}

    def _tail_scores(self, tables: Params) -> TailScores:
        scorer = self.scorer
        return lambda heads, relations: scorer.scores(
            scorer.query_of(tables, heads, relations), tables["entity"]
        )


def _both_ways(triples: Tensor, num_relations: int) -> tuple[Tensor, Tensor, Tensor]:
    """Heads, relations and tails of triples and of their inverses, along a new last axis."""
    head, relation, tail = triples.unbind(-1)
    return (
        torch.stack((head, tail), -1),
        torch.stack((relation, relation + num_relations), -1),
        torch.stack((tail, head), -1),
    )


@functools.cache
def _model(score: TripleScore, num_entities: int, num_relations: int) -> Model:
    return Model(lambda: TripleScorer(score, num_entities, num_relations))
