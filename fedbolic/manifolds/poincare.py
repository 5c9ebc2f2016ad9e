"""The Poincaré ball, which is conformal and includes flat space as the curvature 0."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from fedbolic.formulas import ball_formulas as formulas
from fedbolic.formulas import ball_maps
from fedbolic.formulas.analytic import asinhc, atanhc
from fedbolic.formulas.centroids import centroid, normalized_weights
from fedbolic.formulas.fused import at_once, without_graph
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
from fedbolic.formulas.registrar import points, replaced_by
from fedbolic.manifolds import pairwise
from fedbolic.manifolds.curvature import LEARNABLE_C, Curvature, checked_curvature
from fedbolic.manifolds.manifold import Manifold, Mode, PointTensor, Scalars


def _all_pairs(space: "Poincare", x: Tensor, y: Tensor, *, mode: Mode = "auto") -> Tensor:
    del mode
    return formulas.ball_pairs(x, y, space.c)


@dataclass(frozen=True, eq=False)
class Poincare(Manifold):
    r"""Poincaré ball :math:`\{x \in \mathbb R^n : c \, |x|^2 < 1\}`.

    .. math:: \langle u, v \rangle_x = \Bigl(\frac{2}{1 - c |x|^2}\Bigr)^2 u \cdot v

    Lengths at the origin are twice the Euclidean ones: ``expmap0(u)`` lies at distance
    :math:`2 |u|`. Every operation is analytic in ``c`` at 0, where the space is flat with the
    metric :math:`4 \, u \cdot v`. Points outside the ball are clamped to its boundary, where
    ``c |x|^2`` is below 1 by a few ``eps``.

    Args:
        c: Minus the sectional curvature, 0 or more: a number, a ``Curvature``, or a tensor (see
            ``Manifold``).

    References:
        Ganea et al. (2018), Sec. 2, arXiv:1805.09112; the forms without cancellation are ours.

    Example:
        >>> space = Poincare(c=1.0)
        >>> x = space.expmap0(torch.tensor([1.0, 0.0]))
        >>> space.dist0(x)
        tensor(2.)
    """

    c: Tensor | float = LEARNABLE_C

    def __init__(self, c: Curvature | Tensor | float = 1.0) -> None:
        object.__setattr__(self, "c", c)
        checked_curvature(self.c, flat=True)

    def _read(self, x: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """``x`` clamped to the ball, and the gap ``1 - c |x|^2``."""
        return formulas.ball_read(x, per_point(self.c, x), dtype or x.dtype)

    @override
    def within(self, x: PointTensor, dtype: torch.dtype | None = None) -> PointTensor:
        point = self._read(x, dtype)[0]
        return point.clone() if point is x else point

    @override
    @at_once(ball_maps.BallDist)
    @in_float32
    def dist(self, x: PointTensor, y: PointTensor) -> Scalars:
        return ball_maps.ball_dist(x, y, per_point(self.c, x)).squeeze(-1)

    @override
    @in_float32
    def dist0(self, x: PointTensor) -> Scalars:
        q = square(self._read(x)[0])
        return (2 * root(q) * atanhc(q, per_point(self.c, q))).squeeze(-1)

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
        space = Poincare(c.squeeze(-1) if isinstance(c, Tensor) and c.ndim else c)
        return pairwise.product(space._parts(x), space._parts(y), c)

    def _parts(self, x: Tensor) -> pairwise.GapParts:
        x, gap = self._read(x)
        return x / gap, square(x) / gap, 1 / gap

    @at_once(ball_maps.BallSum)
    @to_point
    def mobius_add(self, x: PointTensor, y: PointTensor) -> PointTensor:
        r"""Möbius sum :math:`x \oplus y`: ``y`` translated as the origin is translated to ``x``.

        .. math:: x \oplus y = \frac{(1 - c |x|^2) s + c |s|^2 x}
            {(1 - c |x|^2)(1 - c |y|^2) + c |s|^2}, \quad s = x + y

        This form equals Eq. (1) of the reference and has no difference of large terms.

        References:
            Ganea et al. (2018), Eq. (1), arXiv:1805.09112.

        Example:
            >>> Poincare().mobius_add(torch.tensor([0.5, 0.0]), torch.tensor([-0.5, 0.0]))
            tensor([0., 0.])
        """
        return ball_maps.ball_sum(*self._read(x), *self._read(y), per_point(self.c, x))

    @override
    @at_once(ball_maps.BallExpmap)
    @to_point
    def expmap(self, x: PointTensor, u: PointTensor) -> PointTensor:
        return ball_maps.ball_expmap(x, u, per_point(self.c, x))

    @override
    @at_once(ball_maps.BallExpmap0)
    @to_point
    def expmap0(self, u: PointTensor) -> PointTensor:
        return ball_maps.ball_expmap0(u, per_point(self.c, u))

    @override
    @at_once(ball_maps.BallLogmap)
    @in_float32
    def logmap(self, x: PointTensor, y: PointTensor) -> PointTensor:
        return ball_maps.ball_logmap(x, y, per_point(self.c, x))

    @override
    @at_once(ball_maps.BallLogmap0)
    @in_float32
    def logmap0(self, y: PointTensor) -> PointTensor:
        return ball_maps.ball_logmap0(y, per_point(self.c, y))

    @override
    @at_once(ball_maps.BallTransp)
    @in_float32
    def transp(self, x: PointTensor, y: PointTensor, v: PointTensor) -> PointTensor:
        return ball_maps.ball_transp(x, y, v, per_point(self.c, x))

    @override
    @without_graph(ball_maps.ball_expmap_transp)
    def expmap_transp(
        self, x: PointTensor, u: PointTensor, v: PointTensor
    ) -> tuple[PointTensor, PointTensor]:
        return super().expmap_transp(x, u, v)

    @override
    @in_float32
    def transp0(self, y: PointTensor, v: PointTensor) -> PointTensor:
        return v * self._read(y)[1]

    @override
    @to_point
    def projx(self, x: PointTensor) -> PointTensor:
        return formulas.ball_project(x, per_point(self.c, x), x.dtype)

    @override
    @in_float32
    def proju(self, x: PointTensor, u: PointTensor) -> PointTensor:
        return u + torch.zeros_like(x)

    @override
    @in_float32
    def egrad2rgrad(self, x: PointTensor, g: PointTensor) -> PointTensor:
        return g * (self._read(x)[1] / 2).square()

    @override
    @without_graph(ball_maps.ball_gradient)
    def squared_gradient(self, x: PointTensor, g: PointTensor) -> tuple[PointTensor, Scalars]:
        return super().squared_gradient(x, g)

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
        s = x - p
        c = per_point(self.c, s)
        sinh = 2 * dot(gap_p * s - c * square(s) * p, unit(a)) / (gap_x * gap_p)
        return (sinh * asinhc(sinh * sinh, c)).squeeze(-1)

    @override
    @to_point
    def centroid(
        self,
        points: Float[Tensor, "*#batch n ambient"],
        weights: Float[Tensor, "*#batch n"] | None = None,
    ) -> PointTensor:
        w, c = normalized_weights(points, weights), per_point(pairwise.per_set(self).c, points)
        return centroid(points, w, c, hyperboloid=False, timed=False, images=False).squeeze(-2)

    @override
    def contains(self, x: PointTensor) -> Bool[Tensor, "*#batch"]:
        wide = x.float() if x.dtype in HALVES else x
        c = per_point(self.c, wide)
        return ((c * square(wide) < 1) & wide.isfinite().all(-1, keepdim=True)).squeeze(-1)
