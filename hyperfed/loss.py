"""Losses on hyperbolic distances between features and class prototypes.

A feature ``z`` is a tangent vector at the origin of the Poincare ball; its point is ``expmap0(z)``.
No distance is computed from that point, which rounds to the boundary for ``|z|`` of 8 or more.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, normalize
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.types import Params
from fedbolic.data.contract.client import Client
from fedbolic.formulas import numerics
from fedbolic.formulas.analytic import gap_length

Features = Float[Tensor, "batch dim"]
Prototypes = Float[Tensor, "classes dim"]
Labels = Int[Tensor, " batch"]
Losses = Float[Tensor, " batch"]

FAR = 60.0
"""Distance from the origin beyond which the sum of this distance and :func:`excess` is accurate.

``exp`` of this value is finite in float32.
"""


def prototype_distance(z: Features, prototypes: Prototypes) -> Float[Tensor, "batch classes"]:
    r"""Geodesic distances from the points of features to the prototypes.

    .. math:: d(z, w) = 2 \operatorname{asinh} \sqrt{\sinh^2 \tfrac{a - \rho}{2} + \tfrac12
        \sinh a \, \sinh \rho \, (1 - c)}, \quad a = 2 |z|, \; \rho = 2 \operatorname{artanh} |w|

    with c the cosine of the angle at the origin: the hyperbolic law of cosines without its
    cancellation. It equals Eq. (1) applied to the points of Eq. (6), for ``z`` of any length.

    Args:
        z: Tangent vectors at the origin, of any length.
        prototypes: Points of the ball of curvature -1, not at the origin.

    References:
        Liao et al. (2023), Eq. (1) and (6), arXiv:2307.14384.

    Example:
        >>> prototype_distance(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.5, 0.0]]))  # log 3
        tensor([[1.0986]])
    """
    radius, q = _law_of_cosines(z, prototypes)
    near = radius.clamp(max=FAR)
    return torch.where(radius < FAR, gap_length(near.exp() * q / 4, 1.0), radius + _far(radius, q))


def excess(z: Features, prototypes: Prototypes) -> Float[Tensor, "batch classes"]:
    r"""Distance from a feature's point to a prototype, minus its distance from the origin.

    .. math:: d(z, w) - d(z, 0) = 2 \log \tfrac12 \bigl(\sqrt q + \sqrt{q + 4 e^{-a}}\bigr),
        \quad q = 4 e^{-a} \sinh^2 \tfrac{d(z, w)}{2}

    Its absolute value is at most the prototype's distance from the origin, however long ``z`` is.
    Differences of distances, the softmax and the nearest prototype can therefore be computed from
    it without loss of precision. As the length of ``z`` tends to infinity, it converges to the
    Busemann function.

    Args:
        z: Tangent vectors at the origin, of any length.
        prototypes: Points of the ball of curvature -1, not at the origin.

    Example:
        >>> excess(torch.tensor([[1e4, 0.0]]), torch.tensor([[0.5, 0.0], [-0.5, 0.0]]))
        tensor([[-1.0986,  1.0986]])
    """
    return _far(*_law_of_cosines(z, prototypes))


def _law_of_cosines(z: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """Distances ``a`` of the features' points from the origin, and ``4 exp(-a) sinh^2(d / 2)``."""
    tiny = torch.finfo(z.dtype).tiny
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    size = torch.linalg.vector_norm(prototypes, dim=-1, keepdim=True)
    direction, rho = prototypes / size.clamp_min(tiny), 2 * size.atanh().T
    a, towards = 2 * length, z / length.clamp_min(tiny)
    # 1 - cos, exact for small angles
    gap = (towards.unsqueeze(-2) - direction).square().sum(-1) / 2
    # at the origin the angle has no derivative, but sinh(a) times its cosine has one
    across = torch.where(length > 0, (-2 * a).expm1() * gap, 4 * linear(z, direction))
    near = (-rho).exp() * (rho - a).expm1().square()
    return a, torch.addcmul(near, rho.sinh(), across, value=-1)


def _far(a: Tensor, q: Tensor) -> Tensor:
    # at q = 0 the root has no derivative, but that of q is 0
    positive = q.clamp_min(torch.finfo(q.dtype).tiny)
    return 2 * ((positive.sqrt() + (q + 4 * (-a).exp()).sqrt()) / 2).log()


def clip(z: Features, length: float | None) -> Features:
    """Features scaled down to at most ``length``, if there is a limit; directions are kept."""
    if length is None:
        return z
    return z * (length / numerics.root(numerics.square(z)).clamp(min=length))


def num_beyond(z: Features, length: float | None, mask: Bool[Tensor, " batch"]) -> Tensor:
    """Number of features that :func:`clip` scales down, of those that the mask has."""
    if length is None:
        return torch.zeros((), device=z.device)
    return ((z.detach().norm(dim=-1) > length) & mask).sum()


def cosines(z: Features, prototypes: Prototypes) -> Float[Tensor, "batch classes"]:
    """Cosines of the angles at the origin between features and prototypes."""
    return linear(normalize(z), normalize(prototypes))


class Objective(ABC):
    """Local training loss as a function of features, prototypes and labels."""

    def draw(self, num_steps: int, batch_size: int, generator: torch.Generator) -> Params:
        """Random numbers of a client's round, as in ``GradientMethod.draw``; by default empty."""
        del num_steps, batch_size, generator
        return {}

    def init(self) -> Params:
        """Learned numbers of the loss, trained and averaged with the network; by default empty."""
        return {}

    def known(self, client: Client) -> Params:
        """Values that the loss needs of a client, such as its class counts; by default empty."""
        del client
        return {}

    @abstractmethod
    def losses(self, z: Features, prototypes: Prototypes, batch: Params) -> Losses:
        """Loss of each example.

        Args:
            z: Features.
            prototypes: One prototype per class.
            batch: Labels ``y``, the draws of the step, and by name what :meth:`init` and
                :meth:`known` gave.
        """


@dataclass(frozen=True)
class Triplet(Objective):
    r"""Hyperbolic triplet loss: the own prototype must be nearer than the others, by a margin.

    .. math:: \ell = \max\{d(z, w_y) - d(z, w_j) + m, 0\}, \quad j \ne y

    Args:
        margin: Margin m, above 0, in units of length. A margin above the least distance between
            prototypes can never be met; their radius, the slope, sets that distance.
        negatives: ``one``, a class j drawn uniformly at each visit (paper); ``all``, the mean over
            the other classes; ``hard``, the other class of largest loss.

    Raises:
        ValueError: If ``margin`` is not positive.

    References:
        Liao et al. (2023), Eq. (7), arXiv:2307.14384.

    Example:
        >>> z, two = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.5, 0.0], [-0.5, 0.0]])
        >>> Triplet(margin=3.0, negatives="all").losses(z, two, {"y": torch.tensor([1])})
        tensor([3.])
    """

    margin: float = 3.0
    negatives: Literal["one", "all", "hard"] = "one"

    def __post_init__(self) -> None:
        check.positive(margin=self.margin)

    @override
    def draw(self, num_steps: int, batch_size: int, generator: torch.Generator) -> Params:
        if self.negatives != "one":
            return {}
        return {"negative": torch.rand(num_steps, batch_size, generator=generator)}

    @override
    def losses(self, z: Features, prototypes: Prototypes, batch: Params) -> Losses:
        away, y = excess(z, prototypes), batch["y"].unsqueeze(-1)
        hinge = (away.gather(-1, y) - away + self.margin).relu()
        if self.negatives == "one":
            return hinge.gather(-1, negative(batch["negative"], y, len(prototypes))).squeeze(-1)
        others = hinge.scatter(-1, y, 0.0)
        if self.negatives == "hard":
            return others.amax(dim=-1)
        return others.sum(dim=-1) / (len(prototypes) - 1)


def negative(
    uniform: Float[Tensor, " batch_or_more"], y: Int[Tensor, "batch 1"], num_classes: int
) -> Int[Tensor, "batch 1"]:
    """Uniformly drawn classes other than ``y``, from uniform numbers in [0, 1)."""
    drawn = (uniform[: len(y)] * (num_classes - 1)).long().clamp(max=num_classes - 2).unsqueeze(-1)
    return drawn + (drawn >= y)


@dataclass(frozen=True)
class Geodesic(Objective):
    """Distance to the own prototype only (the paper's ablation of that name)."""

    @override
    def losses(self, z: Features, prototypes: Prototypes, batch: Params) -> Losses:
        return prototype_distance(z, prototypes).gather(-1, batch["y"].unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class CrossEntropy(Objective):
    r"""Cross-entropy of a softmax over negative distances to all prototypes (H-CE).

    .. math:: \ell = -\log \frac{e^{-\tau d(z, w_y)}}{\sum_j e^{-\tau d(z, w_j)}}

    This loss is not in the paper. It is no evidence for curvature: the hyperbolic distance to a
    far point is the logarithm of a Euclidean one, and for long features the loss tends to the
    :class:`~hyperfed.flat.Harmonic` loss with ``exponent`` 2 tau.

    Args:
        scale: Inverse temperature tau of the softmax, above 0.

    Raises:
        ValueError: If ``scale`` is not positive.
    """

    scale: float = 2.0

    def __post_init__(self) -> None:
        check.positive(scale=self.scale)

    @override
    def losses(self, z: Features, prototypes: Prototypes, batch: Params) -> Losses:
        return cross_entropy(-self.scale * excess(z, prototypes), batch["y"], reduction="none")


def mixup_loss(mixed: Features, prototypes: Prototypes, batch: Params, scale: float) -> Losses:
    """Mixup cross-entropy on scaled cosines, as in the authors' code.

    Args:
        mixed: Features of the inputs from :func:`mix`.
        prototypes: One prototype per class.
        batch: Labels ``y``, ``mask``, and the draws ``partner`` and ``share``.
        scale: Factor of the cosines.
    """
    logits = scale * cosines(mixed, prototypes)
    share, partners = mixing(batch)
    own, other = (
        cross_entropy(logits, y, reduction="none") for y in (batch["y"], batch["y"][partners])
    )
    return share * own + (1 - share) * other


def mix(batch: Params) -> Tensor:
    """Mixup inputs: each input blended with that of its partner."""
    share, partners = mixing(batch)
    return share * batch["x"] + (1 - share) * batch["x"][partners]


def mixing(batch: Params) -> tuple[Float[Tensor, ""], Int[Tensor, " batch"]]:
    """Weight of the own input, from Beta(1/2, 1/2), and a partner for each unmasked example."""
    uniform = batch["partner"][: len(batch["y"])]
    partners = torch.where(batch["mask"], uniform, 2.0).argsort()
    return (batch["share"] * torch.pi / 2).sin().square(), partners
