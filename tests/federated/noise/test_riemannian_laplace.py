"""Riemannian Laplace: density, law of the distance and epsilon against quadrature and SciPy."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from fedbolic.federated.noise.draws import SecretStream
from fedbolic.federated.noise.riemannian_laplace import (
    RiemannianLaplace,
    largest_scale,
    tangent_of,
)
from fedbolic.manifolds import Lorentz, Poincare, to_lorentz
from tests.manifolds.cases import points

CHANCE = 1e-9
"""Probability with which a correct sampler fails a test of its law."""

KINDS = (Lorentz, Poincare)

CASES = [
    (c, dim, share / ((dim - 1) * c**0.5 or 1.0))
    for c in (1e-4, 1.0, 9.0)
    for dim in (1, 2, 5)
    for share in (0.05, 0.5, 0.98)
]
"""Curvature, dimensions and scale, up to just below the largest scale."""


def law(kind, c, dim, scale, *, seed=0):
    loc = points(kind, c, seed, 1, dim, radius=0.7 * c**-0.5)[0]
    return RiemannianLaplace(kind(c), loc, scale)


def radial(c, dim, scale):
    """The density of the distance up to a factor, in 30 digits."""
    root = mpmath.sqrt(mpmath.mpf(c))
    return lambda r: mpmath.exp(-r / scale) * (mpmath.sinh(root * r) / root) ** (dim - 1)


def integral(density, c, dim, scale, top):
    """The integral to ``top``, in pieces of the length in which the density decays."""
    decay = 1 / (1 / scale - (dim - 1) * math.sqrt(c))
    ends = [0, *(decay * 2.0**i for i in range(-3, 9))]
    return mpmath.quad(density, [end for end in ends if end < top] + [top])


@pytest.mark.parametrize(("c", "dim", "scale"), CASES)
def test_the_distance_has_the_law_of_the_radial_density(c, dim, scale):
    with mpmath.workdps(30):
        density = radial(c, dim, scale)
        whole = integral(density, c, dim, scale, mpmath.inf)
        own = law(Lorentz, c, dim, scale)
        for level in (1e-6, 0.2, 0.5, 0.9, 0.999):
            distance = own.quantile(level)
            share = float(integral(density, c, dim, scale, distance) / whole)
            assert share == pytest.approx(level, rel=1e-7)
            assert own.cdf(distance) == pytest.approx(level, rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("c", "dim", "scale"), CASES[::2])
def test_the_density_is_normalised_over_the_volume(kind, c, dim, scale):
    with mpmath.workdps(30):
        sphere = 2 * mpmath.pi ** (mpmath.mpf(dim) / 2) / mpmath.gamma(mpmath.mpf(dim) / 2)
        whole = sphere * integral(radial(c, dim, scale), c, dim, scale, mpmath.inf)
        own = law(kind, c, dim, scale)
        assert float(own.log_prob(own.loc)) == pytest.approx(-float(mpmath.log(whole)), rel=1e-9)


def test_in_flat_space_the_distance_is_a_gamma_variable():
    flat = RiemannianLaplace(Poincare(0.0), torch.zeros(3).double(), 0.4)
    for level in (0.01, 0.5, 0.99):
        assert flat.quantile(level) == pytest.approx(stats.gamma(3, scale=0.4).ppf(level))
        assert flat.cdf(flat.quantile(level)) == pytest.approx(level)
    nearly = law(Poincare, 1e-12, 3, 0.4)
    assert nearly.quantile(0.5) == pytest.approx(flat.quantile(0.5), rel=1e-6)
    assert float(flat.log_prob(flat.loc)) == pytest.approx(-math.log(8 * math.pi * 0.4**3))


def test_quantiles_far_out_do_not_overflow():
    """Near the largest scale exp(-2 rho) underflows; there its law is a power of it."""
    own = law(Lorentz, 1.0, 2, 1 - 1e-4)
    with mpmath.workdps(30):
        alpha = (1 / mpmath.mpf(own.scale) - 1) / 2
        distance = mpmath.mpf(own.quantile(0.999))
        u = mpmath.exp(-2 * distance)
        beyond = mpmath.betainc(alpha, 2, 0, u, regularized=True)
        assert float(beyond) == pytest.approx(1e-3, rel=1e-6)
        assert distance > 1e4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("c", "dim", "scale"), [(1.0, 2, 0.6), (4.0, 3, 0.1), (1.0, 1, 2.0)])
def test_samples_have_the_law_of_the_distance_and_no_direction(kind, c, dim, scale):
    own, size = law(kind, c, dim, scale), 2000
    drawn = own.sample(size, SecretStream.fresh())
    distances = own.space.dist(own.loc, drawn).numpy()
    seen = stats.kstest(distances, np.vectorize(own.cdf))
    assert seen.pvalue > CHANCE
    logs = own.space.logmap(own.loc, drawn)
    ways = logs / own.space.norm(own.loc, logs)[:, None]
    for axis in torch.eye(dim).double():
        along = own.space.inner(own.loc, ways, tangent_of(own.space, own.loc, axis))
        limit = stats.norm.isf(CHANCE / 2) * (size / dim) ** 0.5
        assert abs(float(along.sum())) < limit
        assert abs(float((along.square() - 1 / dim).sum())) < limit * 2**0.5


@pytest.mark.parametrize("c", [0.5, 4.0])
def test_both_models_have_the_same_density_at_the_same_points(c):
    z = points(Poincare, c, 5, 20, 3, radius=2 * c**-0.5)
    ball = law(Poincare, c, 3, 0.2)
    there = RiemannianLaplace(Lorentz(c), to_lorentz(ball.space, ball.loc), 0.2)
    moved = there.log_prob(to_lorentz(ball.space, z))
    torch.testing.assert_close(ball.log_prob(z), moved, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 2, 4])
def test_the_ratio_of_two_densities_is_bounded_by_epsilon(kind, dim):
    """Points a sensitivity apart: the bound holds everywhere, and is attained beyond them."""
    c, epsilon, apart = 1.0, 3.0, 0.3
    one = law(kind, c, dim, apart / epsilon)
    way = torch.zeros(dim).double()
    way[0] = 1.0
    step = tangent_of(one.space, one.loc, way)
    two = RiemannianLaplace(one.space, one.space.expmap(one.loc, apart * step), one.scale)
    z = points(kind, c, 7, 500, dim, radius=4.0)
    behind = one.space.expmap(one.loc, torch.tensor([[-2.0], [3.0]]).double() * step)
    losses = one.log_prob(torch.cat((z, behind))) - two.log_prob(torch.cat((z, behind)))
    assert float(losses.abs().max()) <= epsilon * (1 + 1e-7)
    torch.testing.assert_close(losses[-2:], torch.tensor([epsilon, -epsilon]).double())


@pytest.mark.parametrize("kind", KINDS)
def test_tangents_have_the_length_of_their_coordinates(kind):
    own = law(kind, 2.0, 3, 0.1)
    coordinates = torch.randn(10, 3, dtype=torch.float64)
    tangents = tangent_of(own.space, own.loc, coordinates)
    torch.testing.assert_close(own.space.norm(own.loc, tangents), coordinates.norm(dim=-1))


@pytest.mark.parametrize("dim", [2, 3])
def test_a_scale_at_which_volumes_outgrow_the_density_is_refused(dim):
    largest = largest_scale(Lorentz(4.0), dim)
    assert largest == 1 / (2 * (dim - 1))
    with mpmath.workdps(20):  # at that scale the radial density tends to a constant
        density = radial(4.0, dim, largest)
        assert float(density(40) / density(30)) == pytest.approx(1.0)
    with pytest.raises(ValueError, match=r"scale must be below 1 / \(\(n - 1\) sqrt\(c\)\)"):
        law(Lorentz, 4.0, dim, largest)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: law(Lorentz, 1.0, 2, 0.0), "scale must be a positive"),
        (lambda: RiemannianLaplace(Lorentz(), torch.ones(3), 0.1), "points are not on"),
        (lambda: RiemannianLaplace(Lorentz(torch.ones(())), torch.ones(3), 0.1), "a number as"),
        (lambda: law(Lorentz, 1.0, 2, 0.5).quantile(1.0), "level must lie in"),
        (lambda: law(Lorentz, 1.0, 2, 0.5).cdf(-1.0), "distance must be"),
    ],
)
def test_bad_arguments_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
