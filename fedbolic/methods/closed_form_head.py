"""Heads in closed form for the features of any classifier, from exact sums over all clients."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize
from typing_extensions import override

from fedbolic import check
from fedbolic.data.client import Client, FederatedData
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.mean import Sum
from fedbolic.federated.delegated_steps import DelegatedSteps
from fedbolic.federated.evaluation.ridge_head import (
    BODY,
    check_layer,
    features_at,
    ridge_sums,
    solve_ridge,
)
from fedbolic.federated.gradient_method import GradientMethod
from fedbolic.federated.method import CohortKind, Method
from fedbolic.federated.update import AggregatedUpdate, StackedUpdates, Update
from fedbolic.federated.wrapping_method import WrappingMethod
from fedbolic.figure import Figure
from fedbolic.methods.random_features import RandomFeatures
from fedbolic.nn.model import Model
from fedbolic.rng import Rng
from fedbolic.types import Meta, Params, Tree

WEIGHT, BIAS = "head.weight", "head.bias"
"""Names of the parameters of a head; a head without a bias sees features of unit length."""


class SolvedHead(GradientMethod):
    """A method whose server solves for a head in a separate :class:`HeadExchange`."""

    ridge: float
    """Regularization, as in :func:`~fedbolic.federated.evaluation.ridge_head.solve_ridge`."""

    @property
    @abstractmethod
    def solves(self) -> bool:
        """True if a run has such an exchange."""

    @property
    def source(self) -> tuple[GradientMethod, str]:
        """Method and name of the layer that give the features; by default its own ``body``."""
        return self, BODY

    def expansion(self, message: Tree) -> Callable[[Tensor], Tensor] | None:
        """Map of the unit-length features to those of the sums; by default there is none."""
        return None

    @abstractmethod
    def sums_form(self, message: Tree) -> Tree:
        """Form of a client's sums, as ``ridge_sums`` returns them."""

    @abstractmethod
    def with_head(self, server_state: Tree, sums: Tree) -> Tree:
        """Server state with the head for the sums over all clients."""


@dataclass(frozen=True)
class HeadExchange(WrappingMethod):
    """One exchange over all clients that solves for the head of a trained classifier.

    The clients' :func:`~fedbolic.federated.evaluation.ridge_head.ridge_sums` add up to those of the
    pooled data, so the head equals the centralized solution.

    Args:
        method: Method whose head is solved for.
        ends_round: Whether a round ends with this exchange.
    """

    method: SolvedHead
    ends_round: bool = True

    @property
    @override
    def aggregator(self) -> Aggregator:
        return Sum()

    @property
    @override
    def cohort(self) -> CohortKind:
        return "all"

    @property
    @override
    def evaluates(self) -> bool:
        return self.ends_round

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return self.method.init(meta, rng)

    @override
    def admit(self, server_state: Tree, sizes: Sequence[int]) -> Tree:
        return self.method.admit(server_state, sizes)

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        return self.method.broadcast(server_state, client_id)

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        method, layer = self.method.source
        given = method, message, client, client_state
        payload = ridge_sums(*given, layer=layer, expand=self.method.expansion(message))
        return Update(payload, weight=float(client.size)), client_state

    @override
    def template(self, message: Tree) -> Tree:
        return self.method.sums_form(message)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        return self.method.with_head(server_state, total.payload)

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        return self.method.evaluate(message, client, client_state, rng)


def sums_form(width: int, num_classes: int) -> Tree:
    """Form of the sums ``gram`` and ``cross`` over features of a width, all zero."""
    zeros = torch.zeros(width, width + num_classes, dtype=torch.float64)
    return {"gram": zeros[:, :width], "cross": zeros[:, width:]}


@dataclass(frozen=True)
class ClosedFormHead(DelegatedSteps, SolvedHead):  # type: ignore[misc]  # local is a property
    r"""A method with a head in closed form, after its training or before every round.

    .. math:: W = (Z^T Z + \varepsilon I)^{-1} Z^T Y

    with the unit-length features Z of all clients' training examples at one layer, and their
    one-hot labels Y. Every client sends sums over its own examples; the sums over clients, and so
    the head, are those of the pooled data. With an additive aggregator the method can run under
    a secure sum, whose fixed point then rounds the sums.

    ``when="end"`` adds one round after the training, of one exchange over all clients. The scores
    of that round are those of the head, at the clients as well as on the server's test set; the
    round before has those of the method. The head is kept next to the model, so that it may use any
    layer of the backbone.

    ``when="start"`` adds one exchange over all clients to the beginning of every round. It replaces
    the method's head by a multiple of W, so that every prediction is that of W, with the bias 0.
    Local training starts from there. The multiple has rows of the mean square length
    :math:`s^2`: columns of W are long where features are alike, and local steps through such
    a head would diverge. A head without a bias, as SphereFed's, is W itself.

    The paper begins with such a head and fixed features from pre-training; here the features are
    those of the round. Its sums over partial cohorts are left out. With ``random_features`` the
    head at the end is that of a Gaussian kernel, approximately; the server sends the seed of the
    random features.

    Args:
        method: Method with one global model, which gives the features.
        when: ``end`` of the training, or ``start`` of the local training in every round.
        layer: Layer that gives the features: ``body`` for those that the head sees, or the name of
            a layer of the backbone, with ``end`` only.
        ridge: Regularization added to the diagonal of Z'Z, relative to its mean, above 0. The
            default suits local training; at the end, smaller values fit the features more closely.
        row_length: Root mean square length s of the head's rows at the start of a round, above 0;
            a new head of torch has about 0.58.
        random_features: Random Fourier features of Z in place of Z itself, with ``end`` only.

    Raises:
        ValueError: If a value is outside its range, or the method has no common features or solves
            for a head already.

    References:
        Fani et al. (2024), Secs. 4 and 5, arXiv:2406.01116; Dong et al. (2022), Sec. 3,
        arXiv:2207.09413.

    Example:
        >>> from fedbolic.methods.fedavg import FedAvg
        >>> ClosedFormHead(FedAvg(rounds=20), layer="body.1").rounds
        21
    """

    when: Literal["end", "start"] = "end"
    layer: str = BODY
    ridge: float = 0.1
    row_length: float = 2.0
    random_features: RandomFeatures | None = None

    def __post_init__(self) -> None:
        check.one_of(("end", "start"), when=self.when)
        check.positive(ridge=self.ridge, row_length=self.row_length)
        name = type(self.method).__name__
        if self.method.ridge_head is None:
            raise ValueError(f"{name} has no common features, so there is no head to solve for")
        if isinstance(self.method, SolvedHead) and self.method.solves:
            raise ValueError(f"{name} solves for its head already: turn that off or use it alone")
        if self.when == "start" and self.layer != BODY:
            raise ValueError(
                f"local training starts with a head on the features that it sees, got layer "
                f"{self.layer!r}: use body, or when='end'"
            )
        if self.when == "start" and self.random_features is not None:
            raise ValueError(
                "local training has no random features: leave them out, or use when='end'"
            )

    @property
    @override
    def rounds(self) -> int:  # type: ignore[override]  # a field of other methods
        """Number of rounds of the method, and one more for a head at the end."""
        return self.method.rounds + (self.when == "end")

    @property
    @override
    def solves(self) -> bool:
        return True

    @property
    @override
    def source(self) -> tuple[GradientMethod, str]:
        return self.method, self.layer

    @override
    def check_deployed(self) -> None:
        self.method.check_deployed()

    @override
    def phase(self, server_state: Tree) -> Method:
        progress = server_state["closed_form"]
        if self.when == "start":
            return self if progress["solved"] else HeadExchange(self, ends_round=False)
        return HeadExchange(self) if progress["round"] == self.method.rounds else self

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        check_layer(self.method, self.layer, meta)
        server_state = self.method.init(meta, rng)
        if self.when == "start":
            heads = (self.method.model(meta).init(0)[0], server_state["parameters"])
            if not all(WEIGHT in parameters for parameters in heads):
                raise ValueError(
                    f"{type(self.method).__name__} has no linear head on its server that could be "
                    "replaced before a round: use when='end'"
                )
        width = _width(self.method.model(meta), self.layer, meta)
        progress = {"round": 0, "solved": 0, "width": width, "num_classes": meta.num_classes}
        if self.random_features is not None:
            progress["seed"] = rng.at("random features").number()
        return {**server_state, "closed_form": progress}

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        message = self.method.broadcast(server_state, client_id)
        return {**message, "closed_form": server_state["closed_form"]}

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        local, context = super().start(message, client, client_state)
        if "weight" not in message["closed_form"]:
            return local, context
        head = {"weight": message["closed_form"]["weight"], **self._drawn(message)}
        return local, {**context, "shared": {**context.get("shared", {}), "closed_form": head}}

    @override
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        return self.method.finish(local, client, context)

    @override
    def stacked_finish(
        self, local: Tree, clients: Sequence[Client], context: Tree, *, axes: Tree
    ) -> StackedUpdates | None:
        return self.method.stacked_finish(local, clients, context, axes=axes)

    @override
    def template(self, message: Tree) -> Tree | None:
        return self.method.template(message)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        progress = server_state["closed_form"]
        progress = {**progress, "round": progress["round"] + 1, "solved": 0}
        return {**self.method.server_update(server_state, total), "closed_form": progress}

    def _drawn(self, message: Tree) -> Params:
        """Frequencies and phases of the random features; empty without them."""
        if self.random_features is None:
            return {}
        progress = message["closed_form"]
        return self.random_features.draw(progress["width"], progress["seed"])

    @override
    def expansion(self, message: Tree) -> Callable[[Tensor], Tensor] | None:
        if self.random_features is None:
            return None
        return partial(self.random_features, drawn=self._drawn(message))

    @override
    def sums_form(self, message: Tree) -> Tree:
        progress, expanded = message["closed_form"], self.random_features
        width = progress["width"] if expanded is None else expanded.num
        return sums_form(width, progress["num_classes"])

    @override
    def with_head(self, server_state: Tree, sums: Tree) -> Tree:
        head, progress = solve_ridge(sums, self.ridge), {**server_state["closed_form"], "solved": 1}
        if self.when == "end":
            return {**server_state, "closed_form": {**progress, "weight": head}}
        parameters = server_state["parameters"]
        if BIAS in parameters and head.any():
            head = head * self.row_length / head.square().sum(dim=0).mean().sqrt()
        new = {WEIGHT: head.T.to(parameters[WEIGHT].dtype)}
        new |= {BIAS: torch.zeros_like(parameters[BIAS])} if BIAS in parameters else {}
        return {**server_state, "parameters": {**parameters, **new}, "closed_form": progress}

    @override
    def scored(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree] | None:
        method = super() if "weight" in message["closed_form"] else self.method
        return method.scored(message, client, client_state)

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        """Outputs of the head at the end, once it is solved for; those of the method before."""
        head = context.get("shared", {}).get("closed_form")
        if head is None:
            return super().predict(model, local, batch, context)
        z = features_at(self.method, self.layer, model, local, batch, context)
        z = normalize(z.to(head["weight"].dtype))
        z = z if self.random_features is None else self.random_features(z, head)
        return z @ head["weight"]

    @override
    def features(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        return self.method.features(model, local, batch, context)

    @override
    def fine_tuning(self, epochs: int, lr: float | None) -> GradientMethod | None:
        return self.method.fine_tuning(epochs, lr)

    @property
    @override
    def ridge_head(self) -> GradientMethod | None:
        return self.method.ridge_head

    @override
    def figures(self, server_state: Tree, data: FederatedData) -> dict[str, Figure]:
        return self.method.figures(server_state, data)


def _width(model: Model, layer: str, meta: Meta) -> int:
    """Number of features of an example at a layer."""
    body = model.part(BODY)
    inputs = torch.zeros(1, *meta.input_shape)
    if layer == BODY:
        return body(*body.init(0), inputs)[0].shape[-1]
    with body.recording(layer.removeprefix(f"{BODY}.")) as outputs:
        body(*body.init(0), inputs)
    return outputs[-1].flatten(1).shape[-1]
