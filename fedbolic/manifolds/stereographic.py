"""The stereographic model: ball, flat space and sphere as one, with a curvature of any sign."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from fedbolic.formulas import signed
from fedbolic.formulas.centroids import mean_image, normalized_weights
from fedbolic.formulas.numerics import (
    HALVES,
    dot,
    finite,
    in_float32,
    per_matrix,
    per_point,
    root,
    square,
    to_point,
    unit,
)
from fedbolic.manifolds import pairwise
from fedbolic.manifolds.curvature import LEARNABLE_C, Curvature
from fedbolic.manifolds.manifold import Manifold, Mode, PointTensor, Scalars


@dataclass(frozen=True, eq=False)
class Stereographic(Manifold):
    r"""Stereographic model of constant curvature of either sign, smooth through flat space.

    .. math:: \{x \in \mathbb R^n : c \, |x|^2 < 1\}, \qquad
        \langle u, v \rangle_x = \Bigl(\frac{2}{1 - c |x|^2}\Bigr)^2 u \cdot v

    As in every model, ``c`` is *minus* the sectional curvature: ``c > 0`` is the Poincaré ball,
    ``c = 0`` is flat space with the metric :math:`4 \, u \cdot v`, and ``c < 0`` is the sphere of
    radius :math:`1 / \sqrt{-c}`, projected from the antipode of the origin. The papers below write
    :math:`\kappa = -c`. Every operation is analytic in ``c``, so an ordinary parameter may learn
    the sign: ``Stereographic(parameter)`` needs no bounds.

    Laws of the sphere hold up to the cut locus. Distances are at most :math:`\pi / \sqrt{-c}`;
    ``expmap`` returns to its start after :math:`2 \pi / \sqrt{-c}`, and ``logmap`` is the shorter
    way. Where no geodesic is the shortest, at antipodes, ``logmap`` and ``transp`` are finite but
    arbitrary. The antipode of the origin has no coordinates; points are clamped ``2 eps`` radii
    before it. ``centroid`` is the point on the ray through the mean in the surrounding space, and
    ``frechet_mean`` is unique for points within a quarter of a great circle of one point.

    Args:
        c: Minus the sectional curvature: any finite number, a ``Curvature``, or a tensor (see
            ``Manifold``).

    Raises:
        ValueError: If ``c`` is a number that is not finite.

    References:
        Bachmann et al. (2020), Sec. 2.3, arXiv:1911.05076; Skopek et al. (2020), Sec. 2,
        arXiv:1911.08411; the forms without cancellation are ours.

    Example:
        >>> sphere = Stereographic(c=-1.0)
        >>> x = sphere.expmap0(torch.tensor([0.5, 0.0]))
        >>> sphere.dist0(x)
        tensor(1.)
        >>> sphere.dist(torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.0]))
        tensor(3.1416)
    """

    c: Tensor | float = LEARNABLE_C

    def __init__(self, c: Curvature | Tensor | float = 0.0) -> None:
        object.__setattr__(self, "c", c)
        if not isinstance(self.c, Tensor) and not math.isfinite(self.c):
            raise ValueError(
                f"c must be finite, got {self.c}: it is minus the sectional curvature, above 0 for "
                "a hyperbolic space and below 0 for a sphere"
            )

    def _read(self, x: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """``x`` clamped to the space, and the gap ``1 - c |x|^2``."""
        return signed.signed_read(x, per_point(self.c, x), dtype or x.dtype)

    def _half(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Both points and their gaps, and ``sinh^2`` of half their distance in radii over ``c``."""
        (x, gap_x), (y, gap_y) = self._read(x), self._read(y)
        return x, gap_x, y, gap_y, square(x - y) / gap_x / gap_y

    @override
    def within(self, x: PointTensor, dtype: torch.dtype | None = None) -> PointTensor:
        return self._read(x, dtype)[0]

    @override
    @in_float32
    def dist(self, x: PointTensor, y: PointTensor) -> Scalars:
        x, _, y, _, q = self._half(x, y)
        c = per_point(self.c, q)
        cos2 = signed.cos_square(x, y, c * q, c)
        return (2 * root(q) * signed.length_ratio(q, c, cos2)).squeeze(-1)

    @override
    @in_float32
    def dist0(self, x: PointTensor) -> Scalars:
        q = square(self._read(x)[0])
        return (2 * root(q) * signed.atan_ratio(q, per_point(self.c, q))).squeeze(-1)

    @override
    @in_float32
    def cdist(
        self,
        x: Float[Tensor, "*#batch n ambient"],
        y: Float[Tensor, "*#batch m ambient"],
        *,
        mode: Mode = "auto",
    ) -> Float[Tensor, "*#batch n m"]:
        return pairwise.cdist(self, x, y, mode)

    @override
    def product(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        c = per_matrix(self.c, x)
        space = replace(self, c=c.squeeze(-1) if isinstance(c, Tensor) and c.ndim else c)
        (x, gap_x), (y, gap_y) = space._read(x), space._read(y)
        ends = square(x) / gap_x / gap_y.mT + square(y).mT / gap_x / gap_y.mT
        tiny = torch.finfo(x.dtype).tiny
        # positive, so that the derivative of the root is finite
        q = (ends - 2 * (x / gap_x) @ (y / gap_y).mT).clamp_min(tiny)
        cos2 = (1 + c * q).clamp_min(0)
        with torch.no_grad():  # near antipodes, too, a pair is computed again
            share = torch.minimum(q / ends.clamp_min(tiny), cos2)
        return 2 * root(q) * signed.length_ratio(q, c, cos2), share

    @to_point
    def mobius_add(self, x: PointTensor, y: PointTensor) -> PointTensor:
        r"""Möbius sum :math:`x \oplus y`: ``y`` translated as the origin is translated to ``x``.

        .. math:: x \oplus y = \frac{(1 - c |x|^2) s + c |s|^2 x}
            {(1 - c |x|^2)(1 - c |y|^2) + c |s|^2}, \quad s = x + y

        References:
            Bachmann et al. (2020), Eq. (1), arXiv:1911.05076, with :math:`\kappa = -c`.

        Example:
            >>> Stereographic(0.0).mobius_add(torch.tensor([0.5, 1.0]), torch.tensor([-0.5, 1.0]))
            tensor([0., 2.])
        """
        return self._add(*self._read(x), *self._read(y))

    def _add(self, x: Tensor, gap_x: Tensor, y: Tensor, gap_y: Tensor) -> Tensor:
        s, c = x + y, per_point(self.c, x)
        t = c * square(s)
        gaps = gap_x * gap_y
        return self.within((gap_x * s + t * x) / (gaps * self._cos2(x, -y, t / gaps, c)))

    @staticmethod
    def _cos2(x: Tensor, y: Tensor, t: Tensor, c: Tensor | float) -> Tensor:
        """``cos_square``, not 0 at antipodes."""
        return signed.cos_square(x, y, t, c).clamp_min(torch.finfo(x.dtype).eps ** 2)

    def _step(self, u: Tensor) -> Tensor:
        """The point ``u tan(r) / r`` of half the tangent's length in radii ``r``."""
        q = square(u)
        return finite(u * signed.tan_ratio(q, per_point(self.c, q)))

    @override
    @to_point
    def expmap(self, x: PointTensor, u: PointTensor) -> PointTensor:
        x, gap = self._read(x)
        return self._add(x, gap, *self._read(self._step(u / gap)))

    @override
    @to_point
    def expmap0(self, u: PointTensor) -> PointTensor:
        return self.within(self._step(u))

    @override
    @in_float32
    def logmap(self, x: PointTensor, y: PointTensor) -> PointTensor:
        x, gap_x, y, gap_y, q = self._half(x, y)
        c = per_point(self.c, q)
        t = c * q
        cos2 = self._cos2(x, y, t, c)
        ratio = signed.length_ratio(q, c, cos2) * cos2.rsqrt() * gap_x
        return torch.addcmul(ratio / gap_y * (y - x), -t * ratio, x)

    @override
    @in_float32
    def logmap0(self, y: PointTensor) -> PointTensor:
        y, _ = self._read(y)
        q = square(y)
        return y * signed.atan_ratio(q, per_point(self.c, q))

    @override
    @in_float32
    def transp(self, x: PointTensor, y: PointTensor, v: PointTensor) -> PointTensor:
        # gyr[y, -x] v, written in s = y - x, times the ratio of the conformal factors
        x, gap_x, y, gap_y, q = self._half(x, y)
        s, c = y - x, per_point(self.c, x)
        size = v.detach().abs().amax(-1, keepdim=True).clamp_min(1)  # products of v may overflow
        v, t = v / size, c * q
        along_x, along_s = dot(c * x, v), dot(c * s, v) / gap_y
        on_x = along_s - t * along_x
        on_s = (1 / gap_x - 1) * along_s + (1 / gap_x + t) * along_x
        turned = v + 2 * (on_x * x - on_s * s) / self._cos2(x, y, t, c)
        return finite(turned * (gap_y / gap_x) * size)

    @override
    @in_float32
    def transp0(self, y: PointTensor, v: PointTensor) -> PointTensor:
        return finite(v * self._read(y)[1])

    @override
    @to_point
    def projx(self, x: PointTensor) -> PointTensor:
        return signed.signed_project(x, per_point(self.c, x), x.dtype)

    @override
    @in_float32
    def proju(self, x: PointTensor, u: PointTensor) -> PointTensor:
        return u + torch.zeros_like(x)

    @override
    @in_float32
    def egrad2rgrad(self, x: PointTensor, g: PointTensor) -> PointTensor:
        half = self._read(x)[1] / 2
        return finite(g * half * half)

    @override
    @in_float32
    def inner(self, x: PointTensor, u: PointTensor, v: PointTensor | None = None) -> Scalars:
        product = dot(u, u if v is None else v)
        return finite(product * (2 / self._read(x)[1]).square()).squeeze(-1)

    @override
    @in_float32
    def norm(self, x: PointTensor, u: PointTensor) -> Scalars:
        return (2 * root(square(u)) / self._read(x)[1]).squeeze(-1)

    @override
    @in_float32
    def dist2plane(self, x: PointTensor, p: PointTensor, a: PointTensor) -> Scalars:
        (x, gap_x), (p, gap_p) = self._read(x), self._read(p)
        s, c, a = x - p, per_point(self.c, x), unit(a)
        sine = 2 * dot(gap_p * s - c * square(s) * p, a) / gap_x / gap_p
        q = sine * sine
        cos2 = 1 + c * q
        if signed.may_be_round(c):
            rest = _distance_from_axis(x, p, a, signed.round_part(c)[1])
            cos2 = torch.where(c * q < signed.HALFWAY, rest, cos2)
        return (sine * signed.length_ratio(q, c, cos2)).squeeze(-1)

    @override
    @to_point
    def centroid(
        self,
        points: Float[Tensor, "*#batch n ambient"],
        weights: Float[Tensor, "*#batch n"] | None = None,
    ) -> PointTensor:
        space = replace(self, c=self.c.unsqueeze(-1)) if isinstance(self.c, Tensor) else self
        x, gap = space._read(points)
        c, factor = per_point(space.c, x), 2 / gap
        if not isinstance(c, Tensor):
            made = _round_centroid if c < 0 else _open_centroid
            return self.within(made(x, factor, weights, c).squeeze(-2))
        sphere = c < 0
        mean = _open_centroid(
            x, torch.where(sphere, 2.0, factor), weights, torch.where(sphere, 0.0, c)
        )
        on_sphere = _round_centroid(x, factor, weights, torch.where(sphere, c, -1.0))
        return self.within(torch.where(sphere, on_sphere, mean).squeeze(-2))

    @override
    def contains(self, x: PointTensor) -> Bool[Tensor, "*#batch"]:
        wide = x.float() if x.dtype in HALVES else x
        c = per_point(self.c, wide)
        return ((c * square(wide) < 1) & wide.isfinite().all(-1, keepdim=True)).squeeze(-1)


def _distance_from_axis(x: Tensor, p: Tensor, a: Tensor, k: Tensor | float) -> Tensor:
    """Squared distance of the point of the unit sphere from the axis of a great sphere.

    Args:
        x: Points.
        p: Points of the great sphere.
        a: Its normal at ``p``, of Euclidean length 1.
        k: Sectional curvature.
    """
    across, along = signed.on_sphere(x, k)
    tilt = 2 * dot(p, a) / (1 + k * square(p))
    axis, axis_along = a - k * tilt * p, -(k**0.5) * tilt
    share = dot(across, axis) + along * axis_along
    return square(across - share * axis) + (along - share * axis_along).square()


def _open_centroid(x: Tensor, factor: Tensor, weights: Tensor | None, c: Tensor | float) -> Tensor:
    """The centroid for a curvature ``c`` of 0 or more."""
    mean = mean_image(factor * x, factor - 1, normalized_weights(x, weights), c)
    return mean / (1 + (1 + c * square(mean)).sqrt())


def _round_centroid(x: Tensor, factor: Tensor, weights: Tensor | None, c: Tensor | float) -> Tensor:
    """The point of the sphere on the ray through the weighted mean in the surrounding space."""
    w = normalized_weights(x, weights)
    across = (w * factor * x).sum(-2, keepdim=True)
    along = (w * (factor - 1)).sum(-2, keepdim=True)
    width = -c * square(across)
    size = root(along.square() + width)
    # the other half of the sphere: 1 + along / size would cancel
    ahead = along > 0
    near = across / torch.where(ahead, size + along, 1.0)
    wide = torch.where(ahead | (width == 0), 1.0, width)
    return torch.where(ahead, near, across * ((size - along) / wide))
