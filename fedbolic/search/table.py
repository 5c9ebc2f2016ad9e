"""The table that an index searches: what may be asked, and answers by the places' own distances."""

import dataclasses
import math
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedbolic.manifolds import Lorentz, ManifoldPlaces, Places, Poincare
from fedbolic.search.ball import UnitBall, curvature

Queries: TypeAlias = Places | Tensor | ArrayLike
"""Rows of the table, as integers; points of its manifold, one a row; or places of its kind."""

RIGHT_TO = {Lorentz: 30.0, Poincare: 20.0}
"""Radius in radii of curvature to which ``dist`` in float64 is right to a millionth."""


class NearestPoints(NamedTuple):
    """The nearest points of a table to some queries, nearest first.

    Args:
        distances: Distances by the table's own ``dist``.
        rows: Rows of the neighbours. Of points at one distance the lower row comes first, and which
            of several at the last distance are there is open.
        exact: True where no other point of the table is nearer than the last neighbour, up to the
            rounding of the distances, which is then below a millionth.
    """

    distances: Float64[Tensor, "queries k"]
    rows: Int64[Tensor, "queries k"]
    exact: Bool[Tensor, " queries"]


class Asked(NamedTuple):
    """Queries as they are searched for.

    Args:
        places: Their places.
        ball: Their images in the ball; ``None`` if float64 does not hold them or the table there.
        far: Mask of those whose distances may be wrong by more than a millionth.
    """

    places: Places
    ball: UnitBall | None
    far: Bool[Tensor, " queries"]


class SearchTable:
    """Places with checked queries, and exact distances of candidates.

    Args:
        places: Points of a hyperbolic space, at least one.

    Raises:
        ValueError: If there are no points, one of them is no point of the space, or the space is
            neither Lorentz nor Poincare with a curvature above 0.
    """

    def __init__(self, places: Places) -> None:
        if not len(places):
            raise ValueError("places hold no point: an index needs one at least")
        if isinstance(places, ManifoldPlaces):
            places = _checked(places)
        self.places = places
        self.device = next(iter(places.tensors().values())).device
        self.ball = _images(places)
        self.far = _beyond(places, self.ball)

    def __len__(self) -> int:
        """The number of points."""
        return len(self.places)

    def read(self, queries: Queries) -> Asked:
        """Queries after a check.

        Args:
            queries: Rows, points or places.

        Raises:
            ValueError: If a row does not exist, or the points are not those of the table's space.
        """
        if isinstance(queries, Places):
            self._check_kind(queries)
            return self._asked(queries)
        given = torch.as_tensor(queries).to(self.device)
        if given.is_floating_point():
            return self._asked(self._at(given))
        if given.ndim != 1 or given.dtype == torch.bool:
            raise ValueError(
                f"rows must be a list of integers, got {given.dtype} of shape {tuple(given.shape)}"
            )
        rows = given.long()
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            wrong = rows[(rows < 0) | (rows >= len(self))]
            raise ValueError(f"rows must be in 0 to {len(self) - 1}, got {int(wrong[0])}")
        ball = None if self.ball is None else self.ball.take(rows.cpu().numpy())
        return Asked(self.places[rows], ball, self.far[rows.cpu()])

    def _asked(self, queries: Places) -> Asked:
        queries = _checked(queries) if isinstance(queries, ManifoldPlaces) else queries
        ball = None if self.ball is None else _images(queries)
        return Asked(queries, ball, _beyond(queries, ball))

    def _check_kind(self, queries: Places) -> None:
        own = self.places
        same = type(queries) is type(own) and queries.dim == own.dim
        if same and isinstance(own, ManifoldPlaces) and isinstance(queries, ManifoldPlaces):
            spaces = own.manifold, queries.manifold
            same = type(spaces[0]) is type(spaces[1]) and curvature(own) == curvature(queries)
        if not same:
            raise ValueError(
                f"queries must be {type(own).__name__} in {own.dim} dimensions of the table's "
                f"space, got {type(queries).__name__} in {queries.dim}"
            )

    def _at(self, points: Tensor) -> Places:
        own = self.places
        if not isinstance(own, ManifoldPlaces):
            raise ValueError(
                f"coordinates are read for tables of a manifold, and this one holds "
                f"{type(own).__name__}: give such places instead"
            )
        if points.ndim != 2 or points.shape[1] != own.points.shape[1]:
            raise ValueError(
                f"points must be rows of {own.points.shape[1]} numbers, got the shape "
                f"{tuple(points.shape)}"
            )
        return dataclasses.replace(own, points=points)

    def count(self, k: int) -> int:
        """``k`` after a check that there are so many neighbours.

        Args:
            k: Neighbours of a query.

        Raises:
            ValueError: If there are fewer points, or ``k`` is below 1.
        """
        if not 1 <= k <= len(self):
            raise ValueError(f"k must be in 1 to {len(self)}, the number of points, got {k}")
        return k

    def answer(
        self, asked: Asked, candidates: list[NDArray], k: int, complete: NDArray
    ) -> NearestPoints:
        """The nearest of some candidates to each query.

        Args:
            asked: The queries.
            candidates: Different rows for each query, at least ``k``.
            k: Neighbours of a query.
            complete: True for queries of which the nearest points are among the candidates.
        """
        if not candidates:
            return self._none(k)
        lengths = np.array([len(rows) for rows in candidates])
        which = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths))
        rows = torch.from_numpy(np.concatenate(candidates))
        here, at = which.to(self.device), rows.to(self.device)
        with torch.no_grad():
            distances = self.places[at].dist(asked.places[here]).cpu()
        unsure = asked.far.clone()
        unsure[which[self.far[rows]]] = True
        order = np.lexsort((rows.numpy(), distances.numpy(), which.numpy()))
        first = np.cumsum(lengths) - lengths
        best = torch.from_numpy(order[first[:, None] + np.arange(k)])
        return NearestPoints(distances[best], rows[best], torch.from_numpy(complete) & ~unsure)

    def scan(self, queries: Places, k: int) -> list[NDArray]:
        """The nearest rows to each query, by the distances to all points.

        Beyond the radius to which ``dist`` is right, those that rounding may have put too far count
        as candidates, too.

        Args:
            queries: Places of the queries.
            k: Neighbours of a query.
        """
        with torch.no_grad():
            distances = queries.cdist(self.places)
        kth = distances.kthvalue(k, dim=1).values
        near = distances <= (kth * (1 + 1e-9)).unsqueeze(1)
        # a point at the boundary of the ball may be wrong by a unit, and the k-th by another
        unit = 2 / curvature(self.places) ** 0.5
        near |= self.far.to(near.device) & (distances <= kth.unsqueeze(1) + unit)
        return [row.nonzero().flatten().cpu().numpy() for row in near]

    def _none(self, k: int) -> NearestPoints:
        distances, rows = torch.zeros(0, k).double(), torch.zeros(0, k, dtype=torch.int64)
        return NearestPoints(distances, rows, torch.zeros(0, dtype=torch.bool))


def _beyond(places: Places, ball: UnitBall | None) -> Bool[Tensor, " n"]:
    """Mask of the places whose distances in float64 may be wrong by more than a millionth."""
    if ball is None or not isinstance(places, ManifoldPlaces):
        return torch.zeros(len(places), dtype=torch.bool)
    return torch.from_numpy(ball.gaps < 2 / (1 + math.cosh(RIGHT_TO[type(places.manifold)])))


def _images(places: Places) -> UnitBall | None:
    """The places in the ball; ``None`` if some lie too far out for float64 to tell them apart."""
    try:
        return UnitBall.of(places)
    except ValueError:  # of the distance alone: the space was checked before
        return None


def _checked(places: ManifoldPlaces) -> ManifoldPlaces:
    """The places without derivatives, after a check of space and points."""
    space, points = places.manifold, places.points.detach()
    if isinstance(space, Lorentz | Poincare) and isinstance(space.c, Tensor):  # it may be learnt
        space = type(space)(space.c.detach())
    places = ManifoldPlaces(space, points)
    if type(space) not in RIGHT_TO or not curvature(places) > 0:
        raise ValueError(
            f"points of {space} cannot be searched: the space must be Lorentz or Poincare with a "
            "curvature above 0"
        )
    if not points.isfinite().all():
        raise ValueError("points must be finite numbers")
    wide = points.double()
    if isinstance(space, Poincare) and not ((wide * wide).sum(1) * curvature(places) < 1).all():
        space.require(wide)
    return places
