"""FlatLand: graph learning in Lorentz spaces, one curvature per client, Euclidean part shared.

A round of the paper's Algorithm 1: every client maps its graph into its own Lorentz space and
trains; the server averages the parameters of the space coordinates; those of the time coordinate
and the curvature stay at the client.
"""

import dataclasses
from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data import Client, Graph
from fedbolic.federated.aggregators.update import AggregatedUpdate
from fedbolic.federated.contract.capabilities import Reporting
from fedbolic.federated.contract.classifier_method import with_proximal_term
from fedbolic.federated.contract.method import Method
from fedbolic.federated.contract.sharing import Sharing, select_kind
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.noise.draws import check_keys, check_mechanism, warn_of_keys
from fedbolic.manifolds import Curvature, Lorentz
from flatland.graphs.blocks import graph_block
from flatland.graphs.graph_method import GRAPH_EXAMPLES, GraphMethod
from flatland.graphs.model import GraphNetwork, LorentzGCN, num_clamped
from flatland.graphs.ricci import BOUNDS, Estimator, FormanInverse
from flatland.graphs.weak_cache import derived
from flatland.private_ricci import PrivateForman
from flatland.start_warnings import warn_of_start

CURVATURE = "curvature.raw"
"""Parameter name of the curvature, which is stored as the raw value of ``Curvature``."""

SHARING: Sharing = {"*.time": "personal", "curvature.*": "personal", "*": "shared"}
"""Sharing table of FlatLand: parameters of the time coordinate and the curvature are personal."""


@dataclass(frozen=True)
class FlatLand(GraphMethod, Reporting):
    r"""Personalised graph networks with shared space parameters and private time parameters.

    .. math::
        \min_{\theta_s, \theta_1, \dots, \theta_C} \sum_c f_c(\theta_s, \theta_c)
        + \tfrac{\mu}{2} \| \theta_{s,c} - \theta_s \|^2, \qquad
        \theta_s \leftarrow \sum_c w_c \, \theta_{s,c}

    Other ``sharing`` tables give other methods: ``{"*": personal}`` is local training,
    ``{"*": shared}`` FedAvg (with ``LorentzGCN``, the ablation without decoupling), ``{"head.*":
    personal, "*": shared}`` FedPer; with ``network`` ``GCN`` they are Euclidean. The ablation
    without tailored spaces sets ``curvature`` to ``Constant()`` and ``sharing`` to ``{"*.time":
    personal, "curvature.*": fixed, "*": shared}``. A ``fixed`` curvature keeps the estimate from
    the client's graph. A shared curvature starts at 1, whatever the estimator, and c is averaged.

    Variants that are not in the paper: the networks of ``flatland.frames``; Shrink, which has
    ``personal_proximal`` above 0; and its limit LorShare, where only the curvature is personal.

    Departs from the paper: the time row v is left out, as it has no effect there; the curvature
    starts at :math:`c = -\mathrm{Ric}`; hidden biases are shared; the optimiser's moments stay at
    the client between rounds, as in FED-PUB's code.

    Args:
        weight_decay: Coefficient of L2 regularisation in the gradient, at least 0; not applied to
            the curvature.
        curvature: Estimator of a client's initial curvature, unused if the curvature is shared. The
            estimate of ``PrivateForman`` is recorded instead of the trained curvature.
        curvature_rate: The curvature's step size over ``lr``, above 0.
        proximal: The :math:`\mu` of FedProx, at least 0; the paper's :math:`\lambda` is half of it.
            It has no effect if a round is one step.
        personal_proximal: Coefficient, at least 0, of a proximal term between personal parameters,
            except the curvature, and their mean over clients. If it is 0, nothing more is sent.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Liu et al. (2024), Algorithm 1, FedKDD; Baek et al. (2023), arXiv:2206.10206.

    Example:
        >>> FlatLand(proximal=0.01).local.epochs
        3
    """

    network: GraphNetwork = LorentzGCN()
    sharing: Sharing = field(default_factory=lambda: dict(SHARING))
    curvature: Estimator = FormanInverse()
    curvature_rate: float = 1.0
    personal_proximal: float = 0.0

    unsent = "curvature_epsilon", "mechanism"
    payload_like = GraphMethod.payload_like | {"means": "means"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(curvature_rate=self.curvature_rate)
        check.not_negative(personal_proximal=self.personal_proximal)

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        server_state = super().init(meta, rng)
        parameters, _ = self.model(meta).init(server_state["seed"])
        if self.personal_proximal:
            server_state["means"] = select_kind(parameters, self.sharing, "personal")
            server_state["means"].pop(CURVATURE, None)
        estimated = _is_estimated(parameters, server_state)
        if isinstance(self.curvature, PrivateForman) and estimated:
            logger.info("privacy of every client's curvature: %s", self.curvature.ledger)
            warn_of_keys(self.curvature.noise)
            server_state["curvature_epsilon"] = self.curvature.ledger.epsilon(1)
            server_state["mechanism"] = repr(self.curvature)
        return server_state

    @override
    def phase(self, server_state: Tree) -> Method:
        check_mechanism(server_state, repr(self.curvature))
        return self

    @property
    @override
    def traits(self) -> Traits:
        unit = "edge" if isinstance(self.curvature, PrivateForman) else None
        return dataclasses.replace(
            super().traits, privacy_unit=unit, repeatable=unit is None, charged=("estimate",)
        )

    @override
    def check_deployed(self, *, summed: int = 1) -> None:
        if isinstance(self.curvature, PrivateForman):
            check_keys(self.curvature.noise)

    @override
    def costs(self, server_state: Tree) -> dict[str, float]:
        if "curvature_epsilon" not in server_state:
            return {}
        return {"privacy/curvature_epsilon": server_state["curvature_epsilon"]}

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        private = isinstance(self.curvature, PrivateForman) and "estimate" not in client_state
        parameters, _ = self.model(client.meta).init(message["seed"]) if private else ({}, {})
        if _is_estimated(parameters, message) and isinstance(client.train, GRAPH_EXAMPLES):
            like = client.no_inputs
            drawn = _raw(client.train.graph, self.curvature, like.device, like.dtype)  # released
            client_state = {**client_state, "estimate": drawn}
        local, context = self.received(message, client, client_state)
        if (optimizer := client_state.get("optimizer")) is None:
            groups = _groups(local["parameters"]).items()
            with client.no_inputs.device:  # an empty group has a counter there, too
                optimizer = {kind: self.optimizer.init(group) for kind, group in groups}
        return {**local, "optimizer": optimizer}, context

    @override
    def received(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        means = message.get("means", {})  # a client's personal parameters start there
        sent = {**message, "parameters": {**means, **message["parameters"]}}
        local, context = super().received(sent, client, client_state)
        trained, fixed = local["parameters"], context["own"]["fixed"]
        (graph,) = context["own"]["graph"].parts
        known, private = {**trained, **fixed}, isinstance(self.curvature, PrivateForman)
        estimated = _is_estimated(known, message)
        if private and "estimate" in client_state:
            local = {**local, "estimate": client_state["estimate"]}
        if estimated and CURVATURE not in client_state.get("parameters", {}):
            raw = known[CURVATURE]  # of a client that is scored before its first turn
            if private:
                raw = local.get("estimate", raw)
            else:
                raw = derived(graph, _raw, self.curvature, raw.device, raw.dtype)
            trained, fixed = (
                {**of, CURVATURE: raw} if CURVATURE in of else of for of in (trained, fixed)
            )
        known = {**trained, **fixed}
        if CURVATURE in known and "parameters" not in client_state:
            estimator = self.curvature if estimated and not private else None
            warn_of_start(graph, _public(CURVATURE, known[CURVATURE]), client, estimator)
        shared = {"global_parameters": message["parameters"], "means": means}
        own = {**context["own"], "fixed": fixed}
        return {**local, "parameters": trained}, {"shared": shared, "own": own}

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        parameters = local["parameters"]
        for strength, to in (
            (self.proximal, "global_parameters"),
            (self.personal_proximal, "means"),
        ):
            gradients = with_proximal_term(gradients, parameters, context["shared"][to], strength)
        moved, states = {}, {}
        for kind, group in _groups(parameters).items():
            decay, rate = (
                (self.weight_decay, 1.0) if kind == "weights" else (0.0, self.curvature_rate)
            )
            optimizer = dataclasses.replace(self.optimizer, weight_decay=decay)
            some = {n: gradients[n] for n in group}
            changed, states[kind] = optimizer.step(
                group, some, local["optimizer"][kind], lr=self.lr * rate, donate=True
            )
            moved |= changed
        return {**local, "parameters": moved, "optimizer": states}

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        global_parameters, parameters = context["shared"]["global_parameters"], local["parameters"]
        before, after = (
            {n: _public(n, x[n]) for n in global_parameters}
            for x in (global_parameters, parameters)
        )
        payload = {"delta": tree.subtract(after, before)}
        if self.personal_proximal:
            means = context["shared"]["means"]
            payload["means"] = {n: parameters[n] - mean for n, mean in means.items()}
        kept = {"estimate": local["estimate"]} if "estimate" in local else {}
        return payload, self.personal_state(local) | kept

    @override
    def measurements(self, local: Tree, context: Tree) -> Params:
        if "estimate" in local:  # the other numbers are not covered by its epsilon
            return {"released/curvature": _public(CURVATURE, local["estimate"]).reshape(-1)}
        known = {**local["parameters"], **context["own"]["fixed"]}
        if CURVATURE not in known:
            return {}
        block = graph_block(context["own"]["graph"].parts)
        c = _public(CURVATURE, known[CURVATURE]).reshape(-1)
        clamped = num_clamped(Lorentz(c[:, None, None]), block.norms)
        return {"train/curvature": c, "train/clamped_fraction": clamped / block.num_nodes}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        delta = total.payload["delta"]
        parameters = {
            name: _raw_of(name, _public(name, value) + delta[name])
            for name, value in server_state["parameters"].items()
        }
        server_state = {**server_state, "parameters": parameters}
        if self.personal_proximal:
            server_state["means"] = tree.add(server_state["means"], total.payload["means"])
        return server_state


_CURVATURE = Curvature(1.0, bounds=BOUNDS, learnable=False)
"""Conversion between raw values and curvatures."""


def _raw(graph: Graph, estimator: Estimator, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Raw value of the curvature estimated from a client's graph; with fresh noise if private."""
    c = torch.as_tensor(estimator.c(graph), dtype=torch.float64)
    return _CURVATURE.raw_of(c).reshape(_CURVATURE.raw.shape).to(device, dtype)


def _is_estimated(parameters: Params, received: Tree) -> bool:
    """True if a client's curvature begins as the estimate from its graph."""
    return CURVATURE in parameters and CURVATURE not in received["parameters"]


def _groups(parameters: Params) -> dict[str, Params]:
    """Split off the curvature, which has its own step size and no weight decay."""
    groups: dict[str, Params] = {"weights": {}, "curvature": {}}
    for name, value in parameters.items():
        groups["curvature" if name == CURVATURE else "weights"][name] = value
    return groups


def _public(name: str, value: Tensor) -> Tensor:
    """Value of a parameter in the average over clients: c instead of the raw curvature."""
    return _CURVATURE.c_of(value) if name == CURVATURE else value


def _raw_of(name: str, value: Tensor) -> Tensor:
    """Trained value of a parameter: the inverse of :func:`_public`."""
    return _CURVATURE.raw_of(value) if name == CURVATURE else value
