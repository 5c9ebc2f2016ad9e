"""Ridge head: a least-squares head on common features, from exact sums over clients."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import normalize, one_hot
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.aggregator import Sum
from fedbolic.federated.aggregators.update import (
    MOST_WEIGHT,
    AggregatedUpdate,
    Update,
    find_outside,
)
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.method import Method
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.contract.wrapping_method import DelegatedSteps, WrappingMethod
from fedbolic.federated.scores.score import chunks, score_logits
from fedbolic.nn.network.model import Model

_MOST_LENGTH = 2.0
"""Bound on the length of features in sums; unit features have 1, random ones at most sqrt(2)."""

BODY = "body"
"""Name of the layer that gives a method's own features."""

RIDGE_HEAD = "ridge_head"
"""Entry of a server state and of a message that holds a head to be scored."""


def features_at(
    method: GradientMethod, layer: str, model: Model, local: Tree, batch: Params, context: Tree
) -> Tensor:
    """Outputs of a layer of a method's backbone for a batch, one row per example.

    Args:
        method: Method that computes features with the part ``body`` of its model.
        layer: ``body`` for the method's own features, or the name of a layer in it, such as
            ``body.7``; outputs of more than one axis per example are flattened.
        model: Architecture of the method.
        local: As in :meth:`~fedbolic.federated.contract.gradient_method.GradientMethod.features`.
        batch: Likewise.
        context: Likewise.

    Raises:
        ValueError: If the model has no such layer.
    """
    if layer == BODY:
        return method.features(model, local, batch, context)
    with model.part(BODY).recording(_name_in_body(layer)) as outputs:
        method.features(model, local, batch, context)
    return outputs[-1].flatten(1)


def layer_width(method: GradientMethod, layer: str, meta: Meta) -> int:
    """Number of features of an example at a layer.

    Args:
        method: Method with the backbone.
        layer: Name of the layer, as in :func:`features_at`.
        meta: Description of the data.

    Raises:
        ValueError: If the model has no such layer.
    """
    body, inputs = method.model(meta).part(BODY), torch.zeros(1, *meta.input_shape)
    if layer == BODY:
        return body(*body.init(0), inputs)[0].shape[-1]
    with body.recording(_name_in_body(layer)) as outputs:
        body(*body.init(0), inputs)
    return outputs[-1].flatten(1).shape[-1]


def _name_in_body(layer: str) -> str:
    if not layer.startswith(f"{BODY}."):
        raise ValueError(f"layer must be body, or begin with 'body.', got {layer!r}")
    return layer.removeprefix(f"{BODY}.")


def find_impossible_sums(payload: Tree) -> str | None:
    """Reason why no data can give such sums; ``None`` if some could.

    Args:
        payload: Finite ``gram`` and ``cross`` of a :class:`HeadExchange`.

    Example:
        >>> find_impossible_sums({"gram": -torch.eye(2), "cross": torch.zeros(2, 3)})
        'its gram is no matrix of inner products of at most 1e+09 features'
    """
    gram, cross = payload["gram"].double(), payload["cross"].double()
    most, trace = MOST_WEIGHT * _MOST_LENGTH**2, float(gram.trace())
    rounding = 1e-9 * trace
    shifted = gram + rounding * torch.eye(len(gram)).to(gram)
    possible = 0 <= trace <= most and float((gram - gram.T).abs().max()) <= rounding
    if trace and not (possible and int(torch.linalg.cholesky_ex(shifted).info) == 0):
        return f"its gram is no matrix of inner products of at most {MOST_WEIGHT:g} features"
    return find_outside({"cross": cross}, "cross", -most, most)


def solve_ridge(total: Tree, ridge: float) -> Float64[Tensor, "width num_classes"]:
    r"""Weights of ridge regression without intercept, from the sums over all clients.

    .. math:: W = (Z^T Z + \varepsilon I)^{-1} Z^T Y

    Args:
        total: Sums of ``gram`` and ``cross`` over clients.
        ridge: Epsilon divided by the mean diagonal entry of Z'Z, above 0.

    References:
        Dong et al. (2022), Sec. 3, arXiv:2207.09413.

    Example:
        >>> total = {"gram": torch.eye(2).double(), "cross": torch.tensor([[3.0], [6.0]]).double()}
        >>> solve_ridge(total, ridge=0.5)
        tensor([[2.],
                [4.]], dtype=torch.float64)
    """
    gram, cross = total["gram"], total["cross"]
    mean = gram.diagonal().mean()
    epsilon = ridge * (mean if mean > 0 else 1.0)  # features that are all 0 give the head 0
    return torch.linalg.solve(gram + epsilon * torch.eye(len(gram)).to(gram), cross)


def featured(method: Method) -> GradientMethod | None:
    """The method whose features a common head uses: itself, or the one whose steps it takes.

    Args:
        method: Any method.

    Returns:
        ``None`` if clients have no common features.
    """
    while isinstance(method, DelegatedSteps):
        method = method.method
    common = method.traits.global_model and method.traits.common_features
    return method if isinstance(method, GradientMethod) and common else None


@dataclass(frozen=True)
class HeadExchange(WrappingMethod):
    """One exchange over all clients that solves for a head on a method's features.

    Every client sends its ``gram`` Z'Z and ``cross`` Z'Y, the sufficient statistics of least
    squares, with the unit-length features Z of its training examples and their one-hot labels Y.
    They add up to those of the pooled data, so the head equals the centralized solution. The sums
    of a client with fewer examples than features reveal the span of its features to their reader.

    Args:
        method: Method whose features are used; they must be common to all clients.
        ridge: Relative regularization, above 0, as in :func:`solve_ridge`.
        layer: Layer that gives the features, as in :func:`features_at`.
        shape: Numbers of features and of classes, which the server knows; ``None`` at a node.
        expand: Map of the unit-length features to those of the sums; ``None`` for none.
        place: Function from the server state and the head to the next server state; ``None`` to
            add the head under ``ridge_head``, so that the clients are scored with it.
        ends_round: Whether a round ends with this exchange.
    """

    method: GradientMethod
    ridge: float
    layer: str = BODY
    shape: tuple[int, int] | None = None
    expand: Callable[[Tensor], Tensor] | None = None
    place: Callable[[Tree, Tensor], Tree] | None = None
    ends_round: bool = True

    aggregator = Sum()

    @property
    @override
    def traits(self) -> Traits:
        return dataclasses.replace(super().traits, cohort="all", evaluates=self.ends_round)

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        message = self.method.broadcast(server_state, client_id)
        solved = {RIDGE_HEAD} & server_state.keys()
        return {**message, **{name: server_state[name] for name in solved}}

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        features = self._features(message, client, client_state)

        def products(index: Tensor) -> Tree:
            batch = client.train.at(index)
            z = features(batch)
            y = one_hot(batch["y"], client.meta.num_classes).double()
            return {"gram": z.T @ z, "cross": z.T @ y}

        payload = functools.reduce(tree.add, map(products, chunks(client.size)))
        return Update(payload, weight=float(client.size)), client_state

    def _features(
        self, message: Tree, client: Client, client_state: Tree
    ) -> Callable[[Params], Float64[Tensor, "n width"]]:
        """Function from a batch to the features of its examples."""
        model = self.method.model(client.meta)
        local, context = self.method.start(message, client, client_state)

        def features(batch: Params) -> Float64[Tensor, "n width"]:
            with torch.no_grad():
                z = features_at(self.method, self.layer, model, local, batch, context)
                z = normalize(z.double())
                return z if self.expand is None else self.expand(z)

        return features

    @override
    def template(self, message: Tree) -> Tree | None:
        if self.shape is None:
            return None
        width, num_classes = self.shape
        zeros = torch.zeros(width, width + num_classes, dtype=torch.float64)
        return {"gram": zeros[:, :width], "cross": zeros[:, width:]}

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        return find_impossible_sums(payload)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        head = solve_ridge(total.payload, self.ridge)
        if self.place is not None:
            return self.place(server_state, head)
        return {**server_state, RIDGE_HEAD: head}

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        features = self._features(message, client, client_state)
        return score_logits(lambda batch: features(batch) @ message[RIDGE_HEAD], client)
