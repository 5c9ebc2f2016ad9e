import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.federated import Krum
from tests.federated.aggregators.vectors import rows, seeds, updates, vector


def literal_scores(x, f):
    """Scores of Blanchard et al., one distance at a time."""
    scores = []
    for i in range(len(x)):
        squares = [float(((x[i] - x[j]) ** 2).sum()) for j in range(len(x)) if j != i]
        scores.append(sum(sorted(squares)[: len(x) - f - 2]))
    return scores


@given(seeds, st.integers(0, 3), st.integers(0, 6), st.integers(1, 4))
def test_krum_selects_the_deltas_of_least_score(seed, f, more, selected):
    x = rows(2 * f + 3 + more, 5, seed)
    selected = min(selected, len(x) - f)
    scores = literal_scores(x, f)
    best = sorted(range(len(x)), key=scores.__getitem__)[:selected]
    total = Krum(f, num_selected=selected).aggregate(updates(x))
    np.testing.assert_allclose(vector(total), x[best].mean(axis=0), rtol=1e-12)
    assert total.metrics["krum/score"] == pytest.approx(scores[best[-1]], rel=1e-9)


@given(seeds)
def test_krum_returns_the_delta_of_one_client_bit_for_bit(seed):
    x = rows(9, 5, seed)
    assert any((vector(Krum(2).aggregate(updates(x))) == row).all() for row in x)


@given(seeds)
def test_a_large_common_part_does_not_hide_the_distances(seed):
    x = rows(9, 5, seed)
    far = Krum(2).aggregate(updates(x + 1e6))
    best = int(np.argmin(literal_scores(x + 1e6, 2)))
    np.testing.assert_array_equal(vector(far), (x + 1e6)[best])


def test_krum_by_hand():
    """Scores of the n - f - 2 = 2 nearest, per coordinate: 1 + 9, 1 + 4, 4 + 9, ...: 5 wins."""
    x = np.array([[0.0], [1.0], [3.0], [50.0], [60.0]])
    total = Krum(1).aggregate(updates(np.repeat(x, 2, axis=1)))
    np.testing.assert_array_equal(vector(total), [1.0, 1.0])
    assert total.metrics["krum/score"] == pytest.approx(2 * (1 + 4))


def test_of_equal_scores_the_first_client_wins():
    x = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    np.testing.assert_array_equal(vector(Krum(0).aggregate(updates(x))), x[0])


@pytest.mark.parametrize("num", [3, 6])
def test_too_few_clients_are_refused(num):
    with pytest.raises(ValueError, match=f"num_byzantine=2 needs at least 7 clients, and {num}"):
        Krum(2).aggregate(updates(rows(num, 2, 0)))


def test_more_selected_than_honest_clients_are_refused():
    with pytest.raises(ValueError, match="use num_selected of at most 5"):
        Krum(2, num_selected=6).aggregate(updates(rows(7, 2, 0)))


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ValueError, match="num_byzantine must be at least 0"):
        Krum(-1)
    with pytest.raises(ValueError, match="num_selected must be at least 1"):
        Krum(1, num_selected=0)
