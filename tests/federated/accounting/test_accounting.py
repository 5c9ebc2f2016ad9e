"""Epsilon and delta against sums, multiprecision integrals, closed forms and published figures."""

import math
import re
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedbolic.federated.accounting.gaussian import gaussian_delta, gaussian_epsilon
from fedbolic.federated.accounting.ledger import (
    LARGEST_SHARE,
    PrivacyLedger,
    log_ledger,
    solve_noise,
)

CONFIGS = Path(__file__).parents[3] / "configs"
EVERYONE = ("everyone", "add/remove", 1.0)
POISSON = ("poisson", "add/remove", 0.2)
FIXED = ("fixed", "replace", 0.2)


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
    """Values in the tests of its accountant by loss distributions, stated to 1e-3."""
    assert gaussian_delta(1.0, math.sqrt(3), 3) == pytest.approx(0.126936, abs=1e-6)
    ledger = PrivacyLedger("poisson", "add/remove", 0.2, 0.5, dp_delta=0.15594, rounds=3)
    assert ledger.epsilon(3) == pytest.approx(1.0, abs=1e-3)


def by_renyi(log_moment, num_releases, delta):
    """Least epsilon of all orders, Proposition 12 of Canonne et al., from logarithms of moments."""
    bounds = {}
    for order in range(2, 17):
        divergence = num_releases * log_moment(order) / (order - 1)
        tail = mpmath.log(delta * order) / (order - 1)
        bounds[order] = divergence + mpmath.log(1 - mpmath.mpf(1) / order) - tail
    best = min(bounds, key=lambda order: bounds[order])
    assert 2 < best < 16  # and so the least of larger orders, too
    return float(bounds[best])


@pytest.mark.parametrize(("rate", "z"), [(0.05, 0.9), (0.3, 1.5), (1.0, 2.0)])
def test_renyi_bounds_of_poisson_samples_equal_multiprecision_quadrature(rate, z):
    def log_moment(order):
        return mpmath.log(
            mpmath.quad(
                lambda t: (
                    mpmath.npdf(t, 0, 1)
                    * (1 - rate + rate * mpmath.exp(t / z - 1 / (2 * mpmath.mpf(z) ** 2))) ** order
                ),
                mpmath.linspace(-12, 30, 8),
            )
        )

    with mpmath.workdps(18):
        exact = by_renyi(log_moment, 5, 1e-5)
    found = PrivacyLedger("poisson", "add/remove", rate, z, 1e-5, 5).renyi_epsilon(5)
    assert found == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("rate", "z"), [(0.1, 1.0), (0.25, 2.5), (0.5, 2.0)])
def test_epsilon_of_fixed_samples_follows_the_formula_term_by_term(rate, z):
    """Theorem 27 of Wang et al. with binomial sums in place of integrals, in 60 digits."""

    def raised(j):
        return mpmath.exp(j * (j - 1) / (2 * mpmath.mpf(z) ** 2))

    def moment(n):
        return sum((-1) ** (n - i) * mpmath.binomial(n, i) * raised(i) for i in range(n + 1))

    def log_moment(order):
        total = mpmath.mpf(1)
        for j in range(2, order + 1):
            two = 4 * (raised(2) - 1) if j == 2 else None
            within = 4 * mpmath.sqrt(moment(2 * (j // 2)) * moment(2 * -(-j // 2)))
            total += mpmath.binomial(order, j) * rate**j * min(two or within, 2 * raised(j))
        return mpmath.log(total)

    with mpmath.workdps(60):
        exact = by_renyi(log_moment, 4, 1e-5)
    ledger = PrivacyLedger("fixed", "replace", rate, 2 * z, 1e-5, 4)  # a change by twice the bound
    assert ledger.epsilon(4) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("dp_delta", [1e-5, 1e-2])
def test_a_real_pair_of_fixed_samples_is_within_the_bound(dp_delta):
    """Five numbers, two of them drawn: one of them, 1, is replaced by -1; the rest are 0."""
    z = 2.0
    t = np.linspace(-14 * z, 14 * z, 400_001)
    zero, one, other = (stats.norm.pdf(t, mean, z) for mean in (0, 1, -1))
    p, q = 0.6 * zero + 0.4 * one, 0.6 * zero + 0.4 * other
    epsilon = PrivacyLedger("fixed", "replace", 0.4, z, dp_delta, 1).epsilon(1)
    for one_way, other_way in ((p, q), (q, p)):
        delta = np.maximum(one_way - math.exp(epsilon) * other_way, 0).sum() * (t[1] - t[0])
        assert delta <= dp_delta


@pytest.mark.parametrize("dp_delta", [1e-4, 0.02])
@pytest.mark.parametrize(("rate", "z"), [(0.1, 1.0), (0.6, 0.5), (1.0, 2.0)])
def test_one_release_on_a_poisson_sample_equals_a_fine_sum(rate, z, dp_delta):
    epsilon = PrivacyLedger("poisson", "add/remove", rate, z, dp_delta, 1).epsilon(1)
    exact = max(hockey_stick(rate, z, epsilon, way) for way in ("remove", "add"))
    assert 0.99 * dp_delta <= exact <= 1.0001 * dp_delta


def test_two_releases_equal_a_double_sum():
    """The hockey-stick divergence of a product, summed over a grid of pairs of outcomes."""
    rate, z, dp_delta = 0.3, 0.8, 0.03
    epsilon = PrivacyLedger("poisson", "add/remove", rate, z, dp_delta, 2).epsilon(2)
    t = np.arange(-8 * z, 1 + 8 * z, 0.01)
    without, moved = (stats.norm.pdf(t, mean, z) * 0.01 for mean in (0, 1))
    present = (1 - rate) * without + rate * moved
    deltas = [
        np.maximum(np.outer(p, p) - math.exp(epsilon) * np.outer(q, q), 0).sum()
        for p, q in ((present, without), (without, present))
    ]
    assert 0.99 * dp_delta <= max(deltas) <= 1.001 * dp_delta


@pytest.mark.parametrize("k", [1, 7, 300, 10_000])
@pytest.mark.parametrize("z", [0.5, 3.0, 30.0])
def test_a_poisson_sample_of_everybody_is_one_gaussian(z, k):
    """Losses are rounded up: never below the exact value, and less than 1 % above it."""
    exact = gaussian_epsilon(1e-6, z)
    found = PrivacyLedger("poisson", "add/remove", 1.0, z * math.sqrt(k), 1e-6, k).epsilon(k)
    assert exact * (1 - 1e-6) <= found <= 1.01 * exact


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


@pytest.mark.parametrize("sampling", [POISSON, FIXED])
def test_a_missing_library_is_named(monkeypatch, sampling):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    ledger = PrivacyLedger(*sampling, 1.2345, 1e-5, 3)  # asked nowhere else, so not in a cache
    with pytest.raises(ImportError, match=r"pip install 'fedbolic\[accounting\]'"):
        ledger.epsilon(3)


def test_clients_without_sampling_need_no_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    ledger = PrivacyLedger(*EVERYONE, 1.2345, 1e-5, 3)
    assert f"epsilon {gaussian_epsilon(1e-5, 1.2345, 3):.4g} " in str(ledger)


@pytest.mark.parametrize(("share", "warned"), [(0.009, False), (0.02, True), (0.3, True)])
def test_a_delta_that_publishes_more_than_a_hundredth_client_is_a_warning(share, warned, caplog):
    ledger = PrivacyLedger("everyone", "add/remove", 1.0, 1.0, share / 300, 3)
    with caplog.at_level("INFO"):
        log_ledger(ledger, 300, of="clients")
    assert f"delta times the number of clients is {share:.2g}" in caplog.text
    assert (f"publish {share:.2g} of the 300 clients outright" in caplog.text) is warned


def test_no_shipped_configuration_has_so_large_a_delta():
    """The largest number of clients of a file or its base times its delta, from the text."""
    told = {"binary_tree", "hierarchy", "hierarchy_lr"}  # with the warning, on their page
    files = [file for file in CONFIGS.glob("**/*.yaml") if file.stem not in told]
    found = 0
    for file in files:
        text = file.read_text()
        if base := re.search(r"^base: (\S+)", text, re.MULTILINE):
            text += (file.parent / base[1]).read_text()
        deltas = [float(x) for x in re.findall(r"dp_delta: ([\d.e-]+)", text)]
        clients = [int(x) for x in re.findall(r"num_clients: (\d+)", text)]
        found += len(deltas)
        assert all(delta * max(clients) <= LARGEST_SHARE for delta in deltas), file
    assert found >= 6
