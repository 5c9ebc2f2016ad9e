"""Distances of arrays compared with mpmath's 50 digits, near the origin and far out."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhull.geometry.distance import poincare_distance, sinh_half_distance
from tests.fedhull.geometry.test_hull import cluster, spread


def exact(x, y, c):
    """The distance by the inverse hyperbolic cosine, which loses digits and so needs 50."""
    with mpmath.workdps(50):
        x, y = ([mpmath.mpf(float(v)) for v in of] for of in (x, y))
        apart = sum((a - b) ** 2 for a, b in zip(x, y, strict=True))
        gaps = [1 - c * sum(a**2 for a in of) for of in (x, y)]
        return float(mpmath.acosh(1 + 2 * c * apart / (gaps[0] * gaps[1])) / mpmath.sqrt(c))


@given(st.integers(0, 2**31), st.sampled_from([0.25, 1.0, 4.0]), st.integers(1, 4))
def test_distances_are_those_of_fifty_digits(seed, c, dim):
    x, y = spread(seed, 4, c, dim=dim), spread(seed + 1, 3, c, dim=dim)
    expected = [[exact(a, b, c) for b in y] for a in x]
    np.testing.assert_allclose(poincare_distance(x[:, None], y, c=c), expected, rtol=1e-12)


def test_far_out_they_have_the_digits_that_gaps_have():
    x = cluster(0, 6, 20.0)  # gaps of 1e-8
    expected = [[exact(a, b, 1) for b in x] for a in x]
    np.testing.assert_allclose(poincare_distance(x[:, None], x), expected, rtol=1e-6)


def test_of_flat_space_it_is_half_of_the_metric_of_the_ball():
    x, y = np.array([[3.0, 4.0]]), np.zeros((1, 2))
    assert sinh_half_distance(x, y, c=0.0) == pytest.approx(5.0)
