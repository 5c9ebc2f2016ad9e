import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedbolic.federated import GeometricMedian
from tests.federated.aggregators.vectors import rows, seeds, updates, vector


def objective(z, x, weights):
    return float(np.average(np.linalg.norm(x - z, axis=1), weights=weights))


@given(seeds, st.lists(st.integers(1, 9), min_size=3, max_size=9))
def test_no_other_point_has_a_smaller_mean_distance(seed, weights):
    x = rows(len(weights), 4, seed)
    ours = vector(GeometricMedian().aggregate(updates(x, weights)))
    found = minimize(objective, x.mean(axis=0), (x, weights), method="BFGS")
    best = min([found.fun, *(objective(row, x, weights) for row in x)])
    assert objective(ours, x, weights) <= best * (1 + 1e-5)


def test_fermat_point_of_an_equilateral_triangle_is_its_centroid():
    angles = np.pi * np.array([0, 2, 4]) / 3
    x = np.stack([5 + np.cos(angles), np.sin(angles)], axis=1)
    ours = vector(GeometricMedian().aggregate(updates(x)))
    np.testing.assert_allclose(ours, [5, 0], atol=1e-9)


def test_fermat_point_of_a_triangle_with_an_obtuse_corner_is_that_corner():
    x = np.array([[0.0, 0.0], [1.0, 0.2], [-1.0, 0.2]])  # an angle above 120 degrees
    ours = vector(GeometricMedian().aggregate(updates(x)))
    np.testing.assert_allclose(ours, [0, 0], atol=1e-4)


@given(seeds)
def test_a_client_of_more_than_half_the_weight_decides(seed):
    x = rows(5, 3, seed)
    ours = vector(GeometricMedian().aggregate(updates(x, [9.0, 1.0, 1.0, 1.0, 1.0])))
    np.testing.assert_allclose(ours, x[0], atol=1e-4)


def test_three_steps_are_those_of_the_literal_algorithm():
    x, alpha = rows(7, 4, seed=0), np.arange(1, 8) / 28
    z = alpha @ x
    for _ in range(3):
        beta = alpha / np.maximum(1e-6, np.linalg.norm(x - z, axis=1))
        z = beta @ x / beta.sum()
    rule = GeometricMedian(tolerance=0.0, max_steps=3)
    total = rule.aggregate(updates(x, range(1, 8)))
    np.testing.assert_allclose(vector(total), z, rtol=1e-10)
    assert total.metrics["geometric_median/steps"] == 3


def test_a_smoothing_beyond_all_distances_gives_the_weighted_mean():
    x, weights = rows(6, 3, seed=0), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    ours = vector(GeometricMedian(smoothing=1e6).aggregate(updates(x, weights)))
    np.testing.assert_allclose(ours, np.average(x, axis=0, weights=weights), rtol=1e-12)


def test_no_weight_at_all_is_refused():
    with pytest.raises(ValueError, match="weights of all updates are zero"):
        GeometricMedian().aggregate(updates(rows(3, 2, 0), [0.0, 0.0, 0.0]))


@pytest.mark.parametrize("wrong", [{"smoothing": 0.0}, {"tolerance": -1.0}, {"max_steps": 0}])
def test_a_value_out_of_range_is_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        GeometricMedian(**wrong)
