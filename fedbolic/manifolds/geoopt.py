"""Adapter from fedbolic's manifolds to ``geoopt.Manifold``; the only file that imports geoopt."""

from collections.abc import Sequence
from typing import Any

import geoopt
import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.manifolds import gyro
from fedbolic.manifolds.curvature import Curvature
from fedbolic.manifolds.geoopt_gyro import GyroOperations, of_coordinates, of_points
from fedbolic.manifolds.lorentz import Lorentz
from fedbolic.manifolds.manifold import Manifold


class Bridge(GyroOperations, geoopt.Manifold):
    """Manifold for code that was written for geoopt: its parameters, optimisers and layers.

    Every operation is that of ``space``; geoopt's formulas are not used. Names, arguments and
    keywords are those of geoopt's own manifolds, with ``dim`` for the axis of coordinates and ``k``
    for the number that geoopt's manifold of the same model takes. Results always lie on the space,
    so ``project`` has no effect. ``GEOOPT.md`` in this folder lists every public operation of
    geoopt, with its counterpart here and where conventions differ.

    Args:
        space: Space to wrap. A ``Curvature`` in it is a module of the bridge, and learnt with it.

    Shapes:
        Coordinates along ``dim``, by default the last axis; the other axes broadcast. Numbers have
        the shape without this axis, or with 1 in its place for ``keepdim=True``.

    Example:
        >>> from fedbolic.manifolds import Poincare
        >>> ball = Bridge(Poincare(c=1.0))  # in the place of geoopt.PoincareBall(c=1.0)
        >>> x = geoopt.ManifoldParameter(ball.origin(2, 3), manifold=ball)
        >>> geoopt.optim.RiemannianAdam([x]).param_groups[0]["params"][0].manifold
        Poincare(c=1.0) manifold
        >>> ball.dist0(torch.full((3, 5), 0.1), dim=0).shape, ball.radius
        (torch.Size([5]), tensor(1.))
    """

    ndim = 1
    reversible = True  # the retraction is the exponential map
    __scaling__ = geoopt.Stereographic.__scaling__

    def __init__(self, space: Manifold) -> None:
        super().__init__()
        self.space = space
        self.curvature = space.curvature if isinstance(space.curvature, Curvature) else None
        self.name = str(space)

    @override
    def __repr__(self) -> str:
        return f"{self.space} manifold"

    @property
    def c(self) -> Tensor:
        """Minus the sectional curvature."""
        return torch.as_tensor(self.space.c)

    @property
    def k(self) -> Tensor:
        """The number of geoopt: the squared radius of the hyperboloid, otherwise the curvature."""
        return 1 / self.c if isinstance(self.space, Lorentz) else -self.c

    @property
    def radius(self) -> Tensor:
        """Radius of curvature."""
        return self.c.abs() ** -0.5

    @override
    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False, dim: int = -1) -> Tensor:
        return of_points(self.space.dist, x, y, keepdim=keepdim, dim=dim)

    @override
    def dist2(self, x: Tensor, y: Tensor, *, keepdim: bool = False, dim: int = -1) -> Tensor:
        return self.dist(x, y, keepdim=keepdim, dim=dim) ** 2

    @override
    def expmap(self, x: Tensor, u: Tensor, *, project: bool = True, dim: int = -1) -> Tensor:
        return of_coordinates(self.space.expmap, x, u, dim=dim)

    retr = expmap

    @override
    def logmap(self, x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
        return of_coordinates(self.space.logmap, x, y, dim=dim)

    @override
    def transp(self, x: Tensor, y: Tensor, v: Tensor, *, dim: int = -1) -> Tensor:
        return of_coordinates(self.space.transp, x, y, v, dim=dim)

    @override
    def expmap_transp(
        self, x: Tensor, u: Tensor, v: Tensor, *, project: bool = True, dim: int = -1
    ) -> tuple[Tensor, Tensor]:
        y = self.expmap(x, u, dim=dim)
        return y, self.transp(x, y, v, dim=dim)

    retr_transp = expmap_transp

    @override
    def transp_follow_expmap(
        self, x: Tensor, u: Tensor, v: Tensor, *, project: bool = True, dim: int = -1
    ) -> Tensor:
        return self.expmap_transp(x, u, v, dim=dim)[1]

    transp_follow_retr = transp_follow_expmap

    @override
    def inner(
        self,
        x: Tensor,
        u: Tensor,
        v: Tensor | None = None,
        *,
        keepdim: bool = False,
        dim: int = -1,
    ) -> Tensor:
        return of_points(self.space.inner, x, u, u if v is None else v, keepdim=keepdim, dim=dim)

    @override
    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False, dim: int = -1) -> Tensor:
        return of_points(self.space.norm, x, u, keepdim=keepdim, dim=dim)

    @override
    def proju(self, x: Tensor, u: Tensor, *, dim: int = -1) -> Tensor:
        return of_coordinates(self.space.proju, x, u, dim=dim)

    @override
    def egrad2rgrad(self, x: Tensor, u: Tensor, *, dim: int = -1) -> Tensor:
        return of_coordinates(self.space.egrad2rgrad, x, u, dim=dim)

    @override
    def projx(self, x: Tensor, *, dim: int = -1) -> Tensor:
        return of_coordinates(self.space.projx, x, dim=dim)

    @override
    def origin(
        self,
        *size: Any,
        dtype: torch.dtype | None = None,
        device: Any = None,
        seed: int | None = 42,
    ) -> geoopt.ManifoldTensor:
        size = geoopt.utils.size2shape(*size)
        return self._tensor(self.space.origin(*size, dtype=dtype, device=device))

    def dist0(self, x: Tensor, *, keepdim: bool = False, dim: int = -1) -> Tensor:
        """Distance from the origin."""
        return of_points(self.space.dist0, x, keepdim=keepdim, dim=dim)

    def expmap0(self, u: Tensor, *, project: bool = True, dim: int = -1) -> Tensor:
        """Exponential map at the origin."""
        return of_coordinates(self.space.expmap0, u, dim=dim)

    def logmap0(self, x: Tensor, *, dim: int = -1) -> Tensor:
        """Logarithm at the origin."""
        return of_coordinates(self.space.logmap0, x, dim=dim)

    def transp0(self, y: Tensor, u: Tensor, *, dim: int = -1) -> Tensor:
        """Parallel transport from the origin to ``y``."""
        return of_coordinates(self.space.transp0, y, u, dim=dim)

    def transp0back(self, y: Tensor, u: Tensor, *, dim: int = -1) -> Tensor:
        """Parallel transport from ``y`` to the origin."""
        return of_coordinates(lambda y, u: self.space.transp(y, self._origin(y), u), y, u, dim=dim)

    def geodesic(self, t: Tensor, x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
        """The point at the fraction ``t`` of the way from ``x`` to ``y``.

        ``t`` broadcasts with coordinates: one number per point has an axis ``dim`` of 1.
        """
        return self.expmap(x, t * self.logmap(x, y, dim=dim), dim=dim)

    def geodesic_unit(
        self, t: Tensor, x: Tensor, u: Tensor, *, project: bool = True, dim: int = -1
    ) -> Tensor:
        """The point at the distance ``t`` from ``x`` in the direction of ``u``, of any length.

        ``t`` broadcasts with coordinates, as in ``geodesic``.
        """
        return self.expmap(x, t * u / self.norm(x, u, keepdim=True, dim=dim), dim=dim)

    def dist2plane(
        self,
        x: Tensor,
        p: Tensor,
        a: Tensor,
        *,
        dim: int = -1,
        keepdim: bool = False,
        signed: bool = False,
        scaled: bool = False,
    ) -> Tensor:
        """Distance to the hyperplane through ``p`` with the normal ``a``.

        Args:
            x: Points.
            p: Points of the hyperplanes.
            a: Tangents at ``p``.
            dim: Axis of coordinates.
            keepdim: Whether this axis stays, of length 1.
            signed: Whether the distance is negative on the side that ``a`` points away from.
            scaled: Whether to multiply by the Euclidean length of ``a``.
        """
        distance = of_points(self.space.dist2plane, x, p, a, keepdim=keepdim, dim=dim)
        distance = distance if signed else distance.abs()
        return distance * a.norm(dim=dim, keepdim=keepdim) if scaled else distance

    def random_normal(
        self,
        *size: Any,
        mean: Tensor | float = 0.0,
        std: Tensor | float = 1.0,
        dtype: torch.dtype | None = None,
        device: Any = None,
    ) -> geoopt.ManifoldTensor:
        """Points of a wrapped normal distribution at the origin, drawn by torch's global stream.

        Args:
            *size: Shape of the points, the number of coordinates last.
            mean: Mean of the tangents, in orthonormal coordinates.
            std: Standard deviation of the tangents in each direction, in units of length.
            dtype: Dtype of the points.
            device: Device of the points.
        """
        return self._tensor(self.space.expmap0(self._drawn(size, mean, std, dtype, device)))

    random = random_normal  # the same in geoopt

    def wrapped_normal(
        self,
        *size: Any,
        mean: Tensor,
        std: Tensor | float = 1.0,
        dtype: torch.dtype | None = None,
        device: Any = None,
    ) -> geoopt.ManifoldTensor:
        """Points of a wrapped normal distribution at ``mean``, drawn by torch's global stream.

        Args:
            *size: Shape of the points, the number of coordinates last.
            mean: Points, in the dtype and on the device of the result.
            std: Standard deviation of the tangents in each direction, in units of length.
            dtype: Dtype of the draws, by default that of ``mean``.
            device: Device of the draws, by default that of ``mean``.
        """
        drawn = self._drawn(size, 0.0, std, dtype or mean.dtype, device or mean.device)
        points = self.space.expmap(mean, self.space.transp0(mean, drawn))
        return self._tensor(points.as_subclass(Tensor))

    def weighted_midpoint(
        self,
        xs: Tensor,
        weights: Tensor | None = None,
        *,
        reducedim: Sequence[int] | None = None,
        dim: int = -1,
        keepdim: bool = False,
        lincomb: bool = False,
        posweight: bool = False,
        project: bool = True,
    ) -> Tensor:
        """Centroid of points, over all axes but that of coordinates by default.

        Args:
            xs: Points.
            weights: Numbers of 0 or more, of the shape of ``xs`` without the axis ``dim``.
            reducedim: Axes to reduce.
            dim: Axis of coordinates.
            keepdim: Whether reduced axes stay, of length 1.
            lincomb: Whether to take the Möbius multiple of the centroid by the sum of the weights.
            posweight: Whether a weight below 0 stands for its size at the point's ``antipode``.
            project: Without effect.

        Raises:
            ValueError: If ``reducedim`` holds the axis of coordinates.
        """
        last = dim % xs.ndim
        every = [axis for axis in range(xs.ndim) if axis != last]
        axes = sorted(d % xs.ndim for d in (every if reducedim is None else reducedim))
        if last in axes:
            raise ValueError(f"reducedim must not hold the axis of coordinates, got {reducedim}")
        kept = [axis for axis in every if axis not in axes]
        points = xs.permute(*kept, *axes, last).flatten(len(kept), -2)
        if weights is not None:
            weights = weights.unsqueeze(last).expand_as(xs.narrow(last, 0, 1))
            weights = weights.permute(*kept, *axes, last).flatten(len(kept))
            if posweight:
                opposite = gyro.antipode(self._conformal, points)
                points = torch.where(weights.unsqueeze(-1) < 0, opposite, points)
                weights = weights.abs()
        middle = self.space.centroid(points, weights)
        if lincomb:
            total = float(points.shape[-2]) if weights is None else weights.sum(-1)
            middle = gyro.mobius_scalar_mul(self._conformal, total, middle)
        middle = middle.movedim(-1, sum(k < last for k in kept))
        for axis in axes if keepdim else ():
            middle = middle.unsqueeze(axis)
        return middle

    def _tensor(self, points: Tensor) -> geoopt.ManifoldTensor:
        # ManifoldTensor's __new__ takes the manifold, the stub of Tensor's __init__ does not
        return geoopt.ManifoldTensor(points, manifold=self)  # pyright: ignore[reportCallIssue]

    def _origin(self, x: Tensor) -> Tensor:
        return self.space.origin(*x.shape, dtype=x.dtype, device=x.device)

    def _drawn(self, size: Any, mean: Any, std: Any, dtype: Any, device: Any) -> Tensor:
        """Tangents at the origin, normal in orthonormal coordinates."""
        shape = geoopt.utils.size2shape(*size)
        origin = self.space.origin(*shape, dtype=dtype, device=device)
        # at the origin, every metric is a multiple of the Euclidean one, or 0 along time
        unit = self.space.egrad2rgrad(origin, torch.ones_like(origin)).sqrt()
        return unit * (mean + std * torch.randn_like(origin))

    @override
    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5, dim: int = -1
    ) -> tuple[bool, str | None]:
        return _checked(self.space.contains(x.movedim(dim, -1)), "not on the space: use projx")

    @override
    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5, dim: int = -1
    ) -> tuple[bool, str | None]:
        near = torch.isclose(self.proju(x, u, dim=dim), u, atol=atol, rtol=rtol).all(dim)
        return _checked(near, "not tangent: use proju")


def _checked(good: Tensor, reason: str) -> tuple[bool, str | None]:
    return (True, None) if bool(good.all()) else (False, reason)
