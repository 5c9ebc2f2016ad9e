"""Private means and clipping of points: brute force over neighbouring sets, geoopt, hand-worked."""

import math

import geoopt
import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import linprog

from fedbolic.federated.accounting.gaussian import gaussian_epsilon
from fedbolic.federated.noise.draws import SecretStream
from fedbolic.federated.noise.gaussian_grid import GaussianGrid
from fedbolic.federated.noise.riemannian_laplace import (
    RiemannianLaplace,
    largest_scale,
    tangent_of,
)
from fedbolic.federated.privacy.points import (
    LaplaceMean,
    TangentMean,
    clip_points,
    clip_tangents,
    mean_sensitivity,
    necessary_epsilon,
)
from fedbolic.manifolds import Lorentz, Poincare, frechet_mean
from tests.manifolds.cases import points, tangents

KINDS = (Lorentz, Poincare)
CHANCE = 1e-9
"""Probability with which a correct sampler fails a test of its law."""


def in_a_ball(kind, c, seed, size, dim, radius):
    """The centre of a ball away from the origin, and points on and within its sphere."""
    space = kind(c)
    center = points(kind, c, seed, 1, dim)[0]
    ways = torch.nn.functional.normalize(
        torch.randn(size, dim, generator=torch.Generator().manual_seed(seed)).double(), dim=-1
    )
    away = torch.linspace(0, 2, size).clamp(max=1)[:, None].double()  # half on the sphere
    return space, center, space.expmap(center, tangent_of(space, center, radius * away * ways))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("c", [0.3, 4.0])
def test_clipped_tangents_have_the_length_of_geoopts_metric(kind, c):
    x = points(kind, c, 0, 40, 3)
    u = tangents(kind, c, 1, x)
    got = clip_tangents(kind(c), x, u, bound=1.2)
    theirs = geoopt.Lorentz(1 / c) if kind is Lorentz else geoopt.PoincareBall(c)
    at = () if kind is Lorentz else (x,)
    before, after = (theirs.norm(*at, t).flatten() for t in (u, got))
    torch.testing.assert_close(after, before.clamp(max=1.2), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(got * (before / after)[:, None], u, rtol=1e-5, atol=1e-9)
    assert (before > 1.2).any()
    assert (before < 1.2).any()


@pytest.mark.parametrize("kind", KINDS)
def test_clipped_points_lie_on_the_geodesic_to_the_centre_and_in_the_ball(kind):
    space, z = kind(2.0), points(kind, 2.0, 3, 50, 3, radius=1.5)
    center = z[0]
    got = clip_points(space, z, center=center, radius=1.0)
    before, after = space.dist(center, z), space.dist(center, got)
    torch.testing.assert_close(after, before.clamp(max=1.0))
    torch.testing.assert_close(before, after + space.dist(got, z))  # equality only on a geodesic
    inside = before <= 1.0
    assert torch.equal(got[inside], z[inside])
    assert inside.any()
    assert not inside.all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("c", [1e-6, 1.0, 9.0])
@pytest.mark.parametrize("size", [2, 5])
def test_no_replacement_moves_the_mean_beyond_the_sensitivity(kind, c, size):
    """Every point of random sets is replaced by every other point of the ball's sphere."""
    radius = 1.7
    space, center, pool = in_a_ball(kind, c, size, 16, 3, radius)
    antipode = space.expmap(center, -space.logmap(center, pool[-1]))
    pool = torch.cat((pool, antipode[None]))
    sets = torch.stack([pool[(3 * i + torch.arange(size)) % len(pool)] for i in range(6)])
    means = frechet_mean(space, sets)
    changed = sets.repeat(len(pool), size, 1, 1, 1)
    for place in range(size):
        changed[:, place, ..., place, :] = pool[:, None]
    moved = space.dist(
        frechet_mean(space, changed.flatten(0, 2)).view(-1, 6, means.shape[-1]), means
    )
    bound = mean_sensitivity(radius, size)
    assert float(moved.max()) <= bound * (1 + 1e-6)
    assert bound == 2 * radius / size


def test_the_sensitivity_is_attained_by_antipodes_on_a_line():
    space = Poincare(1e-8)
    line = torch.tensor([[0.5, 0.0], [0.0, 0.0]]).double()
    mean, other = frechet_mean(space, torch.stack((line, line * torch.tensor([[-1.0], [1.0]]))))
    moved = float(space.dist(mean, other))
    assert moved == pytest.approx(mean_sensitivity(float(space.dist0(line[0])), 2), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_budget_gives_the_frechet_mean_of_the_clipped_points(kind):
    space, center, data = in_a_ball(kind, 1.0, 4, 9, 3, 1.0)
    clipped = clip_points(space, data, center=center, radius=0.5)
    got = LaplaceMean(1e9, radius=0.5).release(space, data, center=center)
    assert float(space.dist(got, frechet_mean(space, clipped))) < 1e-7


@pytest.mark.parametrize("kind", KINDS)
def test_the_tangent_mean_without_noise_is_that_of_its_formula(kind, monkeypatch):
    space, center, data = in_a_ball(kind, 1.0, 4, 9, 3, 1.0)
    monkeypatch.setattr(GaussianGrid, "noise", lambda self, stream: torch.zeros(self.size).long())
    got = TangentMean(1.0, 1e-3, radius=0.5).release(space, data, center=center)
    logs = [space.logmap(center, x) for x in data]
    shares = [min(1.0, 0.5 / max(float(space.dist(center, x)), 1e-12)) for x in data]
    mean = sum(share * u for share, u in zip(shares, logs, strict=True)) / len(data)
    torch.testing.assert_close(got, space.expmap(center, mean))


@pytest.mark.parametrize("kind", KINDS)
def test_a_tangent_mean_is_one_of_whole_units(kind):
    """Its coordinates at the centre are multiples of a public unit, whatever the points are."""
    space, center, data = in_a_ball(kind, 1.0, 4, 16, 3, 1.0)
    mechanism = TangentMean(1.0, 1e-3)
    got = mechanism.release(space, data, center=center)
    basis = tangent_of(space, center, torch.eye(3).double())
    tangent = space.logmap(center, got)
    coordinates = torch.stack([space.inner(center, tangent, axis) for axis in basis])
    units = coordinates * 16 / GaussianGrid(3, 1.0, mechanism.ledger().noise_multiplier).unit
    assert units.abs().max() > 1e4
    assert (units - units.round()).abs().max() < 0.01


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", [0.1, 0.999])
def test_the_noise_of_a_laplace_mean_is_that_of_its_sensitivity(kind, level, monkeypatch):
    """All points are one, and a uniform draw is given: 1 - exp(-2 distance) is Beta(n, alpha)."""
    dim, size, epsilon, radius = 2, 10, 2.0, 1.0
    space, origin = kind(1.0), points(kind, 1.0, 0, 1, dim, radius=0.0)
    mechanism = LaplaceMean(epsilon, radius)
    monkeypatch.setattr(SecretStream, "uniform", lambda self, n: torch.full((n,), level).double())
    monkeypatch.setattr(SecretStream, "normal", lambda self, n: torch.ones(n).double())
    distance = float(space.dist0(mechanism.release(space, origin.expand(size, -1))))
    scale = 2 * radius / size / epsilon
    law = stats.beta(dim, (1 / scale - (dim - 1)) / 2)
    assert law.cdf(1 - math.exp(-2 * distance)) == pytest.approx(level)
    assert mechanism.ledger().epsilon(1) == epsilon


@pytest.mark.parametrize("kind", KINDS)
def test_the_noise_of_a_tangent_mean_is_that_of_its_ledger(kind):
    space, dim, size = kind(1.0), 200, 50
    center = points(kind, 1.0, 1, 1, dim, radius=0.05)[0]
    mechanism = TangentMean(2.0, 1e-3, radius=0.4)
    got = mechanism.release(space, center.expand(size, -1), center=center)
    z = mechanism.ledger().noise_multiplier
    squares = float(space.dist(center, got) * size / (z * 0.4)) ** 2
    low, high = stats.chi2(dim).ppf([CHANCE / 2, 1 - CHANCE / 2])
    assert low < squares < high
    # replaced: a change of up to 2 b in units of the noise, z b
    assert mechanism.ledger().epsilon(1) == pytest.approx(gaussian_epsilon(1e-3, z / 2))
    assert 1.99 < mechanism.ledger().epsilon(1) <= 2.0


@pytest.mark.parametrize(("dim", "c"), [(3, 1.0), (5, 4.0)])
def test_an_epsilon_that_the_volume_does_not_allow_is_refused_with_the_least_one(dim, c):
    least = (dim - 1) * c**0.5 * 2 * 0.5 / 10
    data = points(Poincare, c, 0, 10, dim)
    with pytest.raises(ValueError, match=f"epsilon must be above {least:.4g} for 10 points"):
        LaplaceMean(least, 0.5).release(Poincare(c), data)
    LaplaceMean(1.001 * least, 0.5).release(Poincare(c), data)
    assert 2 * 0.5 / 10 / least == pytest.approx(largest_scale(Poincare(c), dim))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LaplaceMean(0.0), "epsilon must be"),
        (lambda: LaplaceMean(1.0, -1.0), "radius must be"),
        (lambda: TangentMean(1.0, 0.0), "dp_delta must lie"),
        (lambda: TangentMean(1.0, 0.5).release(Poincare(), torch.zeros(2, 2)), "one over the"),
        (lambda: clip_tangents(Poincare(), torch.zeros(2), torch.ones(2), bound=0.0), "bound"),
        (lambda: mean_sensitivity(1.0, 0), "num_points must be"),
    ],
)
def test_bad_arguments_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("c", [0.3, 4.0])
@pytest.mark.parametrize(("dim", "radius", "error"), [(1, 1.0, 0.2), (2, 3.0, 1.0), (50, 9.0, 0.1)])
def test_the_necessary_epsilon_is_that_of_the_volumes(dim, radius, error, c):
    def volume(s):
        return mpmath.quad(
            lambda t: mpmath.sinh(mpmath.sqrt(c) * t) ** (dim - 1), mpmath.linspace(0, s, 40)
        )

    expected = mpmath.log(volume(radius) / volume(2 * error) / 2) / 7
    given = {"num_points": 7, "radius": radius, "error": error}
    assert necessary_epsilon(Lorentz(c), dim, **given) == pytest.approx(float(expected), rel=1e-9)
    assert 7 * expected >= (dim - 1) * c**0.5 * (radius - 2 * error) - math.log(2)
    flat = dim * math.log(radius / (2 * error)) - math.log(2)
    for small in (0.0, 1e-12):
        found = necessary_epsilon(Poincare(small), dim, **given)
        assert found == pytest.approx(flat / 7, rel=1e-6)
    with pytest.raises(ValueError, match="below half of the radius"):
        necessary_epsilon(Lorentz(c), dim, **{**given, "error": radius / 2})


@pytest.mark.parametrize("total", [0.5, 1.0, 1.6])
def test_no_mechanism_tells_more_data_sets_apart_than_the_bound_of_packings_allows(total):
    """The best of all mechanisms for five data sets that differ in n points, by linear programming.

    Numbers are the probabilities of five answers on five data sets, and the least of a right one.
    """
    size, rows = 5, []
    for one, other in [(i, j) for i in range(size) for j in range(size) if i != j]:
        for answer in range(size):
            ratio = np.zeros((size, size))
            ratio[one, answer], ratio[other, answer] = 1, -math.exp(total)
            rows.append([*ratio.ravel(), 0])
    rows += [[*-np.eye(size * size)[i * (size + 1)], 1] for i in range(size)]
    sums = [[*np.repeat(np.eye(size)[i], size), 0] for i in range(size)]
    best = -linprog([*[0] * size**2, -1], rows, [0] * len(rows), sums, [1] * size).fun
    assert size * math.exp(-total) * best <= 1 + 1e-9
    assert (best >= 0.5) <= (total >= math.log(size / 2))


@pytest.mark.parametrize("dim", [2, 10])
def test_laplace_means_cost_what_is_necessary_for_their_median_error(dim):
    """And at a fourth of the radius the floor of the mechanism is within a factor of that."""
    space, least = Lorentz(c=1.0), mean_sensitivity(8.0, 100) / largest_scale(Lorentz(c=1.0), dim)
    for epsilon in (1.01 * least, 2 * least, 10 * least):
        scale = mean_sensitivity(8.0, 100) / epsilon
        error = float(RiemannianLaplace(space, space.origin(dim), scale).quantile(0.5))
        if error < 4.0:
            given = {"num_points": 100, "radius": 8.0, "error": error}
            assert necessary_epsilon(space, dim, **given) <= epsilon
    needed = necessary_epsilon(space, dim, num_points=100, radius=8.0, error=2.0)
    assert needed < least < 5 * needed
