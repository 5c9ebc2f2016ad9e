"""Batch norm, layer norm and RMS norm of points."""

from abc import ABC
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedbolic.core import check
from fedbolic.formulas.fused import Formula, fused
from fedbolic.formulas.numerics import dot
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.manifolds.curvature import load_numbers
from fedbolic.nn.functional.coordinates import space_part, with_space_part
from fedbolic.nn.functional.recentred import centred, recentred, weighted_centroid
from fedbolic.nn.functional.space import HyperbolicModule, wide
from fedbolic.nn.functional.tangent import exp_factors, length_of, log_factor, points_at


class PointBatchNorm(HyperbolicModule[Lorentz | Poincare], ABC):
    """Base of batch norms: points are moved from their centroid to the origin and scaled there.

    Arguments and errors are those of ``HyperbolicBatchNorm``.
    """

    mixes_examples: ClassVar[bool] = True
    """Declaration read by ``Model.mixes_examples``."""

    per_coordinate: ClassVar[bool]
    """True for a scale per space coordinate, False for one scale of all distances from 0."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        manifold: Lorentz | Poincare,
        num_features: int,
        *,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold)
        check.at_least(1, num_features=num_features)
        check.positive(eps=eps)
        check.rate(momentum=momentum)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        zeros = torch.zeros(num_features, device=device, dtype=dtype)
        scales = (num_features,) if self.per_coordinate else ()
        self.weight = nn.Parameter(zeros.new_ones(scales or 1)) if affine else None
        load_numbers(self)
        self.bias = nn.Parameter(zeros.clone()) if affine else None
        self.register_buffer("running_mean", zeros)
        self.register_buffer("running_var", zeros.new_ones(scales))

    def reset_running_stats(self) -> None:
        """Reset the running mean to the origin and the running variance to 1."""
        self.running_mean.zero_()
        self.running_var.fill_(1)

    def reset_parameters(self) -> None:
        """Re-initialise the parameters and the running statistics."""
        self.reset_running_stats()
        if self.weight is not None and self.bias is not None:
            nn.init.ones_(self.weight)
            nn.init.zeros_(self.bias)

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch ambient"]:
        self.check(x, self.num_features, self.running_mean)
        space, points = self.manifold, wide(x).reshape(-1, x.shape[-1])
        if self.training and len(points) < 2:
            raise ValueError(
                f"x must have 2 or more points in training, got shape {tuple(x.shape)}: "
                "call eval() to normalise single points"
            )
        mean, v = centred(space, points, None if self.training else wide(self.running_mean))
        if not self.per_coordinate:  # tangents, as long as distances
            v = v * log_factor(space.c, length_of(v))
        if self.training:
            squares = v.square()
            variance = squares.mean(0) if self.per_coordinate else squares.sum(-1).mean()
            self._follow(space, mean, variance, len(points))
        else:
            variance = wide(self.running_var)
        v = v * (variance + self.eps).rsqrt()
        if self.weight is not None:
            v = v * wide(self.weight)
        if not self.per_coordinate:
            v = v * exp_factors(space.c, length_of(v))[0]
        y = recentred(space, v, None if self.bias is None else wide(self.bias))
        return self.rounded(y.reshape(x.shape), x, self.running_mean)

    @torch.no_grad()
    def _follow(self, space: Lorentz | Poincare, mean: Tensor, variance: Tensor, n: int) -> None:
        """Move the running statistics towards those of a batch of ``n`` points."""
        both = torch.cat((wide(self.running_mean).unsqueeze(0), mean))
        along = torch.linspace(
            1 - self.momentum, self.momentum, 2, dtype=mean.dtype, device=mean.device
        )
        self.running_mean.copy_(weighted_centroid(space, both, along).squeeze(0))
        kept = (1 - self.momentum) * wide(self.running_var)
        moved = kept + self.momentum * n / (n - 1) * variance
        # a compiled graph of torch 2.13 does not write to a float64 buffer without axes
        self.running_var.unsqueeze(0).copy_(moved.unsqueeze(0))

    @override
    def extra_repr(self) -> str:
        return self.describe(
            num_features=self.num_features,
            eps=self.eps,
            momentum=self.momentum,
            affine=self.weight is not None,
        )


class HyperbolicBatchNorm(PointBatchNorm):
    r"""Batch norm of points, with a learnt centroid and a learnt scale about it.

    With :math:`\mu` the centroid of the batch and :math:`T_{a \to b}` the translation that maps
    :math:`a` to :math:`b` along the geodesic between them,

    .. math:: y = T_{0 \to \beta} \, z, \quad z_s = \frac{\gamma}{\sqrt{\sigma^2 + \epsilon}}
        \odot s, \quad s = (T_{\mu \to 0} \, x)_s, \quad
        \sigma^2 = \frac 1 N \sum_i s_i^2

    where :math:`(\cdot)_s` are space coordinates on the hyperboloid. These sum to 0 when the
    centroid is the origin, and still do after scaling, so the centroid of the outputs is exactly
    :math:`\beta`. (The reference scales tangents, which moves the centroid.) In flat space the
    layer is ordinary batch norm.

    Training updates running statistics. Evaluation uses them in place of those of the batch, so an
    output depends on its own input only. ``running_mean`` holds the space coordinates of a point
    that moves along geodesics; ``running_var`` is unbiased (``N / (N - 1)``) as in torch.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``.
        num_features: Dimensions of the space, without time.
        eps: Number added to the variance, above 0.
        momentum: Weight of a new batch in the running statistics, in [0, 1].
        affine: Whether to learn the scale :math:`\gamma` (``weight``, initially 1) and the tangent
            at the origin that maps to :math:`\beta` (``bias``, initially 0).
        device: Device of the parameters and buffers.
        dtype: Data type of the parameters and buffers.

    Shapes:
        Points ``(*, num_features)``, on the hyperboloid ``(*, num_features + 1)``, to points of the
        same shape.

    Raises:
        ValueError: If a number is out of range or the space is refused; when called, if the inputs
            have the wrong width or dtype, or are a single point in training.

    References:
        Bdeir et al. (2024), arXiv:2303.15919; Ioffe and Szegedy (2015), arXiv:1502.03167.

    Example:
        >>> layer = HyperbolicBatchNorm(Poincare(c=1.0), 2)
        >>> x = Poincare().expmap0(0.3 * torch.randn(64, 2) + 0.5)
        >>> Poincare().centroid(layer(x)).norm() < 1e-5
        tensor(True)
    """

    per_coordinate = True


class GyroBatchNorm(PointBatchNorm):
    r"""Batch norm of points by their Fréchet variance: distances are scaled, directions kept.

    .. math:: y = T_{0 \to \beta} \, \exp_0 \Bigl( \frac{\gamma}{\sqrt{\sigma^2 + \epsilon}}
        \log_0 T_{\mu \to 0} \, x \Bigr), \quad \sigma^2 = \frac 1 N \sum_i d(x_i, \mu)^2

    with the centroid :math:`\mu` of the batch and the translation :math:`T_{a \to b}` along the
    geodesic from :math:`a` to :math:`b`. In gyrovector terms, this is :math:`\beta \oplus (r
    \otimes (\ominus \mu \oplus x))` with the scale :math:`r`. Distances within the batch keep
    their ratios at the centroid, where ``HyperbolicBatchNorm`` scales every coordinate by its own
    number. Before training, the root mean square of the distances from the centroid is 1 unit of
    length, in any number of dimensions.

    Running statistics and evaluation are those of ``HyperbolicBatchNorm``; ``running_var`` and
    ``weight`` are single numbers.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``. Both take the
            same parameters to the same points.
        num_features: Dimensions of the space, without time.
        eps: Number added to the variance, above 0.
        momentum: Weight of a new batch in the running statistics, in [0, 1].
        affine: Whether to learn the scale :math:`\gamma` (``weight``, initially 1) and the tangent
            at the origin that maps to :math:`\beta` (``bias``, initially 0).
        device: Device of the parameters and buffers.
        dtype: Data type of the parameters and buffers.

    Shapes:
        Points ``(*, num_features)``, on the hyperboloid ``(*, num_features + 1)``, to points of the
        same shape.

    Raises:
        ValueError: If a number is out of range or the space is refused; when called, if the inputs
            have the wrong width or dtype, or are a single point in training.

    References:
        Shi et al. (2026), arXiv:2602.23981, where it is GyroLBN; Chen et al. (2024), GyroBN, ICLR.
        Written from their abstracts and the definition of GyroBN: the centroid is the closed-form
        one, the variance is taken about it.

    Example:
        >>> layer = GyroBatchNorm(Lorentz(c=1.0), 2)
        >>> x = Lorentz().expmap0(Lorentz().lift(3 * torch.randn(64, 2)))
        >>> Lorentz().dist0(layer(x)).square().mean() < 1.2
        tensor(True)
    """

    per_coordinate = False


class CoordinateNorm(HyperbolicModule[Lorentz | Poincare], ABC):
    """Base of norms of the space coordinates of single points.

    Arguments and errors are those of ``HyperbolicLayerNorm``.
    """

    shifts: ClassVar[bool]
    """True for a learnt ``bias`` next to ``weight``."""

    def __init__(
        self,
        manifold: Lorentz | Poincare,
        num_features: int,
        *,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold)
        check.at_least(1, num_features=num_features)
        check.positive(eps=eps)
        self.num_features, self.eps = num_features, eps
        ones = torch.ones(num_features, device=device, dtype=dtype)
        self.weight = nn.Parameter(ones) if affine else None
        self.bias = nn.Parameter(torch.zeros_like(ones)) if affine and self.shifts else None

    def reset_parameters(self) -> None:
        """Re-initialise the parameters."""
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @override
    def extra_repr(self) -> str:
        affine = self.weight is not None
        return self.describe(num_features=self.num_features, eps=self.eps, affine=affine)


class HyperbolicLayerNorm(CoordinateNorm):
    r"""Layer norm of the space coordinates on the hyperboloid; the time coordinate is recomputed.

    .. math:: y_s = \gamma \odot \frac{x_s - m}{\sqrt{v + \epsilon}} + \beta

    with the mean :math:`m` and the variance :math:`v` of the coordinates of one point. Before
    training, outputs thus lie about :math:`\operatorname{asinh} \sqrt{c n}` radii from the origin.
    Points of the ball are normalised through their images on the hyperboloid.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``.
        num_features: Dimensions of the space, without time.
        eps: Number added to the variance, above 0.
        affine: Whether to learn :math:`\gamma` (``weight``, initially 1) and :math:`\beta`
            (``bias``, initially 0).
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Shapes:
        Points ``(*, num_features)``, on the hyperboloid ``(*, num_features + 1)``, to points of the
        same shape.

    Raises:
        ValueError: If a number is out of range or the space is refused; when called, if the inputs
            have the wrong width or dtype.

    References:
        Ba et al. (2016), arXiv:1607.06450; Yang et al. (2024), arXiv:2407.01290.

    Example:
        >>> HyperbolicLayerNorm(Lorentz(c=1.0), 2)(torch.tensor([[3.0, 2.0, -2.0]])).shape
        torch.Size([1, 3])
    """

    shifts = True

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch ambient"]:
        self.check(x, self.num_features, self.weight)
        space = self.manifold
        s = functional.layer_norm(space_part(space, x), (self.num_features,), eps=self.eps)
        if self.weight is None or self.bias is None:
            return self.rounded(with_space_part(space, s), x)
        s = s * wide(self.weight) + wide(self.bias)
        return self.rounded(with_space_part(space, s), x, self.weight)


class _RMSNorm(Formula):
    """``rms_norm`` of torch with its derivative in closed form."""

    unread = True

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        s, gain, eps = inputs
        size = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
        scale = (size * size / s.shape[-1] + eps).rsqrt()
        return s * scale * gain, scale

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (s, gain, _), (_, scale), (g,) = inputs, parts, grad_outputs
        scaled = g * scale
        by_s = scaled * gain
        bend = dot(by_s, s) * (scale * scale / -s.shape[-1])
        return torch.addcmul(by_s, s, bend), scaled * s if isinstance(gain, Tensor) else None


_rms_norm = fused(_RMSNorm)


def rms_norm(
    s: Float[Tensor, "*batch n"], weight: Float[Tensor, " n"] | None, eps: float
) -> Float[Tensor, "*batch n"]:
    """RMS norm of space coordinates or tangents, in float32 or float64."""
    return _rms_norm(s, 1.0 if weight is None else wide(weight), eps)


class HyperbolicRMSNorm(CoordinateNorm):
    r"""RMS norm of the space coordinates on the hyperboloid; the time coordinate is recomputed.

    .. math:: y_s = \gamma \odot \frac{x_s}{\sqrt{|x_s|^2 / n + \epsilon}}

    in :math:`n` dimensions. Directions are kept before training, and outputs lie about
    :math:`\operatorname{asinh} \sqrt{c n}` radii from the origin. Points of the ball are normalised
    through their images on the hyperboloid.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``.
        num_features: Dimensions of the space, without time.
        eps: Number added to the mean square, above 0.
        affine: Whether to learn :math:`\gamma` (``weight``, initially 1).
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Shapes:
        Points ``(*, num_features)``, on the hyperboloid ``(*, num_features + 1)``, to points of the
        same shape.

    Raises:
        ValueError: If a number is out of range or the space is refused; when called, if the inputs
            have the wrong width or dtype.

    References:
        Zhang and Sennrich (2019), arXiv:1910.07467; He et al. (2025), arXiv:2504.08912.

    Example:
        >>> HyperbolicRMSNorm(Lorentz(c=1.0), 2)(torch.tensor([[5.0, 2.4, -3.2]])).shape
        torch.Size([1, 3])
    """

    shifts = False

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch ambient"]:
        self.check(x, self.num_features, self.weight)
        inputs = (x,) if self.weight is None else (x, self.weight)
        s = rms_norm(space_part(self.manifold, x), self.weight, self.eps)
        return self.rounded(points_at(self.manifold, s), *inputs)
