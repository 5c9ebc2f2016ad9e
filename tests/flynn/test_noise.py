import importlib.util
import math

import numpy as np
import pytest
from scipy import stats

from fedbolic.core.rng import Rng
from flynn.noise import Noise
from tests.seeded import SeededKeys

ALPHA = 1e-9
"""Rate at which a correct sampler fails a test of fit; with a seed, the outcome never changes."""


def seeded(number):
    return Noise(SeededKeys().stream(Rng(number)))


def probabilities(scale, top):
    """Probabilities of -top, ..., top, with the tails added to the ends."""
    q = math.exp(-1 / scale)
    found = (1 - q) / (1 + q) * q ** np.abs(np.arange(-top, top + 1))
    found[[0, -1]] += (1 - found.sum()) / 2
    return found


def fits(drawn, scale):
    top = max(1, round(4 * scale))
    seen = np.bincount(np.clip(drawn, -top, top) + top, minlength=2 * top + 1)
    return stats.chisquare(seen, probabilities(scale, top) * len(drawn)).pvalue > ALPHA


@pytest.mark.parametrize("scale", [0.3, 1.0, 7.5, 60.0])
def test_noise_is_discrete_laplace(scale):
    drawn = seeded(1).laplace(scale, 60_000)
    assert fits(drawn, scale)
    assert not fits(seeded(1).laplace(1.1 * scale, 60_000), scale)


@pytest.mark.skipif(importlib.util.find_spec("opendp") is None, reason="needs opendp")
def test_noise_is_that_of_opendp():
    ours = seeded(2).laplace(7.5, 20_000)
    theirs = Noise(opendp=True).laplace(7.5, 20_000)
    assert fits(theirs, 7.5)
    values = range(-20, 21)
    table = [[(np.clip(d, -20, 20) == v).sum() for v in values] for d in (ours, theirs)]
    assert stats.chi2_contingency(table).pvalue > ALPHA


def test_a_seed_repeats_and_the_system_does_not():
    one, two = (seeded(6).laplace(5.0, 50) for _ in range(2))
    assert (one == two).all()
    one, two = (Noise().laplace(5.0, 50) for _ in range(2))
    assert (one != two).any()


def test_no_noise_is_refused():
    with pytest.raises(ValueError, match="scale must be a positive number"):
        seeded(0).laplace(0.0, 5)
