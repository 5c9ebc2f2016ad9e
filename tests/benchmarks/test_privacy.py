"""The audit of privacy: its test of hypotheses against counting, and both of its verdicts."""

import itertools
import math
from dataclasses import replace

import pytest
from scipy.stats import binom

from benchmarks import privacy
from benchmarks.privacy import audit
from fedbolic.federated import ClientPrivacy
from fedbolic.testing.audit import chance, lower_bound
from tests.seeded import SeededKeys

PRIVACY = ClientPrivacy(dp_delta=1e-5, epsilon=2.0, clip_norm=0.1, noise=SeededKeys())


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
def test_without_delta_the_chance_is_that_of_randomised_answers_counted_one_by_one(epsilon):
    share = math.exp(epsilon) / (1 + math.exp(epsilon))
    for right in range(7):
        exact = sum(
            math.prod(share if hit else 1 - share for hit in hits)
            for hits in itertools.product((0, 1), repeat=6)
            if sum(hits) >= right
        )
        assert chance(right, 6, 50, epsilon, 0.0) == pytest.approx(exact)


def test_delta_adds_the_largest_mean_probability_below():
    found = chance(8, 10, 20, 0.5, 1e-3)
    share = math.exp(0.5) / (1 + math.exp(0.5))
    below = [sum(binom.pmf(8 - k, 10, share) for k in range(1, i + 1)) / i for i in range(1, 9)]
    assert found == pytest.approx(binom.sf(7, 10, share) + 2 * 20 * 1e-3 * max(below))


def test_more_right_guesses_disprove_more():
    bounds = [lower_bound(right, 100, 1000, 1e-5) for right in (50, 70, 90, 100)]
    assert bounds == sorted(bounds)
    assert bounds[0] == 0
    exact = math.log(0.05 ** (1 / 100) / (1 - 0.05 ** (1 / 100)))  # all right, without delta
    assert lower_bound(100, 100, 1000, 0.0) == pytest.approx(exact, abs=0.011)


def test_the_audit_is_below_the_ledger_with_noise_and_above_any_promise_without(monkeypatch):
    """The first verdict is wrong for one run in twenty at most; here it is far from the bound."""
    monkeypatch.setattr(privacy, "CLIENTS", 400)
    noisy = audit(PRIVACY, seed=0)
    assert noisy["audit"] < noisy["ledger"] <= 2.0
    silent = audit(replace(PRIVACY, epsilon=None, noise_multiplier=1e-6), seed=0)
    assert silent["right"] == 1.0
    assert silent["audit"] > 2.0
