"""FedMTL: separate models for all clients, regularised towards their mean."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.aggregator import Sum
from fedbolic.federated.aggregators.update import AggregatedUpdate
from fedbolic.federated.contract.classifier_method import ClassifierMethod
from fedbolic.federated.contract.sharing import own_model
from fedbolic.optim import SGD, Optimizer


@dataclass(frozen=True)
class FedMTL(ClassifierMethod):
    r"""Mean-regularised multi-task learning: one model per client, and a penalty on their spread.

    .. math::
        \min_{W} \sum_k f_k(w_k) + \lambda \operatorname{tr}(W \Omega W^T), \qquad
        \Omega = (I - \tfrac1K 1 1^T)^2, \qquad
        \nabla_{w_k} \operatorname{tr}(W \Omega W^T) = 2 (w_k - \bar w)

    with the models :math:`w_k` of all K clients as columns of W. Omega is a projection, so a client
    needs no model but the mean :math:`\bar w`. In local steps the models of the others stay as they
    were when the round began. The server keeps the mean, and adds the deltas of a cohort to it. A
    channel that alters deltas, such as ``Clip``, therefore lets it drift from the models' mean.

    This is the primal form by gradient steps, for any network. MOCHA solves the dual problem of
    convex losses, to a precision that each client chooses, and may learn Omega. PFLlib, whose
    methods many comparisons use, takes the penalty from detached values: it has no gradient there,
    and the method is local training.

    Args:
        optimizer: Local optimiser, reset every round.
        coupling: Weight lambda of the penalty, at least 0; 0 is local training.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Smith et al. (2017), Eq. (1) and App. B.1, arXiv:1705.10467; Evgeniou and Pontil (2004), for
        the mean-regularised penalty.

    Example:
        >>> FedMTL(coupling=1.0).aggregator
        Sum()
    """

    optimizer: Optimizer = SGD()  # type: ignore[override]  # a constant of the base
    coupling: float = 0.1

    weights = "uniform"
    models = "personal"
    payload_like: ClassVar = {"delta": "mean"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative(coupling=self.coupling)

    aggregator = Sum()

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        seed = rng.at("model").number()
        parameters, _ = self.model(meta).init(seed)
        return {"mean": parameters, "seed": seed, "num_clients": meta.num_clients}

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        values = own_model(self.model(client.meta), message, client_state, client)
        shared = {"mean": message["mean"], "num_clients": message["num_clients"], "fixed": {}}
        local = self.local_state(values.trained, values.buffers)
        return local, {"shared": shared, "own": {"begin": values.trained}}

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        shared, parameters = context["shared"], local["parameters"]
        moved = tree.subtract(parameters, context["own"]["begin"])
        mean = tree.add(shared["mean"], tree.scale(moved, 1 / shared["num_clients"]))
        slope = tree.scale(tree.subtract(parameters, mean), 2 * self.coupling)
        return super().step(local, tree.add(gradients, slope), context)

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        delta = tree.subtract(local["parameters"], context["own"]["begin"])
        kept = {kind: local[kind] for kind in ("parameters", "buffers")}
        return {"delta": delta}, kept

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        moved = tree.scale(total.payload["delta"], 1 / server_state["num_clients"])
        return {**server_state, "mean": tree.add(server_state["mean"], moved)}
