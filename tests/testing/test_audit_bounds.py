"""Bounds of audits: chances of guesses against counting, and what right guesses disprove."""

import itertools
import math

import pytest
from scipy.stats import binom

from fedbolic.testing.audit import chance, lower_bound


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
