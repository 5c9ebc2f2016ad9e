"""Minimum cuts compared with networkx and with all cuts, warping with all alignments."""

import functools
import itertools

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from flatland.rivals.affinities import GradientNorms, UpdateCosines, dtw_distance, minimum_cut

numbers = st.integers(-3, 3).map(float)
sequences = st.lists(numbers, min_size=1, max_size=5)


@st.composite
def graphs(draw):
    n = draw(st.integers(2, 7))
    rows = draw(st.lists(st.integers(0, 9), min_size=n * n, max_size=n * n))
    half = torch.tensor(rows, dtype=torch.float64).reshape(n, n).triu(1)
    return half + half.T


def weight_of(weights, side):
    other = [i for i in range(len(weights)) if i not in side]
    return float(weights[side][:, other].sum())


@given(graphs())
def test_no_cut_weighs_less_than_the_minimum_cut(weights):
    n = len(weights)
    first, second = minimum_cut(weights)
    assert sorted(first + second) == list(range(n))
    assert first[0] == 0
    assert second
    sides = (list(s) for k in range(1, n) for s in itertools.combinations(range(n), k))
    assert weight_of(weights, first) == min(weight_of(weights, side) for side in sides)


@given(graphs())
def test_the_minimum_cut_weighs_what_networkx_finds(weights):
    graph = networkx.Graph()
    for i, j in itertools.combinations(range(len(weights)), 2):
        graph.add_edge(i, j, weight=float(weights[i, j]))
    assert weight_of(weights, minimum_cut(weights)[0]) == networkx.stoer_wagner(graph)[0]


def test_two_groups_are_cut_apart():
    weights = torch.full((6, 6), 0.1)
    for group in ([0, 3, 4], [1, 2, 5]):
        weights[np.ix_(group, group)] = 5.0
    assert minimum_cut(weights) == ([0, 3, 4], [1, 2, 5])


@given(sequences, sequences)
def test_warping_takes_the_best_of_all_alignments(first, second):
    @functools.cache
    def squares(i, j):
        """Least sum of squares over all paths to positions i and j, from the definition."""
        own = (first[i] - second[j]) ** 2
        steps = [(i - 1, j), (i, j - 1), (i - 1, j - 1)]
        before = [squares(a, b) for a, b in steps if a >= 0 and b >= 0]
        return own + min(before) if before else own

    assert_close(dtw_distance(first, second) ** 2, squares(len(first) - 1, len(second) - 1))


@given(sequences, sequences)
def test_warping_is_symmetric_and_forgives_repeats(first, second):
    assert dtw_distance(first, second) == dtw_distance(second, first)
    slow = [x for x in first for _ in range(2)]
    assert dtw_distance(slow, first) == 0.0


def test_update_cosines_are_those_of_scipy():
    from scipy.spatial.distance import pdist, squareform

    updates = torch.randn(5, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = UpdateCosines().matrix(updates, updates[:, :0])
    cosines = torch.from_numpy(1 - squareform(pdist(updates, "cosine")))
    assert_close(found, cosines.clamp(min=0))


def test_opposite_updates_have_no_negative_affinity():
    updates = torch.tensor([[0.1], [-0.1]]).expand(-1, 7)
    assert (UpdateCosines().matrix(updates, updates[:, :0]) >= 0).all()


def test_standardised_norms_ignore_the_size_and_constant_ones_are_kept():
    trend = torch.tensor([1.0, 2.0, 4.0, 3.0], dtype=torch.float64)
    norms = torch.stack((trend, 100 * trend, trend.flip(0), torch.ones(4, dtype=torch.float64)))
    found = GradientNorms(4).matrix(norms[:, :0], norms)
    assert_close(found[0, 1], found.max())
    assert bool(found.isfinite().all())
    assert bool((found >= 0).all())
    plain = GradientNorms(4, standardised=False).matrix(norms[:, :0], norms)
    assert plain[0, 1] < plain[0, 2]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: minimum_cut(torch.zeros(1, 1)), "at least two nodes, got 1"),
        (lambda: minimum_cut(torch.tensor([[0.0, -1.0], [-1.0, 0.0]])), "got -1"),
        (lambda: dtw_distance([], [1.0]), "got 0 and 1"),
        (lambda: GradientNorms(1), "window"),
    ],
)
def test_bad_input_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
