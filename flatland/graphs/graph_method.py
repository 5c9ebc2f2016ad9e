"""Base of methods on graphs, whose clients send the change of shared parameters."""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data import HOLDOUT, Client, Examples, GraphSplit, LinkExamples, Split, WholeGraphs
from fedbolic.data.graphs.link_split import num_non_edges
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update, host_or_scalar
from fedbolic.federated.contract.classifier_method import with_proximal_term
from fedbolic.federated.contract.gradient_method import GradientMethod, LocalTraining
from fedbolic.federated.contract.jagged import Jagged
from fedbolic.federated.contract.sharing import (
    Sharing,
    assemble,
    check_patterns,
    check_sharing,
    kinds,
    select_kind,
)
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.scores.score import all_on_host, score_values
from fedbolic.nn.network.model import Model
from fedbolic.optim import SGD, Adam
from flatland.graphs.blocks import GraphBlock, graph_block
from flatland.graphs.links import LinkNetwork, NonEdges, draw_negatives, link_losses, pair_logits
from flatland.graphs.model import GCN, GraphNetwork
from flatland.graphs.readout import GraphReadout

GRAPH_EXAMPLES = GraphSplit | WholeGraphs | LinkExamples
"""Examples with a ``graph``, ``places`` and ``labels``: nodes, graphs, and pairs of nodes."""


@dataclass(frozen=True)
class GraphMethod(GradientMethod):
    """Base of methods that classify nodes, pairs of nodes or graphs; unchanged, it is FedAvg.

    One optimiser moves all parameters, and its state stays at the client between rounds. A payload
    holds ``delta``; the server adds the weighted mean of the deltas.

    Args:
        network: Graph network from a block of graphs to logits of nodes; a ``GraphReadout`` for
            those of graphs, a ``LinkNetwork`` for those of pairs.
        rounds: Communication rounds, at least 1.
        local: Local epochs; each step uses the whole graph, whatever the batch size.
        lr: Local step size, above 0.
        optimizer: Local optimiser, without weight decay; each client keeps its state between
            rounds.
        weight_decay: Coefficient of L2 regularisation in the gradient, at least 0.
        sharing: Map of name patterns to ``shared``, ``personal`` or ``fixed``; first match wins.
        proximal: Coefficient of the proximal term, at least 0.
        weights: Weight of a client in the mean: ``size`` (training nodes) or ``uniform``.

    Raises:
        ValueError: If a value is outside its range.
    """

    network: GraphNetwork = GCN()
    rounds: int = 100
    local: LocalTraining = LocalTraining(epochs=3, batch_size=None)
    lr: float = 0.01
    optimizer: Adam | SGD = Adam()
    weight_decay: float = 1e-5
    sharing: Sharing = field(default_factory=lambda: {"*": "shared"})
    proximal: float = 0.0
    weights: Literal["size", "uniform"] = "size"

    models: ClassVar[Literal["global", "both"]] = "global"
    """Models that are scored, by which a method declines to be fine-tuned."""

    payload_like: ClassVar[dict[str, str | None]] = {"delta": "parameters"}

    def __post_init__(self) -> None:
        check.at_least(1, rounds=self.rounds)
        check.positive(lr=self.lr)
        check.not_negative(proximal=self.proximal, weight_decay=self.weight_decay)
        check_sharing(self.sharing)
        check.one_of(("size", "uniform"), weights=self.weights)
        if self.optimizer.weight_decay:
            raise ValueError(
                f"the optimizer has a weight decay of {self.optimizer.weight_decay}, which would "
                "also act on the curvature: set weight_decay of the method instead"
            )

    @override
    def model(self, meta: Meta) -> Model:
        return _model(self.network, meta)

    @property
    @override
    def traits(self) -> Traits:
        kind = examples_of(self.network)
        return dataclasses.replace(
            super().traits, learns_from=kind, find_unfit=find_complete, common_features=False
        )

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        steps = self.local.epochs * self.local.repeats
        if self.proximal and steps == 1 and self.local.batch_size is None:
            logger.warning("proximal has no effect: the term is 0 at the round's only local step")
        seed = rng.at("model").number()
        parameters, buffers = self.model(meta).init(seed)
        shared = select_kind(parameters, self.sharing, "shared")
        check_patterns(self.sharing, parameters | buffers)
        return {"parameters": shared, "buffers": {}, "seed": seed}

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        local, context = self.received(message, client, client_state)
        optimizer = client_state.get("optimizer") or self.optimizer.init(local["parameters"])
        return {**local, "optimizer": optimizer}, context

    def received(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        """Result of :meth:`start` without the optimiser's state."""
        if not isinstance(client.train, GRAPH_EXAMPLES):
            raise ValueError(
                f"{type(self).__name__} learns from graphs: use the source fedbolic.data.Graphs"
            )
        if not isinstance(client.train, examples_of(self.network)):
            raise ValueError(
                f"{type(self.network).__name__} cannot learn from {type(client.train).__name__}: "
                "use the source Graphs with a plain network, GraphClassification with a network in "
                "a GraphReadout, or FederatedLinks with a LinkNetwork"
            )
        values = assemble(self.model(client.meta), self.sharing, message, client_state, client)
        graph = client.train.graph
        own = {"fixed": values.fixed, "graph": Jagged((graph,), (len(graph),), GraphBlock)}
        if isinstance(self.network, LinkNetwork):
            own["pairs"] = Jagged((graph,), (len(graph),), NonEdges)
        shared = {"global_parameters": message["parameters"]}
        local = {"parameters": values.trained, "buffers": values.buffers}
        return local, {"shared": shared, "own": own}

    @override
    def examples(self, client: Client) -> Split:
        if not isinstance(client.train, GRAPH_EXAMPLES):
            return client.train
        return Examples({"y": client.train.labels, "node": client.train.places})

    @override
    def draw(self, num_steps: int, batch_size: int, generator: torch.Generator) -> Params:
        if not isinstance(self.network, LinkNetwork):
            return {}
        return {"negative": draw_negatives(num_steps, batch_size, generator)}

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        logits, buffers = forward(model, parameters, buffers, context, training=True)
        if isinstance(self.network, LinkNetwork):
            of_one = {name: batch[name][None] for name in ("node", "negative")}
            graphs = context["own"]["pairs"].parts
            return link_losses(self.network, logits, of_one, graphs)[0], buffers
        return self.losses(logits[0], batch), buffers

    def losses(self, outputs: Tensor, batch: Params) -> Tensor:
        """Loss of every example of a batch, from the outputs of one client; the cross-entropy."""
        return cross_entropy(outputs[batch["node"]], batch["y"], reduction="none")

    def regularised(self, gradients: Params, parameters: Params, context: Tree) -> Params:
        """Gradients of the loss with those of all penalties; by default of the proximal term."""
        goals = context["shared"]["global_parameters"]
        return with_proximal_term(gradients, parameters, goals, self.proximal)

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        parameters = local["parameters"]
        gradients = self.regularised(gradients, parameters, context)
        optimizer = dataclasses.replace(self.optimizer, weight_decay=self.weight_decay)
        moved, state = optimizer.step(
            parameters, gradients, local["optimizer"], lr=self.lr, donate=True
        )
        return {**local, "parameters": moved, "optimizer": state}

    def weight(self, client: Client) -> float:
        """Weight of a client in the aggregate."""
        return float(client.size) if self.weights == "size" else 1.0

    def personal_state(self, local: Tree) -> Tree:
        """Client state after the last step, of one client or of several with a leading axis."""
        personal = select_kind(local["parameters"], self.sharing, "personal")
        return {"parameters": personal, "optimizer": local["optimizer"]}

    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        """``(payload, client_state)`` after the last step, from tensors alone.

        Operations apply to one client and, broadcast, to several with a leading axis.
        """
        before, parameters = context["shared"]["global_parameters"], local["parameters"]
        delta = tree.subtract({name: parameters[name] for name in before}, before)
        return {"delta": delta}, self.personal_state(local)

    def additions(
        self, local: Tree, clients: Sequence[Client], context: Tree
    ) -> tuple[Params, Tree]:
        """Further entries of payloads and of client states; by default empty.

        Args:
            local: ``local`` of one client, or of several with a leading axis.
            clients: The clients.
            context: Context of :meth:`start`, with a leading axis for several clients.

        Returns:
            Both with a leading axis of clients, even for one, as in
            :class:`~fedbolic.federated.aggregators.update.StackedUpdates`.
        """
        del local, clients, context
        return {}, {}

    def measurements(self, local: Tree, context: Tree) -> Params:
        """Further numbers to record; by default empty. Axes as in :meth:`additions`."""
        del local, context
        return {}

    @override
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        payload, client_state = self.outcome(local, context)
        added, kept = map(_of_one, self.additions(local, [client], context))
        payload, client_state = {**payload, **added}, {**client_state, **kept}
        scores = self.scores(local, client, context)
        metrics: dict[str, float | Tensor] = {f"local/{n}": value for n, value in scores.items()}
        measured = self.measurements(local, context)
        metrics |= {name: host_or_scalar(of_one[0]) for name, of_one in measured.items()}
        return Update(payload, self.weight(client), metrics), client_state

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        parameters = tree.add(server_state["parameters"], total.payload["delta"])
        return {**server_state, "parameters": parameters}

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        outputs, _ = forward(model, local["parameters"], local["buffers"], context)
        return logits_at(self.network, outputs[0], batch["node"])

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        held = self.scored(message, client, client_state)
        if held is None:
            return {}
        return all_on_host([self.scores(held[0], client, held[1])])[0]

    def scores(self, local: Tree, client: Client, context: Tree) -> dict[str, float | Tensor]:
        """Validation and test scores of ``local``, from one pass over the client's graph.

        On an accelerator some of them stay there, as tensors without axes.
        """
        if not len(client.validation) + len(client.test):
            return {}
        model = self.model(client.meta)
        with torch.no_grad():
            outputs, _ = forward(model, local["parameters"], local["buffers"], context)
        scores: dict[str, float | Tensor] = {}
        for name in ("validation", "test"):
            split = getattr(client, name)
            if len(split):
                logits = logits_at(self.network, outputs[0], split.places)
                found = score_values(logits, split.labels)
                scores |= {f"{name}/{metric}": value for metric, value in found.items()}
        return scores

    @override
    def scored(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree] | None:
        if client.id == HOLDOUT and not self._is_global(client.meta):
            return None
        return self.received(message, client, client_state)

    @override
    def fine_tuning(self, epochs: int, lr: float | None) -> "GraphMethod | None":
        if self.models != "global" or "shared" not in self.sharing.values():
            return None  # every client is scored with its own model already
        local = dataclasses.replace(self.local, epochs=epochs)
        return dataclasses.replace(self, local=local, lr=lr or self.lr)

    def _is_global(self, meta: Meta) -> bool:
        parameters, _ = self.model(meta).init(0)
        return "personal" not in kinds(self.sharing, parameters).values()


def examples_of(network: GraphNetwork) -> type[GraphSplit | WholeGraphs | LinkExamples]:
    """Kind of examples that a network learns from."""
    if isinstance(network, GraphReadout):
        return WholeGraphs
    return LinkExamples if isinstance(network, LinkNetwork) else GraphSplit


def find_complete(split: Split) -> str | None:
    """Fault of training edges without a possible negative; ``None`` if they have one.

    Args:
        split: Training examples of a client.
    """
    if isinstance(split, LinkExamples) and len(split) and not num_non_edges(split.graph):
        return "every pair of its nodes is a training edge, so none can be a negative"
    return None


def logits_at(network: GraphNetwork, outputs: Tensor, places: Tensor) -> Tensor:
    """Logits of the examples of one client.

    Args:
        network: The network that gave the outputs.
        outputs: Output of the network for one client.
        places: Number of the node or graph of every example, or both nodes of every pair.
    """
    if isinstance(network, LinkNetwork):
        return pair_logits(network, outputs, places)
    return outputs[places]


@functools.cache
def _model(network: GraphNetwork, meta: Meta) -> Model:
    return Model(lambda: network.build(meta))


def _of_one(values: Tree) -> Tree:
    """Values of a single client, without the axis of clients."""

    def leaf_of_one(x: Any) -> Any:
        if isinstance(x, Jagged):
            return x.parts[0]
        return x[0] if isinstance(x, Tensor) else x

    return tree.map(leaf_of_one, values)


def forward(
    model: Model, parameters: Params, buffers: Params, context: Tree, *, training: bool = False
) -> tuple[Tensor, Params]:
    """Outputs and buffers of the network, for one client or for a block of clients.

    Args:
        model: Architecture of the network.
        parameters: Trained parameters.
        buffers: Buffers.
        context: Context of :meth:`GraphMethod.start`.
        training: Whether the pass is part of a local step.
    """
    own = context["own"]
    graphs = graph_block(own["graph"].parts)
    return model({**parameters, **own["fixed"]}, buffers, graphs, training=training)
