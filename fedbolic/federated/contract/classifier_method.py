"""Base of methods that train one classifier on all clients by gradient steps."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Client, LabelledSplit
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update, host_or_scalar
from fedbolic.federated.contract.gradient_method import GradientMethod, LocalTraining
from fedbolic.federated.contract.server_optimizer import ServerOptimizer, ServerSGD
from fedbolic.federated.contract.sharing import (
    Assembly,
    Sharing,
    assemble,
    check_patterns,
    check_sharing,
    select_kind,
)
from fedbolic.federated.contract.traits import Traits
from fedbolic.manifolds.manifold import Manifold
from fedbolic.nn.network.backbone import MLP, Backbone
from fedbolic.nn.network.classifier import classifier
from fedbolic.nn.network.model import Model
from fedbolic.optim import SGD, Optimizer


def shared_context(global_parameters: Params, fixed: Params | None = None) -> Tree:
    """``context`` of a round.

    Args:
        global_parameters: Parameters from which the delta is taken.
        fixed: Parameters that are not trained; ``None`` for none.
    """
    return {"shared": {"global_parameters": global_parameters, "fixed": fixed or {}}}


def with_proximal_term(
    gradients: Params, parameters: Params, goals: Params, strength: float
) -> Params:
    """Gradients of a loss plus a proximal term, half the squared distance to ``goals``.

    Args:
        gradients: Gradients of the loss alone, by name.
        parameters: Parameters at which they were computed.
        goals: Reference values of some of the parameters.
        strength: Coefficient of the proximal term, at least 0.
    """
    if not strength:
        return gradients
    ways = {n: parameters[n] - goals[n] for n in goals if n in gradients}
    return {**gradients, **{n: x.mul_(strength).add_(gradients[n]) for n, x in ways.items()}}


def visits_of(method: GradientMethod, client: Client) -> int:
    """Visits to a client's examples in a round, at least 1."""
    return max(1, client.size * method.local.epochs * method.local.repeats)


@dataclass(frozen=True)
class ClassifierMethod(GradientMethod):
    """Base of methods that train one classifier by gradient steps; unchanged, it is FedAvg.

    A method overrides what differs from FedAvg. The server's state holds ``parameters``,
    ``buffers`` and the server optimiser's state ``optimizer``, which is not sent; a payload holds
    ``delta`` and ``buffers``.

    Args:
        backbone: Network from inputs to features; a linear head follows.
        rounds: Number of communication rounds, at least 1.
        local: Local epochs and batch size.
        lr: Local step size, above 0.

    Raises:
        ValueError: If a value is outside its range.

    Example:
        >>> @dataclass(frozen=True)
        ... class PersonalHeads(ClassifierMethod):
        ...     models = "personal"
        ...     sharing = {"head.*": "personal", "*": "shared"}
        >>> PersonalHeads(rounds=5).traits.global_model
        False
    """

    backbone: Backbone = MLP()
    rounds: int = 20
    local: LocalTraining = LocalTraining()
    lr: float = 0.1

    optimizer: ClassVar[Optimizer] = SGD()
    """The local optimiser, reset every round; a field where users choose it."""

    server_optimizer: ClassVar[ServerOptimizer] = ServerSGD()
    """The server's step; a field where users choose it."""

    weights: ClassVar[Literal["size", "uniform"]] = "size"
    """Weight of a client in the mean: its number of training examples, or 1."""

    models: ClassVar[Literal["global", "both", "personal"]] = "global"
    """Models that are scored: the server's, also one of each client, or the clients' alone."""

    head_type: ClassVar[type[nn.Module]] = nn.Linear
    """The head, from the numbers of features and classes."""

    sharing: ClassVar[Sharing] = {}
    """Shared, personal and fixed parameters and buffers by name; empty if all are shared.

    Otherwise the server's state has the ``seed`` of what is not sent.
    """

    spaces: ClassVar[Mapping[str, Manifold]] = {}
    """Manifolds of those parameters whose rows are points."""

    counted: ClassVar[Mapping[str, str]] = {}
    """Metrics that are shares of all visits, each with the buffer that counts in a round.

    ``loss`` receives these buffers next to those of the network, which must not be given them, and
    returns them with what it has added.
    """

    counts_steps: ClassVar[bool] = False
    """True if ``local`` counts the steps of a round, as ``num_steps`` in float64.

    :meth:`step` adds 1; a method that replaces it does so, too.
    """

    unsent = ("optimizer",)
    payload_like: ClassVar[dict[str, str | None]] = {"delta": "parameters", "buffers": "buffers"}

    def __post_init__(self) -> None:
        check.at_least(1, rounds=self.rounds)
        check.positive(lr=self.lr)
        check.one_of(("size", "uniform"), weights=self.weights)
        check.one_of(("global", "both", "personal"), models=self.models)
        if self.sharing:
            check_sharing(self.sharing)

    @property
    @override
    def traits(self) -> Traits:
        common = self.models != "personal" and "personal" not in self.sharing.values()
        return dataclasses.replace(super().traits, learns_from=LabelledSplit, global_model=common)

    def weight(self, client: Client) -> float:
        """Weight of a client in the aggregate, as ``weights`` says."""
        return float(client.size) if self.weights == "size" else 1.0

    @override
    def model(self, meta: Meta) -> Model:
        return classifier(self.backbone, meta, self.head_type)

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        seed = rng.at("model").number()
        parameters, buffers = self.model(meta).init(seed)
        if not self.sharing:
            return self.server_state(parameters, buffers)
        shared = (select_kind(x, self.sharing, "shared") for x in (parameters, buffers))
        server_state = {**self.server_state(*shared), "seed": seed}
        check_patterns(self.sharing, parameters | buffers)
        return server_state

    def server_state(self, parameters: Params, buffers: Params) -> Tree:
        """The server's initial state, from the values that are sent to clients."""
        optimizer = self.server_optimizer.init(parameters)
        return {"parameters": parameters, "buffers": buffers, "optimizer": optimizer}

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        received = message["parameters"]
        values = Assembly(received, {}, message["buffers"])
        if self.sharing and (client_state or {*self.sharing.values()} != {"shared"}):
            values = assemble(self.model(client.meta), self.sharing, message, client_state, client)
        device, buffers = client.no_inputs.device, values.buffers
        if self.counted:
            counts = {name: torch.zeros((), device=device) for name in self.counted.values()}
            buffers = {**buffers, **counts}
        local = self.local_state(values.trained, buffers)
        if self.counts_steps:
            local["num_steps"] = torch.zeros((), dtype=torch.float64, device=device)
        return local, shared_context(received, values.fixed)

    def local_state(self, parameters: Params, buffers: Params) -> Tree:
        """``local`` before the first step."""
        optimizer = self.optimizer.init(parameters)
        return {"parameters": parameters, "buffers": buffers, "optimizer": optimizer}

    def network_parameters(self, parameters: Params, context: Tree) -> Params:
        """Parameters of the network, from those in training; by default with the fixed ones."""
        return {**parameters, **context["shared"]["fixed"]}

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        parameters = self.network_parameters(parameters, context)
        logits, buffers = model(parameters, buffers, batch["x"], training=True)
        return self.losses(logits, batch["y"]), buffers

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of every example of a batch; by default the cross-entropy."""
        return cross_entropy(logits, labels, reduction="none")

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        parameters, optimizer = self.optimizer.step(
            local["parameters"],
            gradients,
            local["optimizer"],
            lr=self.lr,
            spaces=self.spaces or None,
            donate=True,
        )
        count = {"num_steps": local["num_steps"] + 1} if self.counts_steps else {}
        return {**local, "parameters": parameters, "optimizer": optimizer, **count}

    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        """``(payload, client_state)`` after the last step, from tensors alone.

        ``vmap`` derives the results of several clients from it. A method whose results depend on
        the client's data overrides :meth:`finish` instead. The results may share storage with
        ``local``.
        """
        global_parameters = context["shared"]["global_parameters"]
        trained = {name: local["parameters"][name] for name in global_parameters}
        delta = tree.subtract_(trained, global_parameters)
        counts = self.counted.values()
        buffers = {name: x for name, x in local["buffers"].items() if name not in counts}
        if {*self.sharing.values()} <= {"shared"}:
            return {"delta": delta, "buffers": buffers}, {}
        personal = {
            kind: select_kind(values, self.sharing, "personal")
            for kind, values in (("parameters", local["parameters"]), ("buffers", buffers))
        }
        sent = select_kind(buffers, self.sharing, "shared")
        return {"delta": delta, "buffers": sent}, personal if any(personal.values()) else {}

    def counts(self, local: Tree) -> Params:
        """Counts of visits to examples, by the metrics that ``counted`` names.

        Args:
            local: ``local`` of one client, or of several with a leading axis.
        """
        return {metric: local["buffers"][name] for metric, name in self.counted.items()}

    @override
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        visits = visits_of(self, client)
        metrics = {n: host_or_scalar(x) / visits for n, x in self.counts(local).items()}
        payload, client_state = self.outcome(local, context)
        return Update(payload, self.weight(client), metrics), client_state

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        parameters, optimizer = self.server_optimizer.step(
            server_state["parameters"], total.payload["delta"], server_state["optimizer"]
        )
        inside = {n: x.projx(parameters[n]) for n, x in self.spaces.items() if n in parameters}
        return {
            **server_state,
            "parameters": {**parameters, **inside},
            "buffers": total.payload["buffers"],
            "optimizer": optimizer,
        }

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        parameters = self.network_parameters(local["parameters"], context)
        return model(parameters, local["buffers"], batch["x"])[0]

    @override
    def features(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        parameters = self.network_parameters(local["parameters"], context)
        return super().features(model, {**local, "parameters": parameters}, batch, context)

    @override
    def fine_tuning(self, epochs: int, lr: float | None) -> GradientMethod | None:
        if self.models != "global":
            return None  # every client is scored with its personal model already
        local = dataclasses.replace(self.local, epochs=epochs)
        return dataclasses.replace(self, local=local, lr=lr or self.lr)
