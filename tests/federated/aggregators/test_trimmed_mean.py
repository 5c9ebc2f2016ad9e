import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import trim_mean

from fedbolic.federated import TrimmedMean, Update
from tests.federated.aggregators.vectors import rows, seeds, updates, vector


@given(seeds, st.integers(10, 25), st.sampled_from([0.1, 0.2, 0.3, 0.45]))
def test_trimmed_mean_is_that_of_scipy(seed, num, share):
    x = rows(num, 5, seed)
    total = TrimmedMean(share).aggregate(updates(x))
    np.testing.assert_allclose(vector(total), trim_mean(x, share), rtol=1e-12, atol=1e-12)
    counts = np.arange(num) * 10
    assert total.payload["buffers"]["count"].item() == round(trim_mean(counts, share))


@pytest.mark.parametrize(
    ("share", "num", "trimmed"), [(0.29, 100, 29), (0.07, 100, 7), (0.3, 20, 6)]
)
def test_rounding_of_the_share_does_not_trim_one_client_less(share, num, trimmed):
    values = [0.0] * trimmed + [1.0] * (num - 2 * trimmed) + [1e6] * trimmed
    pairs = [(i, Update({"a": torch.tensor(v)})) for i, v in enumerate(values)]
    assert TrimmedMean(share).aggregate(pairs).payload["a"] == 1


@pytest.mark.parametrize("share", [0.0, 0.5, -0.1, 1.0, float("nan")])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(ValueError, match=r"share must lie in \(0, 0.5\)"):
        TrimmedMean(share)


def test_so_few_clients_that_none_is_trimmed_are_refused():
    with pytest.raises(ValueError, match=r"TrimmedMean\(0.1\) would trim none of 9 clients"):
        TrimmedMean(0.1).aggregate(updates(rows(9, 2, 0)))


def test_payloads_of_other_shapes_are_refused():
    pairs = [(i, Update({"a": torch.zeros(i + 1)})) for i in range(4)]
    with pytest.raises(ValueError, match="differ in shape"):
        TrimmedMean(0.25).aggregate(pairs)
