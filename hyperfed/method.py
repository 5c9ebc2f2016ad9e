"""HyperFed: fixed prototypes in the Poincare ball and consistent aggregation.

A round of the paper's Algorithm 1: every client attracts the features of its examples to the fixed
prototypes of their classes and repels them from the others (:mod:`hyperfed.loss`); the server takes
a step that no client's update opposes (:mod:`fedbolic.federated.aggregators.min_norm`).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.figure import DiscFigure, EmbeddingFigure, Figure
from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import HOLDOUT, Client, FederatedData
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.min_norm import MinNorm
from fedbolic.federated.contract.capabilities import FixedTargets, Reporting
from fedbolic.federated.contract.classifier_method import ClassifierMethod
from fedbolic.federated.contract.server_optimizer import ServerOptimizer, ServerSGD
from fedbolic.federated.contract.traits import Traits
from fedbolic.manifolds import Manifold, Poincare
from fedbolic.nn.network.backbone import Backbone, ConvNet
from fedbolic.nn.network.model import Model
from fedbolic.optim import SGD, Optimizer
from hyperfed.class_tree import Arrangement
from hyperfed.loss import Objective, Triplet, clip, excess, mix, mixup_loss, num_beyond
from hyperfed.prototypes import check_slope, prototypes, turned

_HEAD = "head.weight"
"""Key of the prototypes, which are among the parameters if they are trained."""

_LOSS = "loss."
"""Prefix of the loss's learned numbers among the parameters."""

_NUM_DRAWN = 2000
"""Test examples in a figure; more would hide one another."""

CLIPPED = "clipped"
"""Buffer name of the number of features clipped in this round."""


@dataclass(frozen=True)
class HyperFed(ClassifierMethod, Reporting, FixedTargets):
    r"""Hyperbolic prototype learning with consistent aggregation of client updates.

    .. math:: \theta \leftarrow \theta + v, \quad v \leftarrow \beta v + \Delta^*, \quad
        \Delta_k = \theta_k - \theta, \quad \theta_k = \text{local steps on } \ell(z, w)

    The prediction is the class of the nearest prototype; for fixed prototypes, that is the one with
    the largest cosine.

    The variants of the paper's ablation are settings: *Geodesic*, *Averaged* (``aggregator`` Mean),
    *Shared* and *Fixed* (``prototypes`` ``trained`` and ``own``). H-CE is ``CrossEntropy`` with
    Mean, and H-CE-M the same with ``ServerSGD(momentum=0.5)``.

    Departs from the paper: features are clipped, because its step size of 0.3 gives NaN in the
    first rounds otherwise; the consistent step is exact (see ``MinNorm``).

    Args:
        backbone: Network from inputs to features; their width is the dimension of the ball.
        rounds: Communication rounds, at least 1.
        optimizer: Local optimiser, re-initialized each round.
        objective: Local loss.
        slope: The prototypes' distance from the origin over the ball's radius, in (0, 1).
        arrangement: Places of the prototypes, such as ``ClassTree``; ``None`` for directions as far
            apart as possible (paper).
        prototypes: ``fixed``, the same at all clients (paper); ``trained`` from these and shared;
            ``own``, fixed and rotated differently at each client, so there is no global model.
        clip: Largest norm of a feature, above 0, in units of length at the origin; ``None`` for no
            limit.
        mixup: Weight of the authors' mixup cross-entropy, at least 0; 0 in the paper.
        aggregator: Rule that combines the clients' updates into one step.
        server_optimizer: The server's step along the aggregated delta.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Liao et al. (2023), Algorithm 1, arXiv:2307.14384.

    Example:
        >>> HyperFed(ConvNet(dim=2), lr=0.1, slope=0.8).aggregator.normalize
        'none'
    """

    backbone: Backbone = ConvNet()
    rounds: int = 100
    lr: float = 0.3
    optimizer: Optimizer = SGD()  # type: ignore[override]  # a constant of the base
    objective: Objective = Triplet()
    slope: float = 0.9
    arrangement: Arrangement | None = None
    prototypes: Literal["fixed", "trained", "own"] = "fixed"
    clip: float | None = 3.1
    mixup: float = 0.0
    aggregator: Aggregator = MinNorm()
    server_optimizer: ServerOptimizer = ServerSGD()  # type: ignore[override]  # likewise

    head_type = nn.Identity  # its logits are the features
    counted: ClassVar = {"train/clipped": CLIPPED}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_slope(self.slope)
        if self.clip is not None:
            check.positive(clip=self.clip)
        check.not_negative(mixup=self.mixup)
        if self.prototypes == "own" and self.arrangement is not None:
            raise ValueError(
                "prototypes='own' gives every client the places in another order, which makes an "
                "arrangement meaningless: leave one of them out"
            )

    @property
    @override
    def traits(self) -> Traits:
        return dataclasses.replace(super().traits, global_model=self.prototypes != "own")

    @property
    @override
    def spaces(self) -> Mapping[str, Manifold]:  # type: ignore[override]  # by a setting
        return {_HEAD: Poincare()} if self.prototypes == "trained" else {}

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        parameters, buffers = self.model(meta).init(rng.at("model").number())
        place = prototypes if self.arrangement is None else self.arrangement.prototypes
        points = place(meta.num_classes, self.backbone.width_for(meta), self.slope)
        _warn_of_margin(self.objective, points)
        points = points.to(next(iter(parameters.values())).dtype)
        if self.prototypes == "trained":
            parameters = {**parameters, _HEAD: points}
        learned = {_LOSS + name: x.to(points.dtype) for name, x in self.objective.init().items()}
        parameters = {**parameters, **learned}
        return {
            **self.server_state(parameters, buffers),
            "prototypes": {} if self.prototypes == "trained" else {_HEAD: points},
            "seed": rng.at("own").number(),
        }

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        fixed = message["prototypes"]
        if self.prototypes == "own":
            generator = Rng(message["seed"]).at("client", client.id).generator()
            fixed = {_HEAD: turned(fixed[_HEAD], generator)}
        local, context = super().start(message, client, client_state)
        own = {"prototypes": fixed, "loss": self.objective.known(client)}
        return local, {**context, "own": own}

    @override
    def draw(self, num_steps: int, batch_size: int, generator: torch.Generator) -> Params:
        drawn = self.objective.draw(num_steps, batch_size, generator)
        if not self.mixup:
            return drawn
        partner = torch.rand(num_steps, batch_size, generator=generator)
        return {**drawn, "partner": partner, "share": torch.rand(num_steps, generator=generator)}

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        body, points, learned = _split(parameters, context)
        running = _without(buffers, CLIPPED)
        z, running = model(body, running, batch["x"], training=True)
        batch = {**batch, **learned, **context["own"]["loss"]}
        losses = self.objective.losses(clip(z, self.clip), points, batch)
        if self.mixup:
            mixed, running = model(body, running, mix(batch), training=True)
            losses = losses + self.mixup * mixup_loss(mixed, points, batch, self.slope)
        beyond = buffers[CLIPPED] + num_beyond(z, self.clip, batch["mask"])
        return losses, {**running, CLIPPED: beyond}

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        """Distance to the origin minus that to each prototype: the largest is the nearest's."""
        body, points, _ = _split(local["parameters"], context)
        z, _ = model(body, _without(local["buffers"], CLIPPED), batch["x"])
        return -excess(clip(z, self.clip), points)

    @override
    def class_targets(self, server_state: Tree) -> Tensor | None:
        return server_state["prototypes"].get(_HEAD)

    @override
    def figures(self, server_state: Tree, data: FederatedData) -> dict[str, Figure]:
        """Test examples: in the disc with the prototypes, or as vectors if ``dim`` is not 2."""
        client = data.holdout
        if client is None or self.prototypes == "own":
            return {}
        local, context = self.start(self.broadcast(server_state, HOLDOUT), client, {})
        batch = client.test.at(torch.arange(min(len(client.test), _NUM_DRAWN)))
        z = self.features(self.model(client.meta), local, batch, context)
        z = clip(z, self.clip).float()
        if z.shape[-1] != 2:
            return {"test": EmbeddingFigure(z, batch["y"], of="tangent vectors at the origin")}
        _, points, _ = _split(local["parameters"], context)
        return {"test": DiscFigure(Poincare().expmap0(z), batch["y"], marks=points.float())}


def _split(parameters: Params, context: Tree) -> tuple[Params, Tensor, Params]:
    """The network's parameters, the prototypes, and the learned numbers of the loss."""
    values = {**parameters, **context["own"]["prototypes"]}
    body = {n: x for n, x in values.items() if n != _HEAD and not n.startswith(_LOSS)}
    return body, values[_HEAD], tree.part(values, _LOSS)


def _without(values: Params, left_out: str) -> Params:
    return {name: value for name, value in values.items() if name != left_out}


def _warn_of_margin(objective: Objective, points: Tensor) -> None:
    if isinstance(objective, Triplet):
        least = float(Poincare().cdist(points, points).fill_diagonal_(torch.inf).min())
        if objective.margin > least:
            logger.warning(
                "margin %g is larger than the least distance between prototypes, %.3g: the loss "
                "can never be 0; choose a smaller margin or a larger slope",
                objective.margin,
                least,
            )
