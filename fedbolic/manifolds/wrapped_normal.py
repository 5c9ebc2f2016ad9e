"""Wrapped normal distribution: a normal of a tangent space, moved to the manifold by ``expmap``."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution, constraints
from typing_extensions import override

from fedbolic.formulas.lorentz_maps import hyperboloid_log_at_origin
from fedbolic.formulas.numerics import in_float32, per_point, square, to_point
from fedbolic.manifolds.lorentz import Lorentz
from fedbolic.manifolds.manifold import PointTensor, Scalars
from fedbolic.manifolds.poincare import Poincare

_NEAR = 1.0
"""Squared length in radii below which ``log(sinh(r) / r)`` is computed by its series."""

_LOG_SINHC = (
    1 / 6,
    -1 / 180,
    1 / 2835,
    -1 / 37800,
    1 / 467775,
    -691 / 3831077250,
    2 / 127702575,
    -3617 / 2605132530000,
    43867 / 350813659321125,
    -174611 / 15313294652906250,
    155366 / 147926426347074375,
    -236364091 / 2423034863565078262500,
    1315862 / 144228265688397515625,
    -3392780147 / 3952575621190533915703125,
    6892673020804 / 84913182070036240111050234375,
    -7709321041217 / 999843529136357459316262500000,
)


class WrappedNormal(Distribution):
    r"""Wrapped normal distribution on the hyperboloid or in the ball, with reparametrised samples.

    A normal vector :math:`v` of the tangent space at the origin is transported to ``loc`` and
    mapped to the manifold: :math:`z = \exp_\mu(\mathrm{PT}_{0 \to \mu}(v))`. Its coordinates refer
    to an orthonormal basis, the axes of the space, so ``scale`` is in units of distance in both
    models, whose densities agree at corresponding points. With the dimension :math:`n`,

    .. math:: \log p(z) = \log \mathcal N(v; 0, \mathrm{diag}(\sigma^2))
        - (n - 1) \log \frac{\sinh(\sqrt c \, |v|)}{\sqrt c \, |v|}

    is the density with respect to the volume of the manifold; in the coordinates of the ball, this
    volume is :math:`(2 / (1 - c |z|^2))^n \, dz`. In the limit ``c = 0`` it is a normal density.
    The support is the whole manifold.

    Args:
        space: Space of the distribution; a tensor ``c`` broadcasts with the batch axes.
        loc: Points of ``space``; the mode and the Fréchet mean.
        scale: Standard deviations above 0, one per coordinate of the tangent space, in units of
            distance: of any shape that broadcasts with ``(*batch, n)``.
        validate_args: Whether to inspect the values of arguments; ``False`` for ``vmap`` and
            ``compile``. torch's own default is not used, as importing its compiler changes it.

    Raises:
        ValueError: If the shapes or dtypes do not fit, ``space`` is of another kind, or, with
            validation, ``scale`` is not positive and finite or ``loc`` is not on ``space``.

    References:
        Nagano et al. (2019), Alg. 1 and 2, arXiv:1902.02992; Mathieu et al. (2019), Sec. 3,
        arXiv:1901.06033.

    Example:
        >>> space = Lorentz(c=1.0)
        >>> normal = WrappedNormal(space, space.origin(3), torch.tensor([0.5, 0.5]))
        >>> normal.log_prob(space.origin(3))
        tensor(-0.4516)
        >>> normal.rsample((10,)).shape
        torch.Size([10, 3])
    """

    has_rsample = True

    def __init__(
        self,
        space: Lorentz | Poincare,
        loc: Tensor,
        scale: Tensor,
        *,
        validate_args: bool = True,
    ) -> None:
        batch, dim = _checked_shapes(space, loc, scale)
        if validate_args:
            _require_values(space, loc, scale)
        self.space = space
        self.loc = loc.expand(*batch, loc.shape[-1])
        self.scale = scale.expand(*batch, dim)
        super().__init__(batch, loc.shape[-1:], validate_args=validate_args)

    @property
    @override
    def arg_constraints(self) -> dict[str, constraints.Constraint]:
        """Constraints of the parameters, by name."""
        positive = constraints.independent(constraints.positive, 1)
        return {"loc": _PointsOf(self.space), "scale": positive}

    @property
    @override
    def support(self) -> constraints.Constraint:
        """The points of the space."""
        return _PointsOf(self.space)

    @property
    @override
    def mean(self) -> Tensor:
        """The Fréchet mean, which is ``loc`` by symmetry."""
        return self.loc

    @property
    @override
    def mode(self) -> Tensor:
        """The point of the largest density, ``loc``."""
        return self.loc

    @override
    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> "WrappedNormal":
        """The same distributions with the batch axes expanded."""
        loc = self.loc.expand(*batch_shape, self.loc.shape[-1])
        expanded = WrappedNormal(self.space, loc, self.scale, validate_args=False)
        expanded._validate_args = self._validate_args
        return expanded

    @override
    def rsample(
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*shape ambient"]:
        """Samples that are differentiable in ``loc``, ``scale`` and the curvature.

        Args:
            sample_shape: Leading axes of the result.
            generator: Source of randomness on the device of ``loc``; torch's global one by default.

        Returns:
            Points of shape ``(*sample_shape, *batch_shape, ambient)``; those beyond the range of
            the dtype are clamped.
        """
        shape = (*sample_shape, *self.scale.shape)
        options = {"dtype": self.loc.dtype, "device": self.loc.device}
        noise = torch.randn(shape, generator=generator, **options)
        return _wrap(self.space, self.loc, noise * self.scale)

    @override
    def log_prob(self, value: PointTensor) -> Scalars:
        """Logarithm of the density at points, with respect to the volume of the manifold.

        Args:
            value: Points of the space that broadcast with the batch axes.

        Raises:
            ValueError: With validation, if the shape does not fit or a point is not on the space.
        """
        if self._validate_args:
            self._validate_sample(value)
        return _log_density(self.space, self.loc, self.scale, value)


class _PointsOf(constraints.Constraint):
    """Constraint that the last axis holds a point of a space."""

    event_dim = 1

    def __init__(self, space: Lorentz | Poincare) -> None:
        self.space = space
        super().__init__()

    @override
    def check(self, value: Tensor) -> Bool[Tensor, "*batch"]:
        return self.space.contains(value)

    def __repr__(self) -> str:
        return f"point of {self.space}"


def _checked_shapes(space: object, loc: Tensor, scale: Tensor) -> tuple[torch.Size, int]:
    """The batch shape and the dimension of a distribution after a check of its arguments."""
    if not isinstance(space, Lorentz | Poincare):
        raise ValueError(
            f"space must be Lorentz or Poincare, got {space!r}: for flat space use Normal of torch"
        )
    timed = isinstance(space, Lorentz)
    if loc.ndim == 0 or loc.shape[-1] < 1 + timed:
        raise ValueError(
            f"loc must be points with {1 + timed} or more coordinates along the last axis"
            f"{' (time first)' if timed else ''}, got shape {tuple(loc.shape)}: use space.origin "
            "or space.expmap0"
        )
    if not loc.is_floating_point() or loc.dtype != scale.dtype:
        raise ValueError(
            f"loc and scale must have one floating dtype, got {loc.dtype} and {scale.dtype}: "
            "use scale.to(loc.dtype)"
        )
    dim = loc.shape[-1] - timed
    width = scale.shape[-1] if scale.ndim else 1
    if width not in (1, dim):
        raise ValueError(
            f"scale must have {dim} or 1 numbers along its last axis, one per tangent coordinate "
            f"of loc {tuple(loc.shape)}, got shape {tuple(scale.shape)}: use scale.unsqueeze(-1) "
            "for one number per distribution"
        )
    batches = [loc.shape[:-1], scale.shape[:-1]]
    batches += [space.c.shape] if isinstance(space.c, Tensor) else []
    try:
        return torch.broadcast_shapes(*batches), dim
    except RuntimeError as error:
        raise ValueError(
            "the batch axes of loc, scale and the curvature must broadcast, got "
            f"{', '.join(str(tuple(batch)) for batch in batches)}: unsqueeze the missing axes"
        ) from error


def _require_values(space: Lorentz | Poincare, loc: Tensor, scale: Tensor) -> None:
    """Refuse scales that are not positive and locations off the space."""
    invalid = ~((scale > 0) & scale.isfinite())
    if bool(invalid.any()):
        raise ValueError(
            f"scale must be positive and finite, got {scale[invalid][0].item()}: use softplus or "
            "exp of an unconstrained number"
        )
    space.require(loc)


def _unit_length(space: Lorentz | Poincare) -> float:
    """Length of the axes of the tangent space at the origin."""
    return 1.0 if isinstance(space, Lorentz) else 2.0


@to_point
def _wrap(space: Lorentz | Poincare, loc: Tensor, v: Tensor) -> Tensor:
    """The point of the space that belongs to a normal vector."""
    v = v / _unit_length(space)
    u = space.lift(v) if isinstance(space, Lorentz) else v
    return space.expmap(loc, space.transp0(loc, u))


@in_float32
def _log_density(
    space: Lorentz | Poincare, loc: Tensor, scale: Tensor, value: Tensor
) -> Float[Tensor, "*batch"]:
    if isinstance(space, Lorentz):
        v = hyperboloid_log_at_origin(loc, value, per_point(space.c, loc))
    else:
        v = 2 * space.transp(loc, torch.zeros_like(loc), space.logmap(loc, value))
    normal = -((v / scale).square() / 2 + scale.log()).sum(-1)
    t = (per_point(space.c, v) * square(v)).squeeze(-1)
    dim = v.shape[-1]
    return normal - dim / 2 * math.log(2 * math.pi) - (dim - 1) * _log_sinhc(t)


def _log_sinhc(t: Tensor) -> Tensor:
    """``log(sinh(sqrt t) / sqrt t)`` for ``t >= 0``, smooth through 0, without overflow."""
    small = t < _NEAR
    near = torch.where(small, t, 0.0)
    power = torch.full_like(near, _LOG_SINHC[-1])
    for coefficient in _LOG_SINHC[-2::-1]:
        power = power * near + coefficient
    r = torch.where(small, 1.0, t).sqrt()
    far = r - (2 * r).log() + (-(-2 * r).exp()).log1p()
    return torch.where(small, power * near, far)
