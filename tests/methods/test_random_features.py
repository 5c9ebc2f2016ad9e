"""Products of random features against scikit-learn's Gaussian kernel."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from sklearn.metrics.pairwise import rbf_kernel

from fedbolic.methods import RandomFeatures


@pytest.mark.parametrize("bandwidth", [0.5, 1.0, 3.0])
def test_products_are_those_of_a_gaussian_kernel(bandwidth):
    features = RandomFeatures(num=50_000, bandwidth=bandwidth)
    z = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mapped = features(z, features.draw(3, seed=1))
    kernel = rbf_kernel(z.numpy(), gamma=1 / (2 * bandwidth**2))
    # a product is a mean of 50,000 numbers of deviation at most sqrt(2): eight of its deviations
    np.testing.assert_allclose((mapped @ mapped.T).numpy(), kernel, atol=8 * (2 / 50_000) ** 0.5)


def test_frequencies_are_normal_and_phases_uniform():
    drawn = RandomFeatures(num=2_000, bandwidth=4.0).draw(3, seed=2)
    assert kstest(4 * drawn["frequencies"].flatten(), "norm").pvalue > 1e-6
    assert kstest(drawn["phases"] / (2 * np.pi), "uniform").pvalue > 1e-6


def test_a_seed_gives_one_draw_and_another_seed_another():
    features = RandomFeatures(num=4)
    first, again, other = (features.draw(2, seed) for seed in (3, 3, 4))
    assert torch.equal(first["frequencies"], again["frequencies"])
    assert not torch.equal(first["frequencies"], other["frequencies"])


@pytest.mark.parametrize(
    ("settings", "message"), [({"num": 0}, "num"), ({"bandwidth": 0.0}, "bandwidth")]
)
def test_a_value_out_of_range_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RandomFeatures(**settings)
