"""Base class of graph methods whose clients send the change of shared parameters."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from typing_extensions import override

from fedbolic import check, tree
from fedbolic.data import Client
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.mean import Mean
from fedbolic.federated.sharing import select_kind
from fedbolic.federated.update import AggregatedUpdate, Update
from fedbolic.types import Params, Tree
from flatland.graph_method import GraphMethod, with_proximal_term


@dataclass(frozen=True)
class GraphAveraging(GraphMethod):
    """Base of graph methods with one optimiser for all parameters; unchanged, it is FedAvg.

    Weight decay acts on every parameter, and the optimiser's state stays at the client between
    rounds. A payload holds ``delta``; the server adds the weighted mean of the deltas.

    Args:
        network: Graph network from a block of graphs to logits.
        rounds: Communication rounds, at least 1.
        local: Local epochs; each step uses the whole graph, whatever the batch size.
        lr: Local step size, above 0.
        optimizer: Local optimiser, without weight decay.
        weight_decay: Coefficient of L2 regularisation in the gradient, at least 0.
        sharing: Map of name patterns to ``shared``, ``personal`` or ``fixed``; first match wins.
        proximal: Coefficient of the proximal term, at least 0.
        weights: Weight of a client in the mean: ``size`` (training nodes) or ``uniform``.

    Raises:
        ValueError: If a value is outside its range.
    """

    weights: Literal["size", "uniform"] = "size"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.one_of(("size", "uniform"), weights=self.weights)

    @property
    @override
    def aggregator(self) -> Aggregator:
        return Mean()

    @override
    def begin_optimizer(self, parameters: Params) -> Tree:
        return self.optimizer.init(parameters)

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        parameters = local["parameters"]
        goals = context["shared"]["global_parameters"]
        gradients = with_proximal_term(gradients, parameters, goals, self.proximal)
        optimizer = dataclasses.replace(self.optimizer, weight_decay=self.weight_decay)
        moved, state = optimizer.step(
            parameters, gradients, local["optimizer"], lr=self.lr, donate=True
        )
        return {**local, "parameters": moved, "optimizer": state}

    @override
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        before, parameters = context["shared"]["global_parameters"], local["parameters"]
        client_state = {
            "parameters": select_kind(parameters, self.sharing, "personal"),
            "optimizer": local["optimizer"],
        }
        scores = self.scores(local, client, context)
        metrics: dict[str, float | Tensor] = {f"local/{n}": value for n, value in scores.items()}
        delta = tree.subtract({name: parameters[name] for name in before}, before)
        weight = float(client.size) if self.weights == "size" else 1.0
        return Update({"delta": delta}, weight, metrics), client_state

    @override
    def template(self, message: Tree) -> Tree:
        return {"delta": message["parameters"]}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        parameters = tree.add(server_state["parameters"], total.payload["delta"])
        return {**server_state, "parameters": parameters}
