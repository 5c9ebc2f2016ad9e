"""Heads in closed form for the features of any classifier, from exact sums over all clients."""

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.update import AggregatedUpdate
from fedbolic.federated.contract.capabilities import FixedTargets
from fedbolic.federated.contract.method import Method
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.contract.wrapping_method import DelegatedSteps
from fedbolic.federated.rounds.ridge_head import (
    BODY,
    HeadExchange,
    featured,
    features_at,
    layer_width,
)
from fedbolic.nn.functional.random_features import RandomFeatures
from fedbolic.nn.network.model import Model

HEAD = "head"
"""Name of the head; one without a bias sees features of unit length."""


@dataclass(frozen=True)
class ClosedFormHead(DelegatedSteps):
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

    A method that compares features with a fixed vector for each class, as HyperFed with its
    prototypes, has no head. There ``replaces`` names a linear layer of the backbone, which becomes
    a multiple of the product of W and these vectors, scaled to unit length: the least-squares map
    of the outputs of ``layer`` to the directions of their classes.

    The paper begins with such a head and fixed features from pre-training; here the features are
    those of the round. Its sums over partial cohorts are left out. With ``random_features`` the
    head at the end is that of a Gaussian kernel, approximately; the server sends the seed of the
    random features.

    Args:
        method: Method with one global model, which gives the features.
        when: ``end`` of the training, or ``start`` of the local training in every round.
        layer: Layer that gives the features: ``body`` for those that the head sees, or the name of
            a layer of the backbone, with ``end`` or ``replaces`` only.
        ridge: Regularization added to the diagonal of Z'Z, relative to its mean, above 0. The
            default suits local training; at the end, smaller values fit the features more closely.
        row_length: Root mean square length s of the head's rows at the start of a round, above 0;
            a new head of torch has about 0.58.
        random_features: Random Fourier features of Z in place of Z itself, with ``end`` only.
        replaces: Name of the linear layer behind ``layer``, such as ``body.8``; with ``start``.

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
    replaces: str | None = None

    def __post_init__(self) -> None:
        check.one_of(("end", "start"), when=self.when)
        check.positive(ridge=self.ridge, row_length=self.row_length)
        name = type(self.method).__name__
        if featured(self.method) is None:
            raise ValueError(f"{name} has no common features, so there is no head to solve for")
        if self.method.traits.solves_head:
            raise ValueError(f"{name} solves for its head already: turn that off or use it alone")
        if self.replaces is not None and (self.when == "end" or self.layer == BODY):
            raise ValueError(
                f"{self.replaces!r} is replaced before a round, from the outputs of the layer "
                f"before it, got {self.layer!r}, {self.when!r}: set layer to that one and when to "
                "start"
            )
        if self.when == "start" and self.layer != BODY and self.replaces is None:
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
    def traits(self) -> Traits:
        return dataclasses.replace(self.method.traits, solves_head=True)

    @property
    @override
    def rounds(self) -> int:
        """Number of rounds of the method, and one more for a head at the end."""
        return self.method.rounds + (self.when == "end")

    @override
    def phase(self, server_state: Tree) -> Method:
        progress, ends = server_state["closed_form"], self.when == "end"
        if progress["round"] != self.method.rounds if ends else progress["solved"]:
            return self
        width, expand = progress["width"], None
        if self.random_features is not None:
            width = self.random_features.num
            expand = partial(self.random_features.of_seed, seed=progress["seed"])
        shape = width, progress["num_classes"]
        return HeadExchange(self, self.ridge, self.layer, shape, expand, self._with_head, ends)

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        width = layer_width(self.method, self.layer, meta)
        server_state = self.method.init(meta, rng)
        if self.when == "start":
            self._check_start(server_state, meta, width)
        progress = {"round": 0, "solved": 0, "width": width, "num_classes": meta.num_classes}
        if self.random_features is not None:
            progress["seed"] = rng.at("random features").number()
        return {**server_state, "closed_form": progress}

    def _check_start(self, server_state: Tree, meta: Meta, width: int) -> None:
        """Refuse a method whose head, or layer, cannot be replaced before a round."""
        name, parameters = type(self.method).__name__, server_state["parameters"]
        weight = f"{self.replaces or HEAD}.weight"
        if self.replaces is None:
            if any(weight not in p for p in (self.method.model(meta).init(0)[0], parameters)):
                raise ValueError(
                    f"{name} has no linear head on its server that could be replaced before a "
                    "round: use when='end', or replaces with a method that has prototypes"
                )
            return
        targets = _targets(self.method, server_state)
        if targets is None:
            raise ValueError(f"{name} has no fixed vectors of classes: leave replaces out")
        shape, found = (targets.shape[1], width), parameters.get(weight)
        if found is None or found.shape != shape:
            raise ValueError(
                f"replaces must name a linear layer with a weight of shape {shape}, from the "
                f"outputs of {self.layer!r} to the vectors of the classes, got {self.replaces!r} "
                f"with {'none' if found is None else tuple(found.shape)}"
            )

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        message = self.method.broadcast(server_state, client_id)
        return {**message, "closed_form": server_state["closed_form"]}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        progress = server_state["closed_form"]
        progress = {**progress, "round": progress["round"] + 1, "solved": 0}
        return {**self.method.server_update(server_state, total), "closed_form": progress}

    def _with_head(self, server_state: Tree, head: Tensor) -> Tree:
        progress = {**server_state["closed_form"], "solved": 1}
        if self.when == "end":
            return {**server_state, "closed_form": {**progress, "weight": head}}
        parameters, layer = server_state["parameters"], self.replaces or HEAD
        weight, bias = f"{layer}.weight", f"{layer}.bias"
        targets = _targets(self.method, server_state)
        if self.replaces is not None and targets is not None:
            head = head @ normalize(targets.to(head))
        if bias in parameters and head.any():
            head = head * self.row_length / head.square().sum(dim=0).mean().sqrt()
        new = {weight: head.T.to(parameters[weight].dtype)}
        new |= {bias: torch.zeros_like(parameters[bias])} if bias in parameters else {}
        return {**server_state, "parameters": {**parameters, **new}, "closed_form": progress}

    @override
    def scored(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree] | None:
        progress = message["closed_form"]
        if "weight" not in progress:
            return self.method.scored(message, client, client_state)
        local, context = self.start(message, client, client_state)
        head = {"weight": progress["weight"]}
        if self.random_features is not None:
            head |= self.random_features.draw(progress["width"], progress["seed"])
        return local, {**context, "shared": {**context.get("shared", {}), "closed_form": head}}

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        """Outputs of the head at the end, once it is solved for; those of the method before."""
        head = context.get("shared", {}).get("closed_form")
        if head is None:
            return self.method.predict(model, local, batch, context)
        z = features_at(self.method, self.layer, model, local, batch, context)
        z = normalize(z.to(head["weight"].dtype))
        z = z if self.random_features is None else self.random_features(z, head)
        return z @ head["weight"]


def _targets(method: Method, server_state: Tree) -> Tensor | None:
    return method.class_targets(server_state) if isinstance(method, FixedTargets) else None
