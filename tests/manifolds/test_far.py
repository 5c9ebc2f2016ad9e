"""Distances and densities far from the origin against 60 digits of the stored coordinates."""

import pytest
import torch
from mpmath import mp, mpf

from benchmarks import truth
from fedbolic.manifolds import Lorentz, WrappedNormal
from tests.manifolds.cases import lifted, normal
from tests.manifolds.test_wrapped_normal import true_log_density

ULPS = 8
RADII = (2.0, 8.0, 10.0, 14.0, 16.0, 20.0, 30.0)


def pairs(c, dim, dtype):
    """Pairs of space coordinates on an axis, on both sides of the origin and at an angle."""
    unit = c**-0.5
    axis = torch.eye(dim, dtype=torch.float64)[-1]
    slanted = torch.ones(dim, dtype=torch.float64) * dim**-0.5
    some, other = (torch.nn.functional.normalize(normal(k, dim), dim=0) for k in (0, 1))
    made = []
    for r in RADII:
        for one, two in ((axis, axis), (axis, -axis), (slanted, -slanted), (some, other)):
            for more in (1e-3, 0.5, -1.5):
                x, y = (v * torch.tensor(q).double().sinh() for v, q in ((one, r), (two, r + more)))
                made.append(((unit * x).to(dtype), (unit * y).to(dtype), r))
    return made


def sensitivity(f, x, y, eps):
    """Value of ``f``, and how far a rounding of every coordinate can move it."""
    value, moved, given = f(x, y), mpf(0), (*x, *y)
    for i in range(len(given)):
        near = list(given)
        near[i] *= 1 + mpf(eps)
        new = f(near[: len(x)], near[len(x) :])
        moved += truth.length([p - q for p, q in zip(new, value, strict=True)])
    return value, moved


def distance(c):
    return lambda x, y: [truth.Hyperboloid(c).dist(x, y)]


def slope(c):
    """The gradient of the distance by the space coordinates of the first point."""

    def function(x, y):
        a, b = (mp.sqrt(1 + c * truth.dot(v, v)) for v in (x, y))
        cosh = a * b - c * truth.dot(x, y)
        return [v * mp.sqrt(c / (cosh**2 - 1)) for v in truth.combine(b / a, x, mpf(-1), y)]

    return function


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("c", [0.1, 1.0, 10.0])
def test_distances_and_gradients_are_right_to_rounding_at_every_radius(c, dim, dtype):
    eps, space = torch.finfo(dtype).eps, Lorentz(c)
    from_far = {torch.float32: 10.0, torch.float64: 20.0}[dtype]
    for x, y, r in pairs(c, dim, dtype):
        x, y = x.requires_grad_(), y.requires_grad_()
        got = space.dist(lifted(Lorentz, x), lifted(Lorentz, y))
        by_x, by_y = torch.autograd.grad(got, (x, y))
        given = truth.exact(x.tolist()), truth.exact(y.tolist())
        checks = [(distance(mpf(c)), given, [got.item()])]
        if r >= from_far:
            checks += [(slope(mpf(c)), given, by_x.tolist())]
            checks += [(slope(mpf(c)), given[::-1], by_y.tolist())]
        for f, points, found in checks:
            true, moved = sensitivity(f, *points, eps)
            error = truth.length([p - q for p, q in zip(truth.exact(found), true, strict=True)])
            assert error <= ULPS * (moved + eps * truth.length(true)), (x, y, r, found, true)


def log_density(c, scale):
    return lambda x, y: [true_log_density(Lorentz, c, x, truth.exact(scale), y)]


def slopes(f, x, y):
    """The gradient of ``f`` by the coordinates of the first point, from central differences."""
    found = []
    for i, coordinate in enumerate(x):
        h = mpf(10) ** -25 * (abs(coordinate) + 1)
        up, down = ([*x[:i], coordinate + d, *x[i + 1 :]] for d in (h, -h))
        found.append((f(up, y)[0] - f(down, y)[0]) / (2 * h))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("c", [0.1, 10.0])
def test_densities_are_right_to_rounding_at_every_radius(c, dim, dtype):
    eps, space = torch.finfo(dtype).eps, Lorentz(c)
    scale = (torch.linspace(1, 2, dim) * c**-0.5).to(dtype)
    near = [(x, y * 0, r) for x, y, r in pairs(c, dim, dtype)[:12]]
    for x, y, r in [*pairs(c, dim, dtype), *near, *((y, x, r) for x, y, r in near)]:
        at = lifted(Lorentz, x).requires_grad_()
        got = WrappedNormal(space, at, scale, validate_args=False).log_prob(lifted(Lorentz, y))
        f = log_density(mpf(c), scale.tolist())
        true, moved = sensitivity(f, truth.exact(x.tolist()), truth.exact(y.tolist()), eps)
        error = abs(mpf(got.item()) - true[0])
        assert error <= ULPS * (moved + eps * (1 + abs(true[0]))), (x, y, r, got, true)
        by_x = torch.autograd.grad(got, at)[0][..., 1:]
        if torch.dot(x, y) < 0:  # elsewhere the derivative may be as small as its rounding
            true = slopes(f, truth.exact(x.tolist()), truth.exact(y.tolist()))
            torch.testing.assert_close(by_x, by_x.new_tensor(true), rtol=512 * eps, atol=0.0)
