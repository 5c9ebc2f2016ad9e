"""Approximate nearest neighbours by a graph of the hyperbolic metric and a k-d tree."""

import functools
import math
from importlib import import_module
from typing import Any, no_type_check

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedbolic.core import check
from fedbolic.core.imports import extra
from fedbolic.manifolds import Manifold, ManifoldPlaces, Places
from fedbolic.search.euclidean import KDTree
from fedbolic.search.table import NearestPoints, Queries, SearchTable

BUILDING = 128
"""Candidates for the links of a new point of the graph."""


class ApproximateIndex:
    r"""Nearest neighbours by usearch's graph (HNSW) with a compiled metric, and by scipy's tree.

    .. math:: \sinh^2 \frac d 2 = \frac{|x - y|^2}{(1 - |x|^2)(1 - |y|^2)}

    The graph walks by this function of float64 points, compiled by numba. It finds neighbours
    nearer to the origin. It rarely finds those farther out: the links of a point lead inward, to
    points that are near to thousands, and these keep a few links back. So candidates of the graph
    are joined by those nearest to the query in the ball, where a neighbour far out must be.

    The answer is ordered by ``dist`` of the places, and never said to be exact.

    Args:
        places: Points of a hyperbolic space: ``ManifoldPlaces`` for a table on a manifold.
        connectivity: Links of a point in the graph, at least 2.
        expansion: Candidates of the graph, at least 1.
        local: Candidates nearest in the ball, at least 1.

    Raises:
        ValueError: If an option is out of its range, the places are no points of a hyperbolic
            space, or float64 does not tell them apart in the ball.
        MissingExtraError: If usearch or numba is not installed.

    References:
        Malkov and Yashunin (2018), arXiv:1603.09320, for the graph; Prokhorenkova et al. (2022),
        ICLR, for graphs in hyperbolic space.
    """

    def __init__(
        self,
        places: Places,
        *,
        connectivity: int = 48,
        expansion: int = 64,
        local: int = 48,
    ) -> None:
        check.at_least(2, connectivity=connectivity)
        check.at_least(1, expansion=expansion, local=local)
        self._table, self._local, self._expansion = SearchTable(places), local, expansion
        if self._table.ball is None:
            raise ValueError(
                "float64 does not tell the places apart in the ball: use HyperbolicIndex, which "
                "then looks at all of them"
            )
        ball = self._table.ball
        self._tree = KDTree(ball.coordinates)
        self._graph = _new_graph(ball.coordinates.shape[1], connectivity, expansion)
        self._graph.add(np.arange(len(ball.gaps)), _vectors(*ball), threads=1)

    @classmethod
    def of(
        cls, space: Manifold, points: Tensor | ArrayLike, *, connectivity: int = 48
    ) -> "ApproximateIndex":
        """The index of a table of points.

        Args:
            space: Lorentz or Poincare.
            points: Its points, one a row, of torch or numpy.
            connectivity: As for the class.
        """
        places = ManifoldPlaces(space, torch.as_tensor(points))
        return cls(places, connectivity=connectivity)

    def search(self, queries: Queries, k: int) -> NearestPoints:
        """Points of the table near to each query, nearest first; a row finds itself, too.

        Args:
            queries: Rows of the table, as integers; points of its manifold, one a row; or places
                of its kind.
            k: Neighbours of a query, at most the number of points.

        Raises:
            ValueError: If ``k`` or a row is out of range, or the points are not those of the
                table's space, or float64 does not hold them in the ball.
        """
        k, asked = self._table.count(k), self._table.read(queries)
        if asked.ball is None:
            raise ValueError("float64 does not hold the queries in the ball: use HyperbolicIndex")
        vectors = zip(asked.ball.coordinates, _vectors(*asked.ball), strict=True)
        found = [self._candidates(x, vector, k) for x, vector in vectors]
        return self._table.answer(asked, found, k, np.zeros(len(found), dtype=bool))

    def _candidates(self, x: NDArray, vector: NDArray, k: int) -> NDArray:
        self._graph.expansion_search = max(self._expansion, k)
        walked = self._graph.search(vector, k, threads=1).keys.astype(np.int64)
        local = min(max(self._local, k), len(self._table))
        return np.union1d(walked, self._tree.nearest(x, local, within=math.inf))


def _vectors(coordinates: NDArray, gaps: NDArray) -> NDArray:
    return np.concatenate((coordinates, 1 / gaps[:, None]), axis=1)


def _new_graph(dim: int, connectivity: int, expansion: int) -> Any:
    with extra("search", "ApproximateIndex", "use HyperbolicIndex"):
        usearch: Any = import_module("usearch.index")
        numba: Any = import_module("numba")
    metric = usearch.CompiledMetric(
        pointer=_metric(numba, dim).address,
        kind=usearch.MetricKind.Unknown,
        signature=usearch.MetricSignature.ArrayArray,
    )
    return usearch.Index(
        ndim=dim + 1,
        metric=metric,
        dtype="f64",
        connectivity=connectivity,
        expansion_add=BUILDING,
        expansion_search=expansion,
    )


@functools.cache  # usearch holds the address alone, so the function must stay
def _metric(numba: Any, dim: int) -> Any:
    """``sinh^2`` of half the distance of two vectors, as C would have it."""
    vector = numba.types.CPointer(numba.types.float64)

    @numba.cfunc(numba.types.float32(vector, vector))
    @no_type_check
    def squared_sinh(x, y):
        total = 0.0
        for i in range(dim):
            total += (x[i] - y[i]) ** 2
        return total * x[dim] * y[dim]

    return squared_sinh
