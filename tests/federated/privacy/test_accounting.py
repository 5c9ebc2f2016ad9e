"""Epsilon and delta against sums, multiprecision integrals, closed forms and published figures."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedbolic.federated.privacy.gaussian import gaussian_delta, gaussian_epsilon
from fedbolic.federated.privacy.ledger import PrivacyLedger, solve_noise
from fedbolic.federated.privacy.loss_distribution import composed_losses, poisson_losses
from fedbolic.federated.privacy.renyi import (
    ORDERS,
    renyi_epsilon,
    renyi_fixed_size,
    renyi_poisson,
)

EVERYONE = ("everyone", "add/remove", 1.0)
POISSON = ("poisson", "add/remove", 0.2)
FIXED = ("fixed", "replace", 0.2)


def density(t, mean, z):
    return mpmath.npdf(t, mean, z)


def hockey_stick(rate, z, epsilon, way):
    """Delta of one release, summed over a fine grid of outcomes."""
    t = np.linspace(-12 * z, 1 + 12 * z, 400_001)
    without, moved = stats.norm.pdf(t, 0, z), stats.norm.pdf(t, 1, z)
    present = (1 - rate) * without + rate * moved
    p, q = (present, without) if way == "remove" else (without, present)
    return np.maximum(p - math.exp(epsilon) * q, 0).sum() * (t[1] - t[0])


def test_the_gaussian_mechanism_equals_its_hockey_stick_divergence():
    for epsilon, z in ((0.0, 1.0), (0.5, 2.0), (1.0, 0.7), (4.0, 0.5)):
        exact = hockey_stick(1.0, z, epsilon, "remove")
        assert gaussian_delta(epsilon, z) == pytest.approx(exact, rel=1e-6, abs=1e-12)


def test_noise_of_balle_and_wang_for_epsilon_1():
    """sigma 4.2247 for (1, 1e-6), where the classical bound needs 5.3: Dong et al. print 4.22."""
    z = solve_noise(*EVERYONE, epsilon=1.0, dp_delta=1e-6, rounds=1)
    assert z == pytest.approx(4.2247, rel=1e-3)
    assert gaussian_delta(1.0, z) <= 1e-6


@given(st.floats(0.3, 20), st.integers(1, 500), st.floats(1e-9, 0.1))
def test_epsilon_and_delta_of_gaussian_releases_are_inverse(z, k, delta):
    epsilon = gaussian_epsilon(delta, z, k)
    if epsilon > 0:
        assert gaussian_delta(epsilon, z, k) == pytest.approx(delta, rel=1e-5)
    else:
        assert gaussian_delta(0.0, z, k) <= delta


def test_published_deltas_of_dp_accounting():
    """Values in the tests of dp-accounting's PLD accountant, which state them to 1e-3."""
    assert gaussian_delta(1.0, math.sqrt(3), 3) == pytest.approx(0.126936, abs=1e-6)
    losses = composed_losses(0.2, 0.5, "remove", 3, step=1e-4, cut=1e-13)
    assert losses.delta(1.0) == pytest.approx(0.15594, abs=1e-4)


def test_published_divergences_of_dp_accounting():
    """Values in the tests of its RDP accountant; those of fractional orders are upper bounds."""
    published = [6.70579741e-04, 1.08548710e-03, 2.18075656e-03, 2.38460375e-02, 1.67416308e02]
    found = 50 * renyi_poisson(0.01, 2.5, (1.5, 2.5, 5.0, 50.0, 100.0))
    np.testing.assert_allclose(found[2:], published[2:], rtol=1e-7)
    assert (found[:2] <= published[:2]).all()
    np.testing.assert_allclose(found[:2], published[:2], rtol=0.04)


def test_published_epsilon_of_a_constant_divergence():
    assert renyi_epsilon(np.full(31, 1.1), 1e-5, tuple(map(float, range(2, 33)))) == pytest.approx(
        1.32783806176
    )


@pytest.mark.parametrize(
    ("rate", "z", "order"), [(0.01, 2.5, 1.5), (0.3, 0.8, 2.5), (0.5, 3.0, 32.0)]
)
def test_divergences_of_poisson_samples_equal_multiprecision_quadrature(rate, z, order):
    with mpmath.workdps(30):
        mean = mpmath.quad(
            lambda t: (
                density(t, 0, 1)
                * (1 - rate + rate * mpmath.exp(t / z - 1 / (2 * mpmath.mpf(z) ** 2))) ** order
            ),
            mpmath.linspace(-30, 60, 90),
        )
        exact = float(mpmath.log(mean) / (order - 1))
    (found,) = renyi_poisson(rate, z, (order,))
    assert found == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("rate", "z"), [(0.1, 0.7), (0.25, 2.0), (0.01, 20.0)])
def test_divergences_of_fixed_samples_follow_the_formula_term_by_term(rate, z):
    """Theorem 27 of Wang et al. with binomial sums in place of integrals, in 60 digits."""
    with mpmath.workdps(60):
        q, s = mpmath.mpf(rate), mpmath.mpf(z)

        def raised(j):
            return mpmath.exp(j * (j - 1) / (2 * s**2))

        def moment(n):
            return sum((-1) ** (n - i) * mpmath.binomial(n, i) * raised(i) for i in range(n + 1))

        for order in (2, 3, 5, 12):
            total = mpmath.mpf(1)
            for j in range(2, order + 1):
                two = 4 * (raised(2) - 1) if j == 2 else None
                within = 4 * mpmath.sqrt(moment(2 * (j // 2)) * moment(2 * -(-j // 2)))
                least = min(two or within, 2 * raised(j))
                total += mpmath.binomial(order, j) * q**j * least
            exact = float(mpmath.log(total) / (order - 1))
            (found,) = renyi_fixed_size(rate, z, (float(order),))
            assert found == pytest.approx(exact, rel=1e-8)


def test_a_bound_for_fixed_samples_is_above_the_divergence_of_a_real_pair():
    """Five numbers, two of them drawn: one of them, 1, is replaced by -1; the rest are 0.

    A sum has the replaced number with probability 2/5, and the sensitivity is 2.
    """
    z = 1.3  # over the sensitivity
    with mpmath.workdps(20):
        p, q = (
            lambda t, m=mean: 0.6 * density(t, 0, 2 * z) + 0.4 * density(t, m, 2 * z)
            for mean in (1, -1)
        )
        for order in (2, 5, 16):
            mean = mpmath.quad(
                lambda t, order=order: q(t) * (p(t) / q(t)) ** order, mpmath.linspace(-60, 60, 80)
            )
            (bound,) = renyi_fixed_size(0.4, z, (float(order),))
            assert float(mpmath.log(mean)) / (order - 1) <= bound


@pytest.mark.parametrize("way", ["remove", "add"])
@pytest.mark.parametrize(("rate", "z"), [(0.1, 1.0), (0.6, 0.5), (1.0, 2.0)])
def test_one_release_on_a_poisson_sample_equals_a_fine_sum(rate, z, way):
    losses = poisson_losses(rate, z, way, step=1e-4, cut=1e-14)
    for epsilon in (0.05, 0.4):
        exact = hockey_stick(rate, z, epsilon, way)
        found = losses.delta(epsilon)
        assert exact - 1e-7 <= found <= exact + 1e-4


@pytest.mark.parametrize("way", ["remove", "add"])
def test_two_releases_equal_a_double_sum(way):
    """The hockey-stick divergence of a product, summed over a grid of pairs of outcomes."""
    rate, z, epsilon = 0.3, 0.8, 0.5
    t = np.arange(-8 * z, 1 + 8 * z, 0.01)
    without = np.exp(-(t**2) / (2 * z**2)) / (z * math.sqrt(2 * math.pi)) * 0.01
    moved = np.exp(-((t - 1) ** 2) / (2 * z**2)) / (z * math.sqrt(2 * math.pi)) * 0.01
    present = (1 - rate) * without + rate * moved
    p, q = (present, without) if way == "remove" else (without, present)
    exact = np.maximum(np.outer(p, p) - math.exp(epsilon) * np.outer(q, q), 0).sum()
    found = composed_losses(rate, z, way, 2, step=1e-4, cut=1e-13).delta(epsilon)
    assert exact - 1e-5 <= found <= exact + 1e-4


@pytest.mark.parametrize("k", [1, 7, 300])
def test_composed_losses_without_sampling_are_those_of_one_gaussian(k):
    losses = composed_losses(1.0, 3 * math.sqrt(k), "remove", k, step=2e-3 / k, cut=1e-12 / k)
    exact = gaussian_epsilon(1e-6, 3.0)
    assert exact - 1e-6 <= losses.epsilon(1e-6) <= exact + 2e-3


@given(st.floats(0, 3), st.floats(1e-9, 0.5))
def test_epsilon_of_a_loss_distribution_inverts_its_delta(epsilon, delta):
    losses = composed_losses(0.3, 0.8, "remove", 5, step=1e-2, cut=1e-13)
    assert losses.delta(losses.epsilon(delta)) <= delta * (1 + 1e-9)
    if losses.epsilon(delta) > 0:
        assert losses.delta(losses.epsilon(delta)) == pytest.approx(delta, rel=1e-6)
    assert losses.delta(epsilon) >= losses.delta(epsilon + 0.1)


@pytest.mark.parametrize("sampling", [EVERYONE, POISSON])
@pytest.mark.parametrize(("z", "rounds"), [(0.8, 5), (2.0, 100)])
def test_loss_distributions_are_never_worse_than_renyi_bounds(sampling, z, rounds):
    ledger = PrivacyLedger(*sampling, z, 1e-5, rounds)
    assert ledger.epsilon(rounds) <= ledger.renyi_epsilon(rounds)


def test_sampling_costs_less_than_full_participation_and_more_than_one_release_less():
    full, poisson = (PrivacyLedger(*s, 1.5, 1e-5, 20) for s in (EVERYONE, POISSON))
    assert 0 < poisson.epsilon(20) < full.epsilon(20)
    costs = [poisson.epsilon(k) for k in range(21)]
    assert costs == sorted(costs)
    assert costs[0] == 0


def test_a_replaced_client_costs_as_much_as_half_the_noise():
    there = PrivacyLedger("everyone", "replace", 1.0, 3.0, 1e-5, 4)
    half = PrivacyLedger("everyone", "add/remove", 1.0, 1.5, 1e-5, 4)
    assert there.epsilon(4) == half.epsilon(4)


@settings(max_examples=8)
@given(st.sampled_from([EVERYONE, POISSON, FIXED]), st.floats(0.5, 10), st.sampled_from([1, 12]))
def test_the_solved_noise_stays_within_the_budget_and_less_would_not(sampling, epsilon, rounds):
    z = solve_noise(*sampling, epsilon=epsilon, dp_delta=1e-4, rounds=rounds)
    assert PrivacyLedger(*sampling, z, 1e-4, rounds).epsilon(rounds) <= epsilon
    assert PrivacyLedger(*sampling, z / 1.01, 1e-4, rounds).epsilon(rounds) > epsilon


def test_a_tiny_delta_is_accounted_by_renyi_divergences():
    ledger = PrivacyLedger(*POISSON, 2.0, 1e-14, 10)
    assert ledger.epsilon(10) == ledger.renyi_epsilon(10)
    assert math.isfinite(ledger.epsilon(10))


def test_an_order_beyond_all_integers_is_interpolated_between_neighbours():
    two, half, three = renyi_fixed_size(0.1, 2.0, (2.0, 2.5, 3.0))
    assert 1.5 * half == pytest.approx((1 * two + 2 * three) / 2)
    assert all(np.diff(renyi_fixed_size(0.1, 2.0, ORDERS)) >= -1e-12)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("poisson", "replace", 0.1, 1.0, 1e-5, 3), "use add/remove"),
        (("fixed", "add/remove", 0.1, 1.0, 1e-5, 3), "use replace"),
        (("everyone", "add/remove", 0.1, 1.0, 1e-5, 3), "rate of everyone is 1"),
        (("poisson", "add/remove", 0.1, 0.0, 1e-5, 3), "noise_multiplier must be a positive"),
        (("poisson", "add/remove", 0.1, 1.0, 0.0, 3), r"dp_delta must lie in \(0, 1\)"),
        (("poisson", "add/remove", 0.1, 1.0, 1e-5, 0), "rounds must be at least 1"),
    ],
)
def test_what_a_ledger_cannot_account_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        PrivacyLedger(*arguments)


def test_more_releases_than_planned_are_refused():
    with pytest.raises(ValueError, match="for 3 releases, got 4"):
        PrivacyLedger(*EVERYONE, 1.0, 1e-5, 3).epsilon(4)


@pytest.mark.parametrize("sampling", [EVERYONE, POISSON, FIXED])
def test_noise_of_almost_nothing_costs_almost_everything(sampling):
    assert PrivacyLedger(*sampling, 1e-9, 1e-5, 2).epsilon(2) > 1e9
