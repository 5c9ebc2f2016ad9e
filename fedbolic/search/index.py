"""Exact nearest neighbours in hyperbolic space by queries of a Euclidean index."""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedbolic.manifolds import Manifold, ManifoldPlaces, Places
from fedbolic.search.ball import shifted_ball
from fedbolic.search.euclidean import EuclideanIndex, KDTree
from fedbolic.search.table import NearestPoints, Queries, SearchTable

INNERMOST = 512
"""Fewest points nearest to the origin, to which all others are near, that give the first radius."""

INNER_SHARE = 128
"""Share of a large table, one in so many points, that takes their place."""

MOST = 8
"""Share of a table, one in so many points, from which looking at all of them is cheaper."""


class HyperbolicIndex:
    r"""Exact nearest neighbours in a table of hyperbolic points.

    A ball of hyperbolic radius :math:`r` about :math:`q` is a Euclidean ball of the Poincaré model
    about another centre. With :math:`u = \sinh^2 (r / 2)` and :math:`g = 1 - |q|^2`,

    .. math:: B(q, r) = \Bigl\{ x : \Bigl| x - \frac{q}{1 + g u} \Bigr|
        \le \frac{g \sqrt{u (1 + u)}}{1 + g u} \Bigr\}.

    A search begins with the ``k``-th distance :math:`r` to the points nearest to the origin. It
    asks a Euclidean index for the ``m > k`` points nearest to the shifted centre within the shifted
    radius, takes the ``k``-th distance among them as the new :math:`r`, and asks again.

    *Exact.* The ball always holds the ``k`` nearest points, since ``k`` points are known within
    :math:`r`. Where the index finds fewer than ``m`` points in it, these are all of its points.

    *Ends.* Otherwise it found the ``m`` nearest to the centre, all in the ball, so the ``k``-th
    of their distances is at most :math:`r`. If it is below, the ball shrinks; there are
    finitely many distances. If it is not, ties at :math:`r` fill the ball: ``m`` is multiplied by
    four, and from an eighth of the table on all distances are computed.

    *Rounding.* Distances are bounded from above, and the radius is enlarged by all that float64 may
    cost, so the argument holds for the given points. The answer is ordered by ``dist`` of the
    places. Where these cannot be told apart in the ball, every query looks at all points
    (``scans``). ``exact`` is False beyond 20 radii in the ball and 30 on the hyperboloid, where
    ``dist`` itself is rounded, and where the Euclidean index may miss points.

    Args:
        places: Points of a hyperbolic space: ``ManifoldPlaces`` for a table on a manifold.
        euclidean: Makes a Euclidean index of points of the unit ball, float64, one point a row.

    Raises:
        ValueError: If there are no points, one of them is no point of the space, or the space is
            neither Lorentz nor Poincare with a curvature above 0.

    References:
        The shifted ball is classical. Nearest neighbours by it, or by other Euclidean structures:
        Nielsen and Nock (2010), arXiv:0903.3287; Krauthgamer and Lee (2006), FOCS; Wu and Charikar
        (2020), arXiv:2009.00836; Kisfaludi-Bak and van Wordragen (2023), arXiv:2305.01356.

    Example:
        >>> from fedbolic.manifolds import Poincare
        >>> table = torch.tensor([[0.0, 0.0], [0.5, 0.0], [0.9, 0.0], [0.0, 0.9]])
        >>> index = HyperbolicIndex.of(Poincare(), table)
        >>> distances, rows, exact = index.search([2], k=2)
        >>> rows.tolist(), exact.tolist()
        ([[2, 1]], [True])
    """

    def __init__(
        self, places: Places, euclidean: Callable[[NDArray], EuclideanIndex] = KDTree
    ) -> None:
        self._table = SearchTable(places)
        if self._table.ball is not None:
            self._rows = np.argsort(-self._table.ball.gaps, kind="stable")
            self._ball = self._table.ball.take(self._rows)
            self._euclidean = euclidean(self._ball.coordinates)

    @classmethod
    def of(
        cls,
        space: Manifold,
        points: Tensor | ArrayLike,
        euclidean: Callable[[NDArray], EuclideanIndex] = KDTree,
    ) -> "HyperbolicIndex":
        """The index of a table of points.

        Args:
            space: Lorentz or Poincare.
            points: Its points, one a row, of torch or numpy.
            euclidean: As for the class.
        """
        return cls(ManifoldPlaces(space, torch.as_tensor(points)), euclidean)

    def __len__(self) -> int:
        """The number of points."""
        return len(self._table)

    @property
    def scans(self) -> bool:
        """True if the ball in float64 cannot hold the places, so that a query looks at all."""
        return self._table.ball is None

    def search(self, queries: Queries, k: int) -> NearestPoints:
        """The nearest points of the table to each query; a row finds itself, too.

        Args:
            queries: Rows of the table, as integers; points of its manifold, one a row; or places
                of its kind.
            k: Neighbours of a query, at most the number of points.

        Raises:
            ValueError: If ``k`` or a row is out of range, or the points are not those of the
                table's space.
        """
        k, asked = self._table.count(k), self._table.read(queries)
        found: list[NDArray | None] = [None] * len(asked.places)
        if asked.ball is not None:
            found = [self._candidates(x, g, k) for x, g in zip(*asked.ball, strict=True)]
        complete = np.array([rows is None or self._euclidean.exact for rows in found], dtype=bool)
        left = [i for i, rows in enumerate(found) if rows is None]
        scanned = self._table.scan(asked.places[torch.tensor(left)], k) if left else []
        for i, rows in zip(left, scanned, strict=True):
            found[i] = rows
        return self._table.answer(asked, [rows for rows in found if rows is not None], k, complete)

    def _candidates(self, x: NDArray, gap: float, k: int) -> NDArray | None:
        """Rows that hold the nearest to a query; ``None`` if all distances must be computed."""
        ball, euclidean = self._ball, self._euclidean
        most = max(INNERMOST, 2 * k, len(self) // INNER_SHARE)
        inner = ball.bounds(x, gap, slice(0, most))
        known = np.argpartition(inner, k - 1)[:k]
        u, count = float(inner[known].max()), 2 * k + 16
        while count * MOST <= len(self):
            centre, radius = shifted_ball(x, gap, u)
            if radius == math.inf:
                return None
            rows = euclidean.nearest(centre, count, within=radius)
            apart = ball.coordinates[rows] - centre
            inside = np.einsum("nd,nd->n", apart, apart) <= radius * radius
            if euclidean.exact and np.count_nonzero(inside) < count:
                return self._rows[rows]
            known = np.union1d(known, rows)
            least = float(np.partition(ball.bounds(x, gap, known), k - 1)[k - 1])
            if least >= u:
                if not euclidean.exact:
                    return self._rows[known]
                count *= 4
            u = min(u, least)
        return None
