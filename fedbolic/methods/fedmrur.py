"""FedMRUR: a hyperbolic distance between features in the loss, and steps of the clients' length."""

import math
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.types import Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.update import AggregatedUpdate, find_outside
from fedbolic.federated.contract.classifier_method import ClassifierMethod
from fedbolic.federated.contract.server_optimizer import ServerOptimizer, ServerSGD
from fedbolic.manifolds import Lorentz
from fedbolic.nn.network.classifier import features_and_logits
from fedbolic.nn.network.model import Model
from fedbolic.optim import SGD, Optimizer


@dataclass(frozen=True)
class FedMRUR(ClassifierMethod):
    r"""Federated averaging with a hyperbolic regularizer and normalised aggregation.

    .. math::
        \ell = \ell_{\mathrm{CE}} + \mu \, d\bigl(\exp_0 z, \exp_0 z_g\bigr)^2, \qquad
        \theta \leftarrow \theta + \Bigl(\sum_k p_k \|\Delta_k\|\Bigr)
        \frac{\bar\Delta}{\|\bar\Delta\|}, \quad \bar\Delta = \sum_k p_k \Delta_k

    with the features z of the model in training and :math:`z_g` of the global model that the client
    received, their points on the hyperboloid and the geodesic distance d there, and weights
    :math:`p_k = N_k / N` over the cohort. Local deltas are nearly orthogonal if the clients' data
    differ, so their mean is much shorter than each of them; here the step has their mean length.
    For deltas of one direction and without the regularizer the method is FedAvg.

    This follows the abstract and the captions of Figs. 1 and 2 of the paper, the only parts that
    were at hand. They name a distance between the representations of both models in hyperbolic
    space, and the norms of the local updates as the norm of the global one. Decided here: features
    of the whole backbone, mapped by the exponential map at the origin; the squared geodesic
    distance of every example, whose gradient vanishes where local training starts; a fixed global
    model in evaluation mode; one norm for all parameters; weights by size, for the norms as for the
    deltas. Local steps are those of ``optimizer``.

    Args:
        optimizer: Local optimiser, reset every round.
        mu: Weight of the squared distance, at least 0.
        c: Minus the sectional curvature of the hyperboloid, above 0.
        server_optimizer: The server's step along the normalised aggregate.

    Raises:
        ValueError: If a value is outside its range.

    References:
        An et al. (2023), Federated learning with manifold regularization and normalized update
        reaggregation, NeurIPS 2023, arXiv:2311.05924.

    Example:
        >>> FedMRUR(mu=0.5).c
        1.0
    """

    optimizer: Optimizer = SGD()  # type: ignore[override]  # a constant of the base
    mu: float = 0.1
    c: float = 1.0
    server_optimizer: ServerOptimizer = ServerSGD()  # type: ignore[override]  # likewise

    payload_like = ClassifierMethod.payload_like | {"norm": None}

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative(mu=self.mu)
        check.positive(c=self.c)

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        local, context = super().start(message, client, client_state)
        received = {kind: tree.part(message[kind], "body.") for kind in ("parameters", "buffers")}
        return local, {"shared": {**context["shared"], "body": received}}

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        x, body = batch["x"], context["shared"]["body"]
        z, logits, buffers = features_and_logits(model, parameters, buffers, x, training=True)
        z_global = model.part("body")(body["parameters"], body["buffers"], x)[0]
        lorentz = Lorentz(self.c)
        points, anchors = (lorentz.expmap0(lorentz.lift(value)) for value in (z, z_global))
        distance = lorentz.dist(points, anchors)
        return self.losses(logits, batch["y"]) + self.mu * distance.square(), buffers

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        payload, client_state = super().outcome(local, context)
        norm = tree.norm(payload["delta"]).double()
        return {**payload, "norm": norm}, client_state

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        fault = find_outside(payload, "norm", 0, math.inf)
        return fault or super().find_fault(message, payload, norm)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        mean_norm, norm = float(total.payload["norm"]), float(tree.norm(total.payload["delta"]))
        # deltas that cancel leave no direction
        delta = tree.scale(total.payload["delta"], mean_norm / norm if norm else 0.0)
        payload = {"delta": delta, "buffers": total.payload["buffers"]}
        aggregated = AggregatedUpdate(payload, total.weight, total.clients)
        return super().server_update(server_state, aggregated)
