"""Base class of graph methods whose clients send the change of shared parameters."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.types import Params, Tree
from fedbolic.data import Client
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.mean import Mean
from fedbolic.federated.contract.jagged import Jagged
from fedbolic.federated.contract.sharing import select_kind
from fedbolic.federated.updates.update import (
    AggregatedUpdate,
    Update,
    host_or_scalar,
)
from flatland.graphs.graph_method import GraphMethod, with_proximal_term


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
            :class:`~fedbolic.federated.updates.update.StackedUpdates`.
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
    def template(self, message: Tree) -> Tree:
        return {"delta": message["parameters"]}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        parameters = tree.add(server_state["parameters"], total.payload["delta"])
        return {**server_state, "parameters": parameters}


def _of_one(values: Tree) -> Tree:
    """Values of a single client, without the axis of clients."""

    def leaf_of_one(x: Any) -> Any:
        if isinstance(x, Jagged):
            return x.parts[0]
        return x[0] if isinstance(x, Tensor) else x

    return tree.map(leaf_of_one, values)
