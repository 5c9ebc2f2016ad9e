"""Mean rank and MAP, compared with loops over all nodes and with scikit-learn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn import rank_and_map
from tests.nn.cases import points


def by_loops(d, pairs, known=()):
    """Mean rank by counting, and the mean of scikit-learn's average precisions."""
    precision = pytest.importorskip("sklearn.metrics").average_precision_score
    related = set(pairs)
    left_out = related | set(known)
    ranks, precisions = [], []
    for u in {u for u, _ in related}:
        unrelated = [w for w in range(len(d)) if w != u and (u, w) not in left_out]
        own = [v for v in range(len(d)) if (u, v) in related]
        ranks += [1 + sum(d[u][w] <= d[u][v] for w in unrelated) for v in own]
        labels = [1] * len(own) + [0] * len(unrelated)
        scores = [-d[u][w] for w in own + unrelated]
        precisions.append(precision(labels, scores))
    return np.mean(ranks), np.mean(precisions)


@st.composite
def relations(draw, most=9):
    """Distances with many ties, related pairs with repetitions, and more known pairs."""
    n = draw(st.integers(2, most))
    row = st.lists(st.integers(0, 4).map(float), min_size=n, max_size=n)
    d = draw(st.lists(row, min_size=n, max_size=n))
    node = st.integers(0, n - 1)
    pair = st.tuples(node, node).filter(lambda pair: pair[0] != pair[1])
    return d, draw(st.lists(pair, min_size=1, max_size=20)), draw(st.lists(pair, max_size=6))


def tensors(d, dtype=torch.float64):
    d = torch.tensor(d, dtype=dtype)
    return (lambda rows: d[rows]), len(d)


@given(relations(), st.integers(1, 10), st.sampled_from([torch.float32, torch.float64]))
def test_it_is_the_loop_over_nodes_whatever_the_chunks(relation, chunk, dtype):
    d, pairs, _ = relation
    rows, n = tensors(d, dtype)
    found = rank_and_map(rows, torch.tensor(pairs), num_nodes=n, chunk=chunk)
    expected = by_loops(d, pairs)
    assert found.mean_rank == pytest.approx(expected[0], rel=1e-12)
    assert found.mean_average_precision == pytest.approx(expected[1], rel=1e-12)


@given(relations(), st.integers(1, 10))
def test_known_pairs_are_neither_ranked_nor_ranked_against(relation, chunk):
    d, pairs, known = relation
    rows, n = tensors(d)
    others = torch.tensor(known, dtype=torch.int64).reshape(-1, 2)
    found = rank_and_map(rows, torch.tensor(pairs), num_nodes=n, known=others, chunk=chunk)
    expected = by_loops(d, pairs, known)
    assert found.mean_rank == pytest.approx(expected[0], rel=1e-12)
    assert found.mean_average_precision == pytest.approx(expected[1], rel=1e-12)


@given(relations())
def test_infinite_distances_are_the_farthest(relation):
    d, pairs, _ = relation
    far = [[math.inf if x == 4 else x for x in row] for row in d]
    near, n = tensors(d)
    assert rank_and_map(tensors(far)[0], torch.tensor(pairs), num_nodes=n) == rank_and_map(
        near, torch.tensor(pairs), num_nodes=n
    )


@pytest.mark.parametrize("kind", [Lorentz, Poincare])
def test_a_node_that_knows_its_neighbours_ranks_them_first(kind):
    space = kind(1.0)
    x = points(kind, 1.0, torch.linspace(0, 1, 12, dtype=torch.float64).unsqueeze(1) ** 2)
    nearest = torch.stack((torch.arange(1, 12), torch.arange(11)), 1)  # the gaps widen
    found = rank_and_map(lambda rows: space.cdist(x[rows], x), nearest, num_nodes=12, chunk=5)
    assert (found.mean_rank, found.mean_average_precision) == (1, 1)


def test_points_that_collapse_have_the_worst_rank():
    pairs = torch.tensor([[0, 1], [0, 2], [3, 4]])
    found = rank_and_map(lambda rows: torch.zeros(len(rows), 10), pairs, num_nodes=10)
    assert found.mean_rank == pytest.approx((8 + 8 + 9) / 3)
    assert found.mean_average_precision == pytest.approx((2 / 9 + 1 / 9) / 2)


def test_a_node_may_be_related_to_all_others():
    d = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
    pairs = torch.tensor([[0, v] for v in range(1, 6)])
    found = rank_and_map(lambda rows: d[rows], pairs, num_nodes=6)
    assert (found.mean_rank, found.mean_average_precision) == (1, 1)


def test_only_chunks_of_rows_with_related_nodes_are_computed():
    seen = []

    def rows_of(rows):
        seen.append(rows.tolist())
        return torch.rand(len(rows), 100)

    pairs = torch.tensor([[7, 1], [90, 2], [7, 3], [50, 7]])
    rank_and_map(rows_of, pairs, num_nodes=100, chunk=2)
    assert seen == [[7, 50], [90]]


def test_no_graph_is_kept():
    x = torch.rand(4, 2, requires_grad=True)
    grads = []

    def rows_of(rows):
        grads.append((x[rows] @ x.T).requires_grad)
        return torch.cdist(x[rows], x)

    rank_and_map(rows_of, torch.tensor([[0, 1]]), num_nodes=4)
    assert grads == [False]


@pytest.mark.parametrize(
    ("pairs", "d", "message"),
    [
        (torch.zeros(0, 2, dtype=torch.int64), torch.zeros(4, 4), "at least one pair"),
        (torch.tensor([[2, 2]]), torch.zeros(4, 4), "pair of 2 with itself"),
        (torch.tensor([[0, 4]]), torch.zeros(4, 4), r"nodes in \[0, 4\), got 0 to 4"),
        (torch.tensor([[0, 1]]), torch.zeros(4, 3), r"shape \(1, 4\) for 1 nodes, got \(1, 3\)"),
        (torch.tensor([[0, 1]]), torch.full((4, 4), math.nan), "must not be NaN"),
        (torch.tensor([[0, 1]]), torch.ones(4, 4, dtype=torch.int64), "floating point, got"),
    ],
)
def test_bad_input_is_refused(pairs, d, message):
    with pytest.raises(ValueError, match=message):
        rank_and_map(lambda rows: d[rows], pairs, num_nodes=4)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_scores():
    generator = torch.Generator().manual_seed(0)
    d = torch.randint(0, 30, (50, 50), generator=generator).double()
    pairs = torch.randint(0, 25, (99, 2), generator=generator) + torch.tensor([0, 25])
    there = d.cuda()
    expected = rank_and_map(lambda rows: d[rows], pairs, num_nodes=50, chunk=7)
    found = rank_and_map(lambda rows: there[rows], pairs.cuda(), num_nodes=50, chunk=7)
    assert found.mean_rank == expected.mean_rank
    assert found.mean_average_precision == pytest.approx(expected.mean_average_precision)
