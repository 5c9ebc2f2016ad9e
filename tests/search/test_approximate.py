"""The graph with its metric, and other indices, which an extra installs."""

import ctypes

import numpy as np
import pytest
import torch

from fedbolic.manifolds import Lorentz, Poincare, PolarPlaces, to_lorentz
from fedbolic.search import ApproximateIndex, Faiss, Hnswlib, HyperbolicIndex, Qdrant
from fedbolic.search.approximate import _metric
from tests.search.test_index import drawn, wide_distances


@pytest.fixture
def points():
    return drawn(1, 900, 3, 11.0)


def share_found(found, distances, k):
    """Share of answers that are no farther than the ``k``-th distance of brute force."""
    rows = found.rows.numpy()
    assert all(len(set(row)) == k for row in rows)
    given = np.take_along_axis(distances, rows, 1)
    np.testing.assert_allclose(found.distances, given, atol=1e-7)
    return np.mean(given <= np.sort(distances, axis=1)[:, k - 1 : k] * (1 + 1e-9))


@pytest.mark.parametrize("hyperboloid", [False, True])
def test_the_graph_and_the_tree_find_what_brute_force_finds(points, hyperboloid):
    pytest.importorskip("usearch")
    pytest.importorskip("numba")
    space = Lorentz(0.5) if hyperboloid else Poincare(0.5)
    table = points / 0.5**0.5
    table = to_lorentz(Poincare(0.5), table) if hyperboloid else table
    index = ApproximateIndex.of(space, table)
    rows = torch.arange(0, 900, 30)
    distances = wide_distances(points[rows], points) / 0.5**0.5
    found = index.search(rows, 10)
    assert share_found(found, distances, 10) > 0.98
    assert not found.exact.any()
    assert torch.equal(index.search(table[rows], 10).rows, found.rows)


def test_a_row_far_out_finds_itself(points):
    """The graph alone finds a fifth of them: links lead inward."""
    pytest.importorskip("usearch")
    pytest.importorskip("numba")
    rows = torch.arange(900)
    found = ApproximateIndex.of(Poincare(), points).search(rows, 5)
    assert torch.equal(found.rows[:, 0], rows)


def test_the_compiled_metric_is_the_formula(points):
    numba = pytest.importorskip("numba")
    gaps = 1 - points.square().sum(1, keepdim=True)
    vectors = torch.cat((points, 1 / gaps), 1).numpy()
    number = ctypes.POINTER(ctypes.c_double)
    x, y = (vectors[row].ctypes.data_as(number) for row in (5, 8))
    found = _metric(numba, 3).ctypes(x, y)
    distance = wide_distances(points[5:6], points[8:9])[0, 0]
    assert found == pytest.approx(np.sinh(distance / 2) ** 2, rel=1e-6)


def test_options_and_places_out_of_range_are_refused():
    with pytest.raises(ValueError, match="connectivity"):
        ApproximateIndex.of(Poincare(), torch.zeros(3, 2), connectivity=1)
    far = PolarPlaces(torch.arange(3), torch.tensor([1.0, 2.0, 60.0]).double())
    with pytest.raises(ValueError, match="HyperbolicIndex"):
        ApproximateIndex(far)


@pytest.mark.parametrize(
    ("package", "kind"), [("hnswlib", Hnswlib), ("faiss", Faiss), ("qdrant_client", Qdrant)]
)
def test_other_indices_answer_the_shifted_queries(points, package, kind):
    pytest.importorskip(package)
    rows = torch.arange(0, 900, 60)
    found = HyperbolicIndex.of(Poincare(), points, kind).search(rows, 10)
    assert not found.exact.any()
    assert share_found(found, wide_distances(points[rows], points), 10) > 0.95
