"""FlatLand: every client in a Lorentz space of its own curvature, what is flat shared.

A round, in the words of the paper's Algorithm 1: every client maps its graph into its own Lorentz
space and trains; the server averages the parameters of the space coordinates; those of the time
coordinate and the curvature stay.
"""

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedbolic import check, tree
from fedbolic.data import HOLDOUT, Client, Examples, Graph, GraphSplit, Split
from fedbolic.federated.aggregate import Aggregator, Mean
from fedbolic.federated.method import Total, Update
from fedbolic.federated.ragged import Ragged
from fedbolic.federated.score import score_values
from fedbolic.federated.sharing import Sharing, assemble, check_sharing, kinds, pick
from fedbolic.federated.stepped import Schedule, Stepped
from fedbolic.manifolds import Curvature, Lorentz
from fedbolic.nn.model import Model
from fedbolic.optim import SGD, Adam
from fedbolic.rng import Rng
from fedbolic.types import Meta, Params, Tree
from flatland.blocks import block
from flatland.model import GraphNetwork, LorentzGCN, drawn_in
from flatland.ricci import BOUNDS, Estimator, FormanInverse

CURVATURE = "curvature.raw"
"""The name of the curvature among the parameters, as the raw number of ``Curvature``."""

SHARING: Sharing = {"*.time": "personal", "curvature.*": "personal", "*": "shared"}
"""What is FlatLand's own: the time coordinate and the curvature stay."""


@dataclass(frozen=True)
class FlatLand(Stepped):
    r"""Graph networks of clients that share the space coordinates and keep the time coordinate.

    .. math::
        \min_{\theta_s, \theta_1, \dots, \theta_C} \sum_c f_c(\theta_s, \theta_c)
        + \tfrac{\mu}{2} \| \theta_{s,c} - \theta_s \|^2, \qquad
        \theta_s \leftarrow \sum_c w_c \, \theta_{s,c}

    Other methods are rows of the ``sharing`` table: ``{"*": personal}`` is local training,
    ``{"*": shared}`` FedAvg (with ``LorentzGCN``, the ablation without decoupling), ``{"head.*":
    personal, "*": shared}`` FedPer; with ``network`` ``GCN`` they are Euclidean. Without tailored
    spaces is ``curvature`` ``Constant()`` and ``{"*.time": personal, "curvature.*": fixed, "*":
    shared}``. A ``fixed`` curvature is that of the client's own graph. A shared curvature is
    averaged as c. Variants of ours are the networks of ``flatland.frames``; Shrink, which is
    ``shrink`` above 0; and what it becomes as that grows, LorShare: only the curvature personal.

    Departs from the paper: the time row v is left out, as it has no effect there; the curvature
    begins at :math:`c = -\mathrm{Ric}`; hidden biases are shared; the optimiser's moments stay at
    the client between rounds, as in FED-PUB's code.

    Args:
        network: From a graph to logits.
        rounds: Communication rounds.
        schedule: Local epochs; a step sees the whole graph whatever the batch size.
        lr: Local step size, above 0.
        optimizer: The local optimiser, without a weight decay of its own; a client's goes on where
            its last round ended.
        weight_decay: Added, times the parameter, to the gradient; 0 or more. Not of the curvature.
        sharing: From name patterns to ``shared``, ``personal`` or ``fixed``; first match wins.
        curvature: What a client's curvature begins with.
        curvature_rate: The curvature's step size over ``lr``, above 0.
        proximal: The :math:`\mu` of FedProx, at least 0; the paper's :math:`\lambda` is half of it.
            Without effect where a round is one step.
        shrink: The same pull, at least 0, of personal parameters to their mean over clients, which
            is sent then; the curvature is not pulled. 0 sends nothing.
        weights: Clients count by ``size`` (training nodes) or ``uniform``.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Liu et al. (2024), Algorithm 1, FedKDD; Baek et al. (2023), arXiv:2206.10206.

    Example:
        >>> FlatLand(proximal=0.01).schedule.epochs
        3
    """

    network: GraphNetwork = LorentzGCN()
    rounds: int = 100
    schedule: Schedule = Schedule(epochs=3, batch_size=None)
    lr: float = 0.01
    optimizer: Adam | SGD = Adam()
    weight_decay: float = 1e-5
    sharing: Sharing = field(default_factory=lambda: dict(SHARING))
    curvature: Estimator = FormanInverse()
    curvature_rate: float = 1.0
    proximal: float = 0.0
    shrink: float = 0.0
    weights: Literal["size", "uniform"] = "size"

    def __post_init__(self) -> None:
        check.at_least(1, rounds=self.rounds)
        check.positive(lr=self.lr, curvature_rate=self.curvature_rate)
        check.not_negative(
            proximal=self.proximal, shrink=self.shrink, weight_decay=self.weight_decay
        )
        check_sharing(self.sharing)

    @property
    @override
    def aggregator(self) -> Aggregator:
        return Mean()

    @override
    def model(self, meta: Meta) -> Model:
        return _model(self.network, meta)

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        seed = rng.at("model").number()
        parameters, _ = self.model(meta).init(seed)
        state = {
            "parameters": pick(parameters, self.sharing, "shared"),
            "buffers": {},
            "seed": seed,
        }
        if self.shrink:
            state["means"] = pick(parameters, self.sharing, "personal")
            state["means"].pop(CURVATURE, None)
        return state

    @override
    def start(self, message: Tree, client: Client, memory: Tree) -> tuple[Tree, Tree]:
        local, context = self._received(message, client, memory)
        optimizer = memory.get("optimizer") or self._begin(local["parameters"])
        return {**local, "optimizer": optimizer}, context

    def _received(self, message: Tree, client: Client, memory: Tree) -> tuple[Tree, Tree]:
        """What :meth:`start` gives, but for the optimiser's state."""
        if not isinstance(client.train, GraphSplit):
            raise ValueError("FlatLand learns from graphs: use the source fedbolic.data.Graphs")
        means = message.get("means", {})  # where a client's own begin
        sent = {**message, "parameters": {**means, **message["parameters"]}}
        values = assemble(self.model(client.meta), self.sharing, sent, memory, client)
        trained, fixed = values.trained, values.fixed
        graph = client.train.graph
        if CURVATURE in fixed:
            fixed = {**fixed, CURVATURE: self._raw(graph, fixed[CURVATURE])}
        elif CURVATURE in trained and CURVATURE not in {
            **message["parameters"],
            **memory.get("parameters", {}),
        }:
            trained = {**trained, CURVATURE: self._raw(graph, trained[CURVATURE])}
        local = {"parameters": trained, "buffers": values.buffers}
        own = {"fixed": fixed, "graph": Ragged((graph,), (len(graph),))}
        shared = {"anchor": message["parameters"], "means": means}
        return local, {"shared": shared, "own": own}

    @override
    def examples(self, client: Client) -> Split:
        if not isinstance(client.train, GraphSplit):
            return client.train
        nodes = client.train.nodes
        return Examples({"y": client.train.graph.labels[nodes], "node": nodes})

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        logits, buffers = _forward(model, parameters, buffers, context, training=True)
        return cross_entropy(logits[0, batch["node"]], batch["y"], reduction="none"), buffers

    @override
    def stacked_loss(
        self,
        model: Model,
        parameters: Params,
        buffers: Params,
        batch: Params,
        context: Tree,
        *,
        axes: tuple[Tree, Tree],
    ) -> tuple[Tensor, Params]:
        num_clients = len(batch["y"])
        fixed = {  # what all clients have in common
            name: value.expand(num_clients, *value.shape) if axis is None else value
            for (name, value), axis in zip(
                context["own"]["fixed"].items(), axes[1]["own"]["fixed"].values(), strict=True
            )
        }
        context = {**context, "own": {**context["own"], "fixed": fixed}}
        logits, buffers = _forward(model, parameters, buffers, context, training=True)
        rows = logits.gather(1, batch["node"].unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
        losses = cross_entropy(rows.flatten(0, 1), batch["y"].flatten(), reduction="none")
        return losses.view_as(batch["y"]), buffers

    @override
    def stacked_step(self, local: Tree, gradients: Params, context: Tree, *, axes: Tree) -> Tree:
        return self.step(local, gradients, context)

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        parameters = local["parameters"]
        for strength, to in ((self.proximal, "anchor"), (self.shrink, "means")):
            goals = context["shared"][to] if strength else {}
            pulls = {n: parameters[n] - goals[n] for n in goals if n in gradients}
            pulled = {n: x.mul_(strength).add_(gradients[n]) for n, x in pulls.items()}
            gradients = {**gradients, **pulled}
        moved, states = {}, {}
        for kind, group in _groups(parameters).items():
            decay, rate = (
                (self.weight_decay, 1.0) if kind == "weights" else (0.0, self.curvature_rate)
            )
            optimizer = dataclasses.replace(self.optimizer, weight_decay=decay)
            some = {n: gradients[n] for n in group}
            stepped, states[kind] = optimizer.step(
                group, some, local["optimizer"][kind], lr=self.lr * rate, donate=True
            )
            moved |= stepped
        return {**local, "parameters": moved, "optimizer": states}

    @override
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        scores = self._scores(local, client, context)
        anchor, parameters = context["shared"]["anchor"], local["parameters"]
        before, after = ({n: _public(n, x[n]) for n in anchor} for x in (anchor, parameters))
        memory = {
            "parameters": pick(parameters, self.sharing, "personal"),
            "optimizer": local["optimizer"],
        }
        metrics = {f"local/{name}": value for name, value in scores.items()}
        known = {**parameters, **context["own"]["fixed"]}
        if CURVATURE in known:
            c = _public(CURVATURE, known[CURVATURE])
            norms = block(context["own"]["graph"].parts).norms
            metrics["train/curvature"] = float(c)
            metrics["train/drawn_in"] = drawn_in(Lorentz(c), norms)
        weight = float(client.size) if self.weights == "size" else 1.0
        payload = {"change": tree.subtract(after, before)}
        if self.shrink:
            means = context["shared"]["means"]
            payload["means"] = {n: parameters[n] - mean for n, mean in means.items()}
        return Update(payload, weight, metrics), memory

    @override
    def template(self, message: Tree) -> Tree:
        means = {"means": message["means"]} if self.shrink else {}
        return {"change": message["parameters"], **means}

    @override
    def server_update(self, state: Tree, total: Total) -> Tree:
        change = total.payload["change"]
        parameters = {
            name: _raw_of(name, _public(name, value) + change[name])
            for name, value in state["parameters"].items()
        }
        state = {**state, "parameters": parameters}
        if self.shrink:
            state["means"] = tree.add(state["means"], total.payload["means"])
        return state

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        logits, _ = _forward(model, local["parameters"], local["buffers"], context)
        return logits[0, batch["node"]]

    @override
    def evaluate(self, message: Tree, client: Client, memory: Tree, rng: Rng) -> dict[str, float]:
        if client.id == HOLDOUT and not self._is_global(client.meta):
            return {}  # there is no global model
        local, context = self._received(message, client, memory)
        return self._scores(local, client, context)

    @override
    def tuning(self, epochs: int, lr: float | None) -> "FlatLand | None":
        if "shared" not in self.sharing.values():
            return None  # already trained on nothing but the client's own data
        schedule = dataclasses.replace(self.schedule, epochs=epochs)
        return dataclasses.replace(self, schedule=schedule, lr=lr or self.lr)

    @property
    @override
    def calibrating(self) -> "FlatLand | None":
        return None  # a head in closed form would read features that mix the clients' spaces

    def _is_global(self, meta: Meta) -> bool:
        parameters, _ = self.model(meta).init(0)
        return "personal" not in kinds(self.sharing, parameters).values()

    def _raw(self, graph: Graph, like: Tensor) -> Tensor:
        """The raw number of the curvature that a client's graph asks for."""
        c = torch.as_tensor(self.curvature.c(graph), dtype=torch.float64)
        return _CURVATURE.raw_of(c).to(like)

    def _begin(self, parameters: Params) -> Tree:
        return {kind: self.optimizer.init(group) for kind, group in _groups(parameters).items()}

    def _scores(self, local: Tree, client: Client, context: Tree) -> dict[str, float]:
        """Scores of ``local``, from one pass over the client's graph."""
        if not len(client.validation) + len(client.test):
            return {}
        model = self.model(client.meta)
        with torch.no_grad():
            logits, _ = _forward(model, local["parameters"], local["buffers"], context)
        scores = {}
        for name in ("validation", "test"):
            split = getattr(client, name)
            if len(split):
                found = score_values(logits[0, split.nodes], split.graph.labels[split.nodes])
                scores |= {f"{name}/{metric}": value for metric, value in found.items()}
        return scores


_CURVATURE = Curvature(1.0, bounds=BOUNDS, learnable=False)
"""What turns raw numbers into curvatures and back."""


@functools.cache
def _model(network: GraphNetwork, meta: Meta) -> Model:
    return Model(lambda: network.build(meta))


def _forward(
    model: Model, parameters: Params, buffers: Params, context: Tree, *, training: bool = False
) -> tuple[Tensor, Params]:
    """Logits of all nodes of one client's graph, or of many clients' side by side."""
    own = context["own"]
    graphs = block(own["graph"].parts)
    return model({**parameters, **own["fixed"]}, buffers, graphs, training=training)


def _groups(parameters: Params) -> dict[str, Params]:
    """The curvature, which has a step size of its own, and everything else."""
    groups: dict[str, Params] = {"weights": {}, "curvature": {}}
    for name, value in parameters.items():
        groups["curvature" if name == CURVATURE else "weights"][name] = value
    return groups


def _public(name: str, value: Tensor) -> Tensor:
    """A parameter as it is averaged: the curvature as c."""
    return _CURVATURE.c_of(value) if name == CURVATURE else value


def _raw_of(name: str, value: Tensor) -> Tensor:
    """A parameter as it is trained: undoes :func:`_public`."""
    return _CURVATURE.raw_of(value) if name == CURVATURE else value
