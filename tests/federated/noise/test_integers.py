"""Exact integer draws against the probabilities of their definitions."""

import numpy as np
import pytest
from scipy import stats

from fedbolic.federated.noise.draws import SecretStream
from fedbolic.federated.noise.integers import LARGEST_VARIANCE, IntegerDraws

ALPHA = 1e-6
"""Rate at which a correct sampler fails a test of fit; the key is fixed, so the outcome is, too."""


def draws(name):
    return SecretStream(bytes(range(32))).at(name).integers()


def discrete_gaussian(variance, top):
    """Probabilities of -top, ..., top by their definition; the tails beyond are far below 1e-20."""
    found = np.exp(-(np.arange(-top, top + 1.0) ** 2) / (2 * variance))
    return found / found.sum()


def fits(drawn, probabilities):
    """Chi-squared test of fit; rare values at both ends are taken together."""
    top = len(probabilities) // 2
    seen = np.bincount(drawn + top, minlength=2 * top + 1)
    common = probabilities * len(drawn) > 20
    expected = np.append(probabilities[common], probabilities[~common].sum()) * len(drawn)
    found = np.append(seen[common], seen[~common].sum())
    return stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue > ALPHA


@pytest.mark.parametrize("variance", [1, 2, 9, 50])
def test_gaussian_draws_have_the_probabilities_of_the_definition(variance):
    drawn = draws(f"gaussian {variance}").gaussian(variance, 30_000)
    top = int(12 * variance**0.5) + 3
    assert fits(drawn, discrete_gaussian(variance, top))
    assert not fits(drawn, discrete_gaussian(1.15 * variance, top))


def test_the_smallest_noise_is_not_a_rounded_normal():
    """The variance of a discrete Gaussian is below that of a rounded normal draw, by 1/12."""
    n = 40_000
    drawn = draws("small").gaussian(1, n)
    exact = discrete_gaussian(1, 12) @ np.arange(-12, 13) ** 2
    spread = stats.chi2.isf([1 - 1e-6, 1e-6], n) / n
    assert spread[0] * exact < drawn.var() < spread[1] * exact < 1 + 1 / 12


def test_the_largest_noise_has_its_variance_and_does_not_overflow():
    n = 20_000
    drawn = draws("large").gaussian(LARGEST_VARIANCE, n) / LARGEST_VARIANCE**0.5
    low, high = stats.chi2(n).ppf([2e-10, 1 - 2e-10])
    assert low < (drawn**2).sum() < high
    assert abs(drawn).max() < stats.norm.isf(1e-9 / n)


@pytest.mark.parametrize("part", [0, 1, 3, 10])
def test_coins_show_true_with_an_exponential_probability(part):
    shown = draws(f"coin {part}").bernoulli_exp(np.full(40_000, part), 10)
    assert stats.binomtest(int(shown.sum()), 40_000, np.exp(-part / 10)).pvalue > ALPHA


def test_integers_below_a_bound_are_uniform():
    seen = np.bincount(draws("below").below(7, 70_000))
    assert len(seen) == 7
    assert stats.chisquare(seen).pvalue > ALPHA


def test_words_that_would_bias_the_remainder_are_skipped():
    words = iter([np.array([2**64 - 1, 5], dtype=np.uint64), np.array([6], dtype=np.uint64)])
    assert IntegerDraws(lambda size: next(words)).below(3, 2).tolist() == [0, 2]


def test_a_stream_repeats_its_integers_and_another_name_gives_others():
    one, two = (draws("again").gaussian(9, 50) for _ in range(2))
    assert (one == two).all()
    assert (one != draws("other").gaussian(9, 50)).any()


@pytest.mark.parametrize("variance", [0, LARGEST_VARIANCE + 1])
def test_a_variance_out_of_range_is_refused(variance):
    with pytest.raises(ValueError, match="variance must be at"):
        draws("").gaussian(variance, 3)
