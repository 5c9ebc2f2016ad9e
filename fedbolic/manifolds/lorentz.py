"""The Lorentz model (hyperboloid), which still distinguishes points far from the origin."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from fedbolic.formulas import lorentz_formulas as formulas
from fedbolic.formulas import lorentz_maps
from fedbolic.formulas.analytic import asinhc, gap_length
from fedbolic.formulas.centroids import centroid, normalized_weights
from fedbolic.formulas.fused import at_once, without_graph
from fedbolic.formulas.numerics import (
    HALVES,
    HYPERBOLOID_RADIUS,
    TOLERANCE,
    dot,
    finite,
    in_float32,
    per_matrix,
    per_point,
    root,
    square,
    to_point,
)
from fedbolic.formulas.registrar import points, replaced_by
from fedbolic.manifolds import pairwise
from fedbolic.manifolds.curvature import LEARNABLE_C, Curvature, checked_curvature
from fedbolic.manifolds.manifold import Manifold, Mode, PointTensor, Scalars


def _all_pairs(space: "Lorentz", x: Tensor, y: Tensor, *, mode: Mode = "auto") -> Tensor:
    del mode
    return formulas.hyperboloid_pairs(x, y, space.c)


@dataclass(frozen=True, eq=False)
class Lorentz(Manifold):
    r"""The upper hyperboloid :math:`\{x : \langle x, x \rangle = -1/c, \; x_0 > 0\}`, time first.

    .. math:: \langle x, y \rangle = -x_0 y_0 + x_1 y_1 + \dots + x_n y_n

    Operations read only the space coordinates :math:`x_s` of points and tangents; every result has
    the time coordinate that follows from these. Points beyond the range of the dtype (41 radii in
    float32, 346 in float64) are clamped. With :math:`C = \sqrt{1 + c |x_s|^2}` the time coordinate
    in radii, all distances are computed from

    .. math:: \sinh^2 \frac{\sqrt c \, d}{2} = \frac c 4
        \Bigl| \sqrt{\tfrac{C_y}{C_x}} x_s - \sqrt{\tfrac{C_x}{C_y}} y_s \Bigr|^2
        + \frac{(C_x - C_y)^2}{4 C_x C_y}

    whose terms are not negative and whose differences are taken before any rounding. Far out,
    ``dist`` takes the angle between the points instead, and is right to rounding to 30 radii.
    ``logmap`` and ``centroid``, which do not, are right to rounding to 10 radii in float32 and 20
    in float64. ``transp`` has a relative error of up to :math:`4 C^2` roundings, with the time
    coordinate of the farther point: below 2 percent to 6 radii in float32 and 16 in float64.

    Args:
        c: Minus the sectional curvature, above 0: a number, a ``Curvature``, or a tensor (see
            ``Manifold``).

    References:
        Nickel and Kiela (2018), Sec. 3, arXiv:1806.03417; the forms without cancellation are ours.

    Example:
        >>> space = Lorentz(c=1.0)
        >>> x = space.expmap0(space.lift(torch.tensor([1.0, 0.0])))
        >>> x
        tensor([1.5431, 1.1752, 0.0000])
        >>> space.dist(x, x)
        tensor(0.)
    """

    c: Tensor | float = LEARNABLE_C

    def __init__(self, c: Curvature | Tensor | float = 1.0) -> None:
        object.__setattr__(self, "c", c)
        checked_curvature(self.c, flat=False)

    def _read(self, x: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """Clamped space coordinates of ``x``, and the time coordinate in radii."""
        return self._clamped(x[..., 1:], dtype)

    def _clamped(self, s: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        return formulas.hyperboloid_read(s, per_point(self.c, s), dtype or s.dtype)

    def _point(self, s: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The point with the space coordinates ``s``, whose squares may overflow."""
        return formulas.hyperboloid_point_of(s, per_point(self.c, s), dtype or s.dtype)

    def _tangent(self, s: Tensor, time: Tensor, u: Tensor) -> Tensor:
        """The tangent with the space coordinates ``u`` at the point that ``_read`` gave."""
        return formulas.tangent_at(s, time, u, per_point(self.c, s))

    def _split(self, s: Tensor, time: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """A Euclidean vector and a number whose squares sum to the squared norm of the tangent."""
        along = dot(s / time, u)
        c = per_point(self.c, s)
        return u - c * along * (s / time), c**0.5 * along / time

    @override
    def within(self, x: PointTensor, dtype: torch.dtype | None = None) -> PointTensor:
        return self._point(x[..., 1:], dtype)

    def lift(self, v: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim+1"]:
        """The tangent ``[0, v]`` at the origin, with the space coordinates ``v``.

        Example:
            >>> Lorentz().lift(torch.ones(2))
            tensor([0., 1., 1.])
        """
        return functional.pad(v, (1, 0))

    @override
    def origin(
        self,
        *shape: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Float[Tensor, "*batch ambient"]:
        return self._point(torch.zeros(*shape[:-1], shape[-1] - 1, dtype=dtype, device=device))

    @override
    @at_once(lorentz_maps.HyperboloidDist)
    @in_float32
    def dist(self, x: PointTensor, y: PointTensor) -> Scalars:
        return lorentz_maps.hyperboloid_dist(x, y, per_point(self.c, x)).squeeze(-1)

    @override
    @in_float32
    def dist0(self, x: PointTensor) -> Scalars:
        q = square(self._read(x)[0])
        return gap_length(q, per_point(self.c, q)).squeeze(-1) / 2

    @override
    @in_float32
    @replaced_by(_all_pairs, points(2, mode="auto"))
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
        space = Lorentz(c.squeeze(-1) if isinstance(c, Tensor) and c.ndim else c)
        return pairwise.product(space._parts(x), space._parts(y), c)

    def _parts(self, x: Tensor) -> pairwise.GapParts:
        s, time = self._read(x)
        return s / 2, square(s) / (2 + 2 * time), (1 + time) / 2

    @override
    @at_once(lorentz_maps.HyperboloidExpmap)
    @to_point
    def expmap(self, x: PointTensor, u: PointTensor) -> PointTensor:
        return lorentz_maps.hyperboloid_expmap(x, u, per_point(self.c, x))

    @override
    @at_once(lorentz_maps.HyperboloidExpmap0)
    @to_point
    def expmap0(self, u: PointTensor) -> PointTensor:
        return lorentz_maps.hyperboloid_expmap0(u, per_point(self.c, u))

    @override
    @at_once(lorentz_maps.HyperboloidLogmap)
    @in_float32
    def logmap(self, x: PointTensor, y: PointTensor) -> PointTensor:
        return lorentz_maps.hyperboloid_logmap(x, y, per_point(self.c, x))

    @override
    @at_once(lorentz_maps.HyperboloidLogmap0)
    @in_float32
    def logmap0(self, y: PointTensor) -> PointTensor:
        return lorentz_maps.hyperboloid_logmap0(y, per_point(self.c, y))

    @override
    @at_once(lorentz_maps.HyperboloidTransp)
    @in_float32
    def transp(self, x: PointTensor, y: PointTensor, v: PointTensor) -> PointTensor:
        return lorentz_maps.hyperboloid_transp(x, y, v, per_point(self.c, x))

    @override
    @without_graph(lorentz_maps.hyperboloid_expmap_transp)
    def expmap_transp(
        self, x: PointTensor, u: PointTensor, v: PointTensor
    ) -> tuple[PointTensor, PointTensor]:
        return super().expmap_transp(x, u, v)

    @override
    @in_float32
    def transp0(self, y: PointTensor, v: PointTensor) -> PointTensor:
        (y, time), v = self._read(y), v[..., 1:]
        return self._tangent(y, time, v + per_point(self.c, y) * dot(y, v) / (1 + time) * y)

    @override
    @to_point
    def projx(self, x: PointTensor) -> PointTensor:
        return self.within(x)

    @override
    @in_float32
    def proju(self, x: PointTensor, u: PointTensor) -> PointTensor:
        (s, time), first, u = self._read(x), u[..., :1], u[..., 1:]
        scale = per_point(self.c, s) ** 0.5
        off = first - scale * dot(s / time, u)
        return self._tangent(s, time, u - scale * time * off * s)

    @override
    @in_float32
    def egrad2rgrad(self, x: PointTensor, g: PointTensor) -> PointTensor:
        (s, time), first, g = self._read(x), g[..., :1], g[..., 1:]
        c = per_point(self.c, s)
        slope = c * dot(s, g) + c**0.5 * time * first
        return self._tangent(s, time, g + slope * s)

    @override
    @without_graph(lorentz_maps.hyperboloid_gradient)
    def squared_gradient(self, x: PointTensor, g: PointTensor) -> tuple[PointTensor, Scalars]:
        return super().squared_gradient(x, g)

    @override
    @in_float32
    def inner(self, x: PointTensor, u: PointTensor, v: PointTensor | None = None) -> Scalars:
        s, time = self._read(x)
        across, along = self._split(s, time, u[..., 1:])
        if v is None:
            return finite(square(across) + along * along).squeeze(-1)
        across_v, along_v = self._split(s, time, v[..., 1:])
        return finite(dot(across, across_v) + along * along_v).squeeze(-1)

    @override
    @in_float32
    def norm(self, x: PointTensor, u: PointTensor) -> Scalars:
        (s, time), u = self._read(x), u[..., 1:]
        q = formulas.tangent_square(s, time, u, per_point(self.c, s))
        return root(q).squeeze(-1)

    @override
    @in_float32
    def dist2plane(self, x: PointTensor, p: PointTensor, a: PointTensor) -> Scalars:
        (x, time_x), (p, time_p), a = self._read(x), self._read(p), a[..., 1:]
        c = per_point(self.c, x)
        length = root(formulas.tangent_square(p, time_p, a, c))
        a = a / torch.where(length > 0, length, 1.0)
        toward = formulas.minkowski_product(p, time_p, x, time_x, a, c)
        largest = HYPERBOLOID_RADIUS[x.dtype] ** 0.5
        sinh = toward * (largest / (c**0.5 * toward.abs()).clamp(min=largest))
        return (sinh * asinhc(sinh * sinh, c)).squeeze(-1)

    @override
    @to_point
    def centroid(
        self,
        points: Float[Tensor, "*#batch n ambient"],
        weights: Float[Tensor, "*#batch n"] | None = None,
    ) -> PointTensor:
        w, c = normalized_weights(points, weights), per_point(pairwise.per_set(self).c, points)
        return centroid(points, w, c, hyperboloid=True, timed=True, images=False).squeeze(-2)

    @override
    def contains(self, x: PointTensor) -> Bool[Tensor, "*#batch"]:
        wide = x.float() if x.dtype in HALVES else x
        first = wide[..., :1]
        right = self._point(wide[..., 1:], x.dtype)[..., :1]
        near = (first - right).abs() <= TOLERANCE * torch.finfo(x.dtype).eps * right
        return (near & wide.isfinite().all(-1, keepdim=True)).squeeze(-1)
