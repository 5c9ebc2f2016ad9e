"""Laws of every manifold, in float64."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ManifoldSample:
    """A manifold with points on it and tangents at the first of them, in batches of one shape.

    Args:
        space: Manifold with the operations of ``fedbolic.manifolds``.
        x: Points.
        y: Other points.
        z: Other points.
        u: Tangents at ``x``.
        v: Tangents at ``x``.
    """

    space: Any
    x: Tensor
    y: Tensor
    z: Tensor
    u: Tensor
    v: Tensor


def sample_manifold(
    space: Any, ambient: int, *, radius: float = 1.0, num: int = 20, seed: int = 0
) -> ManifoldSample:
    """Draw points within about ``radius`` of the origin, and tangents of about that length.

    Args:
        space: Manifold with ``origin``, ``proju``, ``norm``, ``expmap0`` and ``transp0``.
        ambient: Number of coordinates of a point, at least 1.
        radius: Length above 0; on a curved space, of the order of its radius of curvature.
        num: Number of points in every batch, at least 1.
        seed: Seed of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    origin = space.origin(num, ambient, dtype=torch.float64)

    def at_origin() -> Tensor:
        raw = torch.randn(num, ambient, generator=generator, dtype=torch.float64)
        tangent = space.proju(origin, raw)
        length = space.norm(origin, tangent).unsqueeze(-1)
        share = torch.rand(num, 1, generator=generator, dtype=torch.float64) + 0.1
        return tangent / length * share * radius

    x, y, z = (space.expmap0(at_origin()) for _ in range(3))
    u, v = (space.transp0(x, at_origin()) for _ in range(2))
    return ManifoldSample(space, x, y, z, u, v)


def check_manifold(space: Any, ambient: int, *, radius: float = 1.0) -> None:
    """Assert all laws of a manifold on random points.

    Args:
        space: Manifold with the operations of ``fedbolic.manifolds``.
        ambient: Number of coordinates of a point, at least 1.
        radius: As for :func:`sample_manifold`.

    Raises:
        AssertionError: If the manifold breaks a law, which the traceback names.

    Example:
        >>> from fedbolic.manifolds import Lorentz
        >>> check_manifold(Lorentz(0.5), ambient=4)
    """
    for seed in range(3):
        sample = sample_manifold(space, ambient, radius=radius, seed=seed)
        for law in MANIFOLD_LAWS:
            law(sample)


def exponential_and_logarithm_are_inverse(s: ManifoldSample) -> None:
    """``logmap`` undoes ``expmap``, and ``expmap`` undoes ``logmap``."""
    _close(s.space.logmap(s.x, s.space.expmap(s.x, s.u)), s.u, 1e-7)
    _close(s.space.expmap(s.x, s.space.logmap(s.x, s.y)), s.y, 1e-7)


def distance_is_a_metric(s: ManifoldSample) -> None:
    """The distance is symmetric, positive, 0 at equal points, and obeys the triangle inequality."""
    dist = s.space.dist
    _close(dist(s.x, s.y), dist(s.y, s.x), 1e-14)
    assert (dist(s.x, s.z) <= (dist(s.x, s.y) + dist(s.y, s.z)) * (1 + 1e-14)).all()
    assert (dist(s.x, s.y) > 0).all()
    assert (dist(s.x, s.x) == 0).all()


def logarithm_is_as_long_as_the_distance(s: ManifoldSample) -> None:
    """The norm of ``logmap`` is the distance."""
    _close(s.space.norm(s.x, s.space.logmap(s.x, s.y)), s.space.dist(s.x, s.y))


def inner_product_gives_the_norm(s: ManifoldSample) -> None:
    """The inner product is symmetric and bilinear, and its root is the norm."""
    space, x, u, v = s.space, s.x, s.u, s.v
    _close(space.norm(x, u).square(), space.inner(x, u))
    _close(space.inner(x, u, v), space.inner(x, v, u))
    _close(4 * space.inner(x, u, v), space.inner(x, u + v) - space.inner(x, u - v), 1e-8)


def operations_at_the_origin_agree(s: ManifoldSample) -> None:
    """Operations at the origin are those at any point, there."""
    space, x = s.space, s.x
    origin = space.origin(*x.shape, dtype=x.dtype)
    at_origin = space.transp(x, origin, s.u)
    _close(space.dist0(x), space.dist(origin, x))
    _close(space.expmap0(at_origin), space.expmap(origin, at_origin))
    _close(space.logmap0(x), space.logmap(origin, x))
    _close(space.transp0(x, at_origin), space.transp(origin, x, at_origin))
    _close(space.transp0(x, at_origin), s.u, 1e-7)


def transport_is_an_isometry(s: ManifoldSample) -> None:
    """Parallel transport keeps inner products, and transport back undoes it."""
    space, x, y = s.space, s.x, s.y
    there_u, there_v = space.transp(x, y, s.u), space.transp(x, y, s.v)
    _close(space.inner(y, there_u, there_v), space.inner(x, s.u, s.v), 1e-8)
    _close(space.transp(y, x, there_u), s.u, 1e-7)


def transport_carries_a_geodesic_along_itself(s: ManifoldSample) -> None:
    """Transport along a geodesic keeps its direction."""
    space, x, y = s.space, s.x, s.y
    _close(space.transp(x, y, space.logmap(x, y)), -space.logmap(y, x), 1e-7)


def riemannian_gradient_gives_directional_derivatives(s: ManifoldSample) -> None:
    """The inner product with the Riemannian gradient is the derivative along a geodesic."""
    space, x = s.space, s.x.detach().clone().requires_grad_()
    (g,) = torch.autograd.grad(space.dist(x, s.y).sum(), x)
    zero, one = (torch.tensor(value, dtype=x.dtype) for value in (0.0, 1.0))

    def along(t: Tensor) -> Tensor:
        return space.dist(space.expmap(x, t * s.u), s.y)

    slope = torch.func.jvp(along, (zero,), (one,))[1]
    _close(space.inner(x, space.egrad2rgrad(x, g), s.u), slope, 1e-7)


def _close(got: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


MANIFOLD_LAWS: tuple[Callable[[ManifoldSample], None], ...] = (
    exponential_and_logarithm_are_inverse,
    distance_is_a_metric,
    logarithm_is_as_long_as_the_distance,
    inner_product_gives_the_norm,
    operations_at_the_origin_agree,
    transport_is_an_isometry,
    transport_carries_a_geodesic_along_itself,
    riemannian_gradient_gives_directional_derivatives,
)
"""Laws of every manifold, for ``pytest.mark.parametrize``."""
