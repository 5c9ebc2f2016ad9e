"""The grid of a noisy sum: rounding, wrap-around, and the cost of sums of discrete Gaussians."""

import dataclasses
import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from scipy.linalg import hadamard

from fedbolic.core.rng import Rng
from fedbolic.federated.accounting.costs import ConcentratedCost
from fedbolic.federated.accounting.gaussian import gaussian_epsilon
from fedbolic.federated.noise.draws import SecretStream
from fedbolic.federated.noise.lattice import NoisyLattice, finest_count, finest_lattice
from fedbolic.federated.noise.rotation import padded_size, rotate, unrotate
from fedbolic.federated.privacy.client_privacy import AdaptiveClipping
from fedbolic.federated.privacy.sum_privacy import SumPrivacy

STREAM = SecretStream(bytes(range(32)))
COARSE = NoisyLattice(64, 1.0, 1.0, num_clients=5, num_noisy=3, granularity=0.2)


def vector(dim, norm=1.0, seed=0):
    x = torch.randn(dim, generator=torch.Generator().manual_seed(seed)).double()
    return x / x.norm() * norm


def test_a_rotation_is_a_hadamard_matrix_times_random_signs():
    x, rng = vector(16), Rng(5)
    signs = [rotate(row, rng) for row in torch.eye(16).double()]
    matrix = torch.stack(signs, dim=1) * 4
    ratio = matrix.numpy() * hadamard(16)  # each column has one sign
    assert (np.abs(ratio.sum(axis=0)) == 16).all()
    torch.testing.assert_close(rotate(x, rng), matrix @ x / 4)
    torch.testing.assert_close(unrotate(rotate(x, rng), rng), x)
    assert [padded_size(n) for n in (1, 2, 3, 1024, 1025)] == [1, 2, 4, 1024, 2048]


def test_a_rotation_spreads_one_large_number():
    x = torch.zeros(256).double()
    x[7] = 3.0
    torch.testing.assert_close(rotate(x, Rng(1)).abs(), torch.full((256,), 3 / 16).double())


def test_rounded_vectors_are_neighbours_on_the_grid_within_the_bound():
    x = rotate(vector(64), Rng(0))
    for i in range(200):
        found = COARSE.rounded(x, STREAM.at(i))
        assert ((found - x / 0.2).abs() < 1).all()
        assert int(found.square().sum()) <= COARSE.largest


@pytest.mark.parametrize("norm", [1e6, float("nan")])
def test_a_vector_that_was_not_clipped_is_refused(norm):
    with pytest.raises(ValueError, match="clip it"):
        COARSE.rounded(vector(64, norm=norm), STREAM)


def test_rounding_has_the_right_mean_if_the_bound_does_not_bind():
    x, n = vector(64, norm=0.2), 600
    found = torch.stack([COARSE.rounded(x, STREAM.at("mean", i)) for i in range(n)]).double()
    part = x / 0.2 - (x / 0.2).floor()
    error = (found.mean(0) - x / 0.2).square() / (part * (1 - part) / n)
    assert float(error.sum()) < stats.chi2.isf(1e-9, 64)


def test_the_bound_of_a_rounded_vector_is_that_of_the_paper():
    """Algorithm 1 with beta = exp(-1/2), in 30 digits; both terms of the minimum occur."""
    for dim, granularity in ((4, 2.1), (64, 0.17), (4096, 1.3e-3), (1, 0.9)):
        with mpmath.workdps(30):
            c, g = mpmath.mpf(1), mpmath.mpf(granularity)
            spread = mpmath.sqrt(2 * mpmath.log(mpmath.e**0.5)) * g * (c + g * mpmath.sqrt(dim) / 2)
            first, second = (c + g * mpmath.sqrt(dim)) ** 2, c**2 + g**2 * dim / 4 + spread
            exact = mpmath.floor(min(first, second) / g**2 + mpmath.mpf(10) ** -12)
        lattice = dataclasses.replace(COARSE, dim=dim, granularity=granularity)
        assert lattice.largest == int(exact)


def pmf_of_sum(variance, num):
    """Exact probabilities of a sum of discrete Gaussians, by convolution."""
    top = int(36 * math.sqrt(variance))  # the last probability is near 1e-282
    one = np.exp(-(np.arange(-top, top + 1.0) ** 2) / (2 * variance))
    one, total = one / one.sum(), np.ones(1)
    for _ in range(num):
        total = np.convolve(total, one)
    return total


def renyi(p, shift, order):
    """Rényi divergence between a distribution on the integers and its shift."""
    x, y = p[shift:], p[: len(p) - shift]
    valid = (x > 0) & (y > 0)
    terms = order * np.log(x[valid]) + (1 - order) * np.log(y[valid])
    return float(np.logaddexp.reduce(terms)) / (order - 1)


def bounds_of_the_paper(variance, num, *, square, absolute, dim):
    """Proposition 14 of Kairouz et al. in 40 digits: pairs of rho and xi."""
    with mpmath.workdps(40):
        tau = 10 * mpmath.fsum(
            mpmath.exp(-2 * mpmath.pi**2 * variance * mpmath.mpf(k) / (k + 1))
            for k in range(1, num)
        )
        whole = mpmath.mpf(num) * variance
        mixed = square / whole + 2 * absolute * tau / mpmath.sqrt(whole) + tau**2 * dim
        return (float(square / (2 * whole)), float(tau * dim)), (float(mixed / 2), 0.0)


@pytest.mark.parametrize("num", [1, 2, 3, 6])
@pytest.mark.parametrize("variance", [1, 2, 4])
@pytest.mark.parametrize("shift", [1, 2])
def test_the_published_bounds_hold_for_sums_enumerated_exactly(num, variance, shift):
    """One coordinate that a client changes by ``shift``, and two of them; several orders."""
    p = pmf_of_sum(variance, num)
    for order, dim in itertools.product((1.5, 2, 3, 8, 20), (1, 2)):
        exact = dim * renyi(p, shift, order)  # divergences of independent coordinates add up
        norms = {"square": dim * shift**2, "absolute": dim * shift}
        for rho, xi in bounds_of_the_paper(variance, num, **norms, dim=dim):
            assert exact <= rho * order + xi + 1e-12


@pytest.mark.parametrize(("neighbours", "times"), [("add/remove", 1), ("replace", 2)])
@pytest.mark.parametrize("granularity", [0.01, 0.2, 1.0])
def test_the_cost_is_the_published_bound_in_multiprecision(neighbours, times, granularity):
    lattice = NoisyLattice(64, 1.0, 0.7, num_clients=9, num_noisy=7, granularity=granularity)
    largest = lattice.largest
    absolute = times * min(8 * math.sqrt(largest), largest)
    exact = bounds_of_the_paper(
        lattice.variance, 7, square=times**2 * largest, absolute=absolute, dim=64
    )
    for cost, (rho, xi) in zip(lattice.costs(neighbours), exact, strict=True):
        assert cost.rho == pytest.approx(rho, rel=1e-12)
        assert cost.xi == pytest.approx(xi, rel=1e-12)


@pytest.mark.parametrize(("neighbours", "times"), [("add/remove", 1), ("replace", 2)])
@pytest.mark.parametrize("std", [0.1, 0.7, 30.0])
def test_a_count_next_to_the_vectors_costs_its_own_bound_in_addition(neighbours, times, std):
    count = finest_count(std, num_clients=9, num_noisy=7, bits=20, failure=1e-6)
    assert std <= count.std < 1.001 * std
    moved = times * count.units
    norms = {"square": moved**2, "absolute": moved, "dim": 1}
    of_count = min(bounds_of_the_paper(count.variance, 7, **norms), key=sum)
    plain = NoisyLattice(64, 1.0, 0.7, num_clients=9, num_noisy=7, granularity=0.2)
    both = dataclasses.replace(plain, count=count).costs(neighbours)
    for cost, alone in zip(both, plain.costs(neighbours), strict=True):
        assert cost.rho - alone.rho == pytest.approx(of_count[0], rel=1e-9)
        assert cost.xi - alone.xi == pytest.approx(of_count[1], rel=1e-9)


def test_a_count_is_the_finest_that_fits_and_wraps_around_no_more_often_than_stated():
    """Six clients that all have the property; a bound of 10 % instead of one in a million."""
    count = finest_count(2.0, num_clients=6, num_noisy=4, bits=9, failure=0.1)
    finer = dataclasses.replace(count, units=2 * count.units, variance=4 * count.variance)
    assert count.reach(6, 0.1) < 2**8 <= finer.reach(6, 0.1)
    streams = (STREAM.at(i, k) for i in range(300) for k in range(6))
    totals = np.array([count.drawn(True, s) for s in streams]).reshape(300, 6).sum(axis=1)
    assert (np.abs(totals) >= 2**8).sum() < stats.binom.isf(1e-9, 300, 0.1)
    found = [count.fraction(int(total), 6) for total in totals]
    assert np.mean(found) == pytest.approx(1, abs=7 * 2.0 / 6 / 300**0.5 * 6**0.5 / 4**0.5)
    with pytest.raises(ValueError, match="use more bits, or less count_noise"):
        finest_count(200.0, num_clients=6, num_noisy=4, bits=9, failure=0.1)


@pytest.mark.parametrize("count_noise", [None, 3.0])
def test_the_noise_found_for_a_budget_pays_for_the_count_of_adaptive_clipping(count_noise):
    adaptive = AdaptiveClipping(count_noise=count_noise)
    plain = SumPrivacy(20, 1e-3, epsilon=4.0)
    both = dataclasses.replace(plain, adaptive=adaptive)
    (alone, before), (lattice, ledger) = (
        p.plan(num_clients=30, size=100, rounds=5) for p in (plain, both)
    )
    assert 0.99 * 4.0 < ledger.epsilon(5) <= 4.0
    assert lattice.noise_multiplier > 1.01 * alone.noise_multiplier
    assert ledger.noise_multiplier == pytest.approx(before.noise_multiplier, rel=2e-3)


def test_a_count_that_costs_the_whole_budget_is_refused():
    privacy = SumPrivacy(20, 1e-3, epsilon=1.0, adaptive=AdaptiveClipping(count_noise=0.5))
    with pytest.raises(ValueError, match="count_noise must be above half"):
        privacy.plan(num_clients=30, size=100, rounds=5)


def test_noise_of_almost_no_size_pays_for_not_being_gaussian():
    """Variance 1 at two clients: tau is 10 exp(-pi^2) for each of 4096 coordinates."""
    lattice = NoisyLattice(4096, 1.0, 0.01, num_clients=2, num_noisy=2, granularity=1.0)
    assert lattice.variance == 1
    first, second = lattice.costs("add/remove")
    assert first.xi == pytest.approx(40960 * math.exp(-(math.pi**2)))
    assert second.rho > first.rho


@pytest.mark.parametrize("neighbours", ["add/remove", "replace"])
def test_on_a_fine_grid_the_ledger_is_that_of_gaussian_noise(neighbours):
    """Above the exact value by what the conversion of Rényi divergences costs, below 10 %."""
    privacy = SumPrivacy(70, 1e-5, noise_multiplier=3.0, neighbours=neighbours, bits=24)
    lattice, ledger = privacy.plan(num_clients=100, size=900, rounds=20)
    assert lattice.inflation < 1.001
    exact = gaussian_epsilon(1e-5, 3.0 / (2 if neighbours == "replace" else 1), 20)
    assert exact < ledger.epsilon(20) < 1.1 * exact


def test_the_ledger_composes_like_the_best_order_of_renyi_divergences():
    """Proposition 12 of Canonne et al. at every order of a fine list, in multiprecision."""
    cost, delta = ConcentratedCost(0.02, 1e-3), 1e-5
    with mpmath.workdps(30):
        bounds = [
            5 * (cost.xi + cost.rho * a)
            + mpmath.log(1 - mpmath.mpf(1) / a)
            - mpmath.log(delta * a) / (a - 1)
            for a in range(2, 17)
        ]
    assert cost.epsilon(5, dp_delta=delta) == pytest.approx(float(min(bounds)), rel=1e-9)


@pytest.mark.parametrize("bits", [8, 12, 20, 32])
def test_the_grid_is_the_finest_whose_sums_fit_the_modulus(bits):
    grid = {"num_clients": 10, "num_noisy": 7}
    lattice = finest_lattice(256, 1.0, 1.0, bits=bits, failure=1e-6, **grid)
    finer = dataclasses.replace(lattice, granularity=0.99 * lattice.granularity)
    assert lattice.reach(1e-6) < 2 ** (bits - 1)
    assert finer.reach(1e-6) > 2 ** (bits - 1) or finer.variance > 2**22


def test_sums_wrap_around_no_more_often_than_stated():
    """The worst case, equal vectors of full norm; a bound of 10 % instead of one in a million."""
    n, clients, dim = 300, 6, 16
    lattice = finest_lattice(dim, 1.0, 1.0, num_clients=6, num_noisy=4, bits=10, failure=0.1)
    drawn = STREAM.integers().gaussian(lattice.variance, n * clients * dim)
    noise = torch.from_numpy(drawn).view(n, clients, dim).sum(1)
    turned = torch.stack([rotate(vector(dim, seed=i), Rng(i)) for i in range(n)])
    total = clients * (turned / lattice.granularity).ceil() + noise
    wrapped = int((total.abs() >= 512).any(dim=1).sum())
    assert wrapped < stats.binom.isf(1e-9, n, 0.1)


def test_a_modulus_that_is_too_small_is_refused_with_the_number_of_bits_that_suffices():
    grid = {"num_clients": 100, "num_noisy": 70, "failure": 1e-6}
    with pytest.raises(ValueError, match=r"would wrap around: use bits of (\d+)") as caught:
        finest_lattice(1024, 1.0, 1.0, bits=6, **grid)
    needed = int(str(caught.value).split("bits of ")[1].split()[0])
    assert finest_lattice(1024, 1.0, 1.0, bits=needed, **grid).reach(1e-6) < 2 ** (needed - 1)
    with pytest.raises(ValueError, match="too small"):
        finest_lattice(1024, 1.0, 1.0, bits=needed - 1, **grid)


def test_noise_too_large_to_be_drawn_exactly_is_refused():
    with pytest.raises(ValueError, match="largest that is drawn exactly: use a larger epsilon"):
        finest_lattice(2**20, 1.0, 100.0, num_clients=10, num_noisy=7, bits=32, failure=1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_the_noise_found_for_a_budget_stays_within_it_and_less_would_not(epsilon):
    privacy = SumPrivacy(7, 1e-3, epsilon=epsilon)
    _, ledger = privacy.plan(num_clients=10, size=100, rounds=5)
    assert 0.99 * epsilon < ledger.epsilon(5) <= epsilon
    words = str(ledger)
    assert "of one client whose data are replaced by any other data" in words


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"noise_multiplier": 1.0, "epsilon": 1.0}, "either epsilon or noise_multiplier"),
        ({}, "either epsilon or noise_multiplier"),
        ({"epsilon": -1.0}, "epsilon must be a positive"),
        ({"epsilon": 1.0, "survivors": 0}, "survivors must be at least 1"),
        ({"epsilon": 1.0, "dp_delta": 0.0}, "dp_delta must lie in"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        SumPrivacy(**{"survivors": 3, "dp_delta": 1e-3} | settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"survivors": 11}, "11 clients shall count in sums of at most 10"),
        ({"dp_delta": 0.1}, "one over the number of clients"),
        ({"bits": 33}, "bits must lie in 2 .. 32"),
        ({"wrap_probability": 1.0}, r"must lie in \(0, 1\)"),
    ],
)
def test_plans_out_of_range_are_refused(settings, words):
    base = {"survivors": 3, "dp_delta": 1e-3, "noise_multiplier": 1.0}
    with pytest.raises(ValueError, match=words):
        SumPrivacy(**base | settings).plan(num_clients=10, size=5, rounds=1)
