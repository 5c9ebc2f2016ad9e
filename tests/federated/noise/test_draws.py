import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedbolic.core.rng import Rng
from fedbolic.federated.noise.draws import SecretStream, SystemKeys
from tests.seeded import SeededKeys

STREAM = SecretStream(bytes(range(32)))


def test_draws_are_standard_normal():
    """Kolmogorov-Smirnov, at a level of 1e-9 (the key is fixed, so the outcome is, too)."""
    found = stats.kstest(STREAM.normal(200_000).numpy(), "norm")
    assert found.pvalue > 1e-9


def test_fresh_noise_has_its_variance():
    """Bounds that 100,000 normal draws miss with a probability below 1e-9."""
    n = 100_000
    x = SecretStream.fresh().normal(n).numpy()
    low, high = stats.chi2(n).ppf([2e-10, 1 - 2e-10])
    assert low < (x**2).sum() < high
    assert abs(x.sum()) < stats.norm.isf(1e-10) * math.sqrt(n)


def test_streams_of_two_names_are_uncorrelated_and_of_one_name_equal():
    n = 50_000
    a, b = (STREAM.at("round", i).normal(n).numpy() for i in (1, 2))
    assert abs(np.corrcoef(a, b)[0, 1]) < 6.5 / math.sqrt(n)
    assert torch.equal(STREAM.at("round", 1).normal(5), STREAM.at("round").at(1).normal(5))
    assert not torch.equal(STREAM.at("a", 1).normal(5), STREAM.at("a1").normal(5))


def test_keys_of_the_system_differ_and_those_of_a_seed_repeat():
    assert SystemKeys().stream(Rng(3)).key != SystemKeys().stream(Rng(3)).key
    assert SeededKeys().stream(Rng(3)) == SeededKeys().stream(Rng(3))
    assert SeededKeys().stream(Rng(3)).key != SeededKeys().stream(Rng(4)).key


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_draw_has_the_size_asked_for(size):
    assert STREAM.normal(size).shape == (size,)
