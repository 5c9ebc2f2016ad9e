import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedbolic.federated import CenteredClipping
from tests.federated.aggregators.vectors import rows, seeds, updates, vector


def literal(x, radius, iterations):
    """The algorithm of Karimireddy et al. from the centre 0, one client at a time."""
    v = np.zeros(x.shape[1])
    for _ in range(iterations):
        step = np.zeros_like(v)
        for row in x:
            length = np.linalg.norm(row - v)
            step += (row - v) * (min(1.0, radius / length) if length else 1.0)
        v = v + step / len(x)
    return v


@given(seeds, st.integers(1, 8), st.floats(0.1, 20), st.integers(1, 6))
def test_centered_clipping_is_the_literal_algorithm(seed, num, radius, iterations):
    x = rows(num, 4, seed)
    ours = vector(CenteredClipping(radius, iterations).aggregate(updates(x)))
    np.testing.assert_allclose(ours, literal(x, radius, iterations), rtol=1e-8, atol=1e-10)


@given(seeds)
def test_a_radius_beyond_all_deltas_gives_the_mean(seed):
    x = rows(6, 4, seed)
    total = CenteredClipping(1e6).aggregate(updates(x, range(1, 7)))
    np.testing.assert_allclose(vector(total), x.mean(axis=0), rtol=1e-10)
    assert total.metrics["centered_clipping/clipped"] == 0


@given(seeds, st.floats(0.1, 5))
def test_a_client_moves_one_iteration_by_at_most_two_radii_over_the_number(seed, radius):
    x = rows(5, 4, seed)
    rule = CenteredClipping(radius)
    honest = vector(rule.aggregate(updates(x)))
    x[1] = -1e12 * x[1]
    attacked = vector(rule.aggregate(updates(x)))
    assert np.linalg.norm(attacked - honest) <= 2 * radius / 5 * (1 + 1e-9)


def test_many_iterations_minimise_the_sum_of_huber_losses():
    x, radius = rows(7, 3, seed=0), 0.7

    def huber(v):
        d = np.linalg.norm(x - v, axis=1)
        return float(np.where(d < radius, d**2 / 2, radius * (d - radius / 2)).sum())

    ours = vector(CenteredClipping(radius, iterations=500).aggregate(updates(x)))
    best = minimize(huber, x.mean(axis=0), method="BFGS")
    assert huber(ours) <= best.fun * (1 + 1e-6)


def test_deltas_of_zero_stay_zero():
    total = CenteredClipping(1.0, iterations=3).aggregate(updates(np.zeros((3, 2))))
    np.testing.assert_array_equal(vector(total), [0, 0])


def test_a_value_out_of_range_is_refused():
    with pytest.raises(ValueError, match="radius must be a positive number"):
        CenteredClipping(0.0)
    with pytest.raises(ValueError, match="iterations must be at least 1"):
        CenteredClipping(1.0, iterations=0)
