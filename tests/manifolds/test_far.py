"""Distances and densities far from the origin against 60 digits of the stored coordinates."""

from functools import partial

import pytest
import torch
from mpmath import mp, mpf

from benchmarks.geometry import truth
from fedbolic.manifolds import Lorentz, WrappedNormal
from tests.manifolds.cases import lifted, normal
from tests.manifolds.test_wrapped_normal import true_log_density

ULPS = 8
RADII = (2.0, 8.0, 10.0, 14.0, 16.0, 20.0, 30.0)


def pairs(c, dim, dtype):
    """Pairs of space coordinates on one and on both sides of the origin, and at other angles."""
    unit = c**-0.5
    axis = torch.eye(dim, dtype=torch.float64)[-1]
    slanted = torch.ones(dim, dtype=torch.float64) * dim**-0.5
    some, other = (torch.nn.functional.normalize(normal(k, dim), dim=0) for k in (0, 1))
    across = torch.nn.functional.normalize(other - (other @ some) * some, dim=0)
    made = []
    for r in RADII:
        for one, two in (
            (axis, axis),
            (axis, -axis),
            (slanted, -slanted),
            (some, other),
            (some, across),
        ):
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


def log_density(x, y, scale, c):
    return [true_log_density(Lorentz, c[0], x, scale, y)]


def slopes(f, *given):
    """The gradients of ``f`` by each of its arguments, from central differences."""
    found = []
    for k, argument in enumerate(given):
        found.append([])
        for i, number in enumerate(argument):
            h = mpf(10) ** -25 * (abs(number) + 1)
            up, down = ([*argument[:i], number + d, *argument[i + 1 :]] for d in (h, -h))
            high, low = (f(*given[:k], moved, *given[k + 1 :])[0] for moved in (up, down))
            found[-1].append((high - low) / (2 * h))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("c", [0.1, 10.0])
def test_densities_and_gradients_are_right_to_rounding_at_every_radius(c, dim, dtype):
    eps, curvature = torch.finfo(dtype).eps, torch.tensor([c], dtype=dtype)
    scale = (torch.linspace(1, 2, dim) * c**-0.5).to(dtype)
    # of the three distances of a radius and a direction one, another for the next direction
    points = [(x, y) for k, (x, y, _) in enumerate(pairs(c, dim, dtype)) if k % 3 == k // 3 % 3]
    near = [(x, y * 0) for x, y in points[:5]]
    points += [*near, *((y, x) for x, y in near)]
    for x, y in points:
        inputs = [t.clone().requires_grad_() for t in (x, y, scale, curvature)]
        loc, z = (lifted(Lorentz, t) for t in inputs[:2])
        space = Lorentz(inputs[3].squeeze())
        got = WrappedNormal(space, loc, inputs[2], validate_args=False).log_prob(z)
        given = [truth.exact(t.tolist()) for t in (x, y, scale, curvature)]
        f = partial(log_density, scale=given[2], c=given[3])
        true, moved = sensitivity(f, *given[:2], eps)
        error = abs(mpf(got.item()) - true[0])
        assert error <= ULPS * (moved + eps * (1 + abs(true[0]))), (x, y, got, true)
        found = torch.autograd.grad(got, inputs)
        assert all(g.isfinite().all() for g in found)
        if torch.dot(x, y) < x.norm() * y.norm() / 2:  # else one may be as small as its rounding
            for g, true, at in zip(found, slopes(log_density, *given), given, strict=True):
                error = truth.length(truth.combine(1, truth.exact(g.tolist()), -1, true))
                # of the change with the logarithm of the argument
                size, rise = truth.length(at), truth.length(true)
                assert size * error <= 512 * eps * (1 + size * rise), (x, y, g, true)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("c", [0.1, 1.0, 10.0])
def test_a_far_pair_changes_no_bit_of_other_pairs(c, dtype):
    space, far = Lorentz(c), lifted(Lorentz, torch.full((1, 5), 1e12, dtype=dtype))
    x, y = (lifted(Lorentz, normal(k, 300, 5).to(dtype)) for k in (0, 1))

    def distances_and_slopes(*given):
        leaves = [t.detach().clone().requires_grad_() for t in given]
        got = space.dist(*leaves)
        return [t[:300] for t in (got.detach(), *torch.autograd.grad(got.sum(), leaves))]

    near = distances_and_slopes(x, y)
    both = distances_and_slopes(*(torch.cat((t, sign * far)) for t, sign in ((x, 1), (y, -1))))
    assert all(map(torch.equal, near, both))
