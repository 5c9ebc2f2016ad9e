"""Adapter from fedbolic's manifolds to ``geoopt.Manifold``; the only file that imports geoopt."""

from collections.abc import Callable, Sequence
from typing import Any

import geoopt
import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.manifolds import gyro
from fedbolic.manifolds.manifold import Manifold


class Bridge(geoopt.Manifold):
    """Manifold for ``geoopt.ManifoldParameter``, ``geoopt.optim.RiemannianAdam`` and ``...SGD``.

    Every operation is that of ``space``; geoopt's formulas are not used. Names and arguments are
    those of geoopt's own manifolds, but for ``dim`` (coordinates lie along the last axis) and
    ``project`` (results always lie on the space). ``GEOOPT.md`` in this folder lists every public
    operation of geoopt, with its counterpart here and where conventions differ.

    Args:
        space: Space to wrap; its curvature must not require a gradient.

    Example:
        >>> from fedbolic.manifolds import Lorentz
        >>> x = geoopt.ManifoldParameter(Lorentz().origin(2, 3), manifold=Bridge(Lorentz()))
        >>> geoopt.optim.RiemannianAdam([x]).param_groups[0]["params"][0].manifold
        Lorentz(c=1.0) manifold
    """

    ndim = 1
    reversible = False

    def __init__(self, space: Manifold) -> None:
        super().__init__()
        self.space = space
        self.name = str(space)

    @override
    def __repr__(self) -> str:
        return f"{self.space} manifold"

    @override
    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        return _kept(self.space.dist(x, y), keepdim)

    @override
    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        return self.space.expmap(x, u)

    @override
    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        return self.space.expmap(x, u)

    @override
    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        return self.space.logmap(x, y)

    @override
    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return self.space.transp(x, y, v)

    @override
    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        return _kept(self.space.inner(x, u, v), keepdim)

    @override
    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        return _kept(self.space.norm(x, u), keepdim)

    @override
    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        return self.space.proju(x, u)

    @override
    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        return self.space.egrad2rgrad(x, u)

    @override
    def projx(self, x: Tensor) -> Tensor:
        return self.space.projx(x)

    @override
    def origin(
        self,
        *size: Any,
        dtype: torch.dtype | None = None,
        device: Any = None,
        seed: int | None = 42,
    ) -> geoopt.ManifoldTensor:
        shape = geoopt.utils.size2shape(*size)
        origin = self.space.origin(*shape, dtype=dtype, device=device)
        # ManifoldTensor's __new__ takes the manifold, the stub of Tensor's __init__ does not
        return geoopt.ManifoldTensor(origin, manifold=self)  # pyright: ignore[reportCallIssue]

    def dist0(self, x: Tensor, *, keepdim: bool = False) -> Tensor:
        """Distance from the origin."""
        return _kept(self.space.dist0(x), keepdim)

    def expmap0(self, u: Tensor) -> Tensor:
        """Exponential map at the origin."""
        return self.space.expmap0(u)

    def logmap0(self, x: Tensor) -> Tensor:
        """Logarithm at the origin."""
        return self.space.logmap0(x)

    def transp0(self, y: Tensor, u: Tensor) -> Tensor:
        """Parallel transport from the origin to ``y``."""
        return self.space.transp0(y, u)

    def transp0back(self, y: Tensor, u: Tensor) -> Tensor:
        """Parallel transport from ``y`` to the origin."""
        origin = self.space.origin(*y.shape, dtype=y.dtype, device=y.device)
        return self.space.transp(y, origin, u)

    def geodesic(self, t: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The point at the fraction ``t`` of the way from ``x`` to ``y``.

        Args:
            t: Fractions that broadcast with coordinates: one per point has a last axis of 1.
            x: Point at 0.
            y: Point at 1.
        """
        return self.space.expmap(x, t * self.space.logmap(x, y))

    def geodesic_unit(self, t: Tensor, x: Tensor, u: Tensor) -> Tensor:
        """The point at the distance ``t`` from ``x`` in the direction of ``u``.

        Args:
            t: Distances that broadcast with coordinates, as in ``geodesic``.
            x: Points.
            u: Tangents at ``x``, not 0; their length has no effect.
        """
        return self.space.expmap(x, t * u / self.space.norm(x, u).unsqueeze(-1))

    def dist2plane(
        self, x: Tensor, p: Tensor, a: Tensor, *, keepdim: bool = False, signed: bool = False
    ) -> Tensor:
        """Distance to the hyperplane through ``p`` with the normal ``a``; absolute by default."""
        distance = self.space.dist2plane(x, p, a)
        return _kept(distance if signed else distance.abs(), keepdim)

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
        shape = geoopt.utils.size2shape(*size)
        origin = self.space.origin(*shape, dtype=dtype, device=device)
        # at the origin, every metric is a multiple of the Euclidean one, or 0 along time
        unit = self.space.egrad2rgrad(origin, torch.ones_like(origin)).sqrt()
        points = self.space.expmap0(unit * (mean + std * torch.randn_like(origin)))
        return geoopt.ManifoldTensor(points, manifold=self)  # pyright: ignore[reportCallIssue]

    random = random_normal  # the same in geoopt

    def weighted_midpoint(
        self,
        xs: Tensor,
        weights: Tensor | None = None,
        *,
        reducedim: Sequence[int] | None = None,
        keepdim: bool = False,
    ) -> Tensor:
        """Centroid of points, over all axes but the last by default.

        Args:
            xs: Points.
            weights: Numbers of 0 or more, of the shape of ``xs`` without its last axis.
            reducedim: Axes to reduce.
            keepdim: Whether reduced axes stay, of length 1.
        """
        last = xs.ndim - 1
        axes = sorted(d % xs.ndim for d in (range(last) if reducedim is None else reducedim))
        if last in axes:
            raise ValueError(f"reducedim must not hold the axis of coordinates, got {reducedim}")
        front = list(range(len(axes)))
        points = xs.movedim(axes, front).flatten(0, len(axes) - 1).movedim(0, -2)
        if weights is not None:
            weights = weights.expand(xs.shape[:-1]).movedim(axes, front)
            weights = weights.flatten(0, len(axes) - 1).movedim(0, -1)
        middle = self.space.centroid(points, weights)
        for axis in axes if keepdim else ():
            middle = middle.unsqueeze(axis)
        return middle

    def lambda_x(self, x: Tensor, *, keepdim: bool = False) -> Tensor:
        """Conformal factor of the ball or the stereographic model."""
        return _kept(gyro.conformal_factor(self._conformal, x), keepdim)

    def mobius_add(self, x: Tensor, y: Tensor) -> Tensor:
        """Möbius sum."""
        return self._conformal.mobius_add(x, y)

    def mobius_sub(self, x: Tensor, y: Tensor) -> Tensor:
        """Möbius sum of ``x`` and ``-y``."""
        return self._conformal.mobius_add(x, -y)

    def mobius_coadd(self, x: Tensor, y: Tensor) -> Tensor:
        """Möbius coaddition."""
        return gyro.mobius_coadd(self._conformal, x, y)

    def mobius_cosub(self, x: Tensor, y: Tensor) -> Tensor:
        """Möbius coaddition of ``x`` and ``-y``."""
        return gyro.mobius_coadd(self._conformal, x, -y)

    def mobius_scalar_mul(self, r: Tensor, x: Tensor) -> Tensor:
        """Möbius multiple; ``r`` broadcasts with coordinates."""
        return gyro.mobius_fn_apply(self._conformal, lambda v: r * v, x)

    def mobius_pointwise_mul(self, w: Tensor, x: Tensor) -> Tensor:
        """Möbius version of the product of coordinates."""
        return gyro.mobius_pointwise_mul(self._conformal, w, x)

    def mobius_matvec(self, m: Tensor, x: Tensor) -> Tensor:
        """Möbius product of a matrix and a point."""
        return gyro.mobius_matvec(self._conformal, m, x)

    def mobius_fn_apply(self, fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply a function in the tangent space at the origin."""
        return gyro.mobius_fn_apply(self._conformal, fn, x)

    def gyration(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """Gyration of ``z`` by ``x`` and ``y``."""
        return gyro.gyration(self._conformal, x, y, z)

    @property
    def _conformal(self) -> gyro.Conformal:
        """The space, if it has Möbius operations."""
        gyro.require_conformal(self.space)
        return self.space  # pyright: ignore[reportReturnType]  # checked in the line before

    @override
    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        return _checked(self.space.contains(x), "not on the space: use projx")

    @override
    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        near = torch.isclose(self.space.proju(x, u), u, atol=atol, rtol=rtol).all(-1)
        return _checked(near, "not tangent: use proju")


def _kept(value: Tensor, keepdim: bool) -> Tensor:
    return value.unsqueeze(-1) if keepdim else value


def _checked(good: Tensor, reason: str) -> tuple[bool, str | None]:
    return (True, None) if bool(good.all()) else (False, reason)
