"""Bins of a hyperbolic ball of any dimension: shells, divided into cells of about equal size."""

import functools
import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True)
class Shells:
    r"""Bins of a hyperbolic ball, numbered from the innermost shell outwards.

    .. math:: N = \lceil n R_H / \epsilon \rceil, \quad
        K_k = \Bigl\lceil \frac{2 n s \sinh(r_k / s)}{\sqrt{n - 1} \, \epsilon} \Bigr\rceil, \quad
        B = 2 n \sum_{k=1}^{N} K_k^{n-1}

    with n dimensions and the outer radius :math:`r_k = k R_H / N` of shell k. Directions are the
    points of the surface of a cube; each of its 2 n faces is divided into :math:`K_k^{n-1}` equal
    cubes of side :math:`2 / K_k`. Projection from a face to the unit sphere does not increase
    lengths, so directions of one cell differ by an angle of at most :math:`2 \sqrt{n-1} / K_k`.

    *Error.* A path between two points of a bin goes along a ray, at most :math:`\epsilon / n`, and
    along a sphere of radius at most :math:`r_k`, at most :math:`(n - 1) \epsilon / n`. So they are
    at most ``epsilon`` apart, and a point is at most half of that from the bin's centre. In the
    plane these are the halves of the paper's rule; the radius gets the share 1 / n because this
    makes the fewest bins.

    *Cost.* Only occupied bins are sent, so the number of bins costs no more than bits of the field,
    and the labels often need these anyway: about :math:`(n - 1) R_H / (s \ln 2)` bits for the
    radius, and n bits for each halving of ``epsilon``. Other bins were rejected because they are
    thin in places, and a thin bin reveals more about a point than ``epsilon`` says: equal
    directions in all shells are thin near the origin, a lattice in the space coordinates of the
    hyperboloid or in coordinates of even volume near the rim.

    Args:
        dim: Number of dimensions n, at least 2.
        epsilon: Largest distance within a bin, above 0.
        reach: Hyperbolic radius R_H of the ball, above 0.
        length: Unit of length s, the radius of curvature.

    Example:
        >>> shells = Shells(5, epsilon=0.1, reach=3.6, length=1.0)
        >>> len(shells.cells), shells.num_bins.bit_length()
        (180, 47)
        >>> shells.decode(shells.encode(np.array([[0.1, 0.2, 0.3, -0.4, 0.5]]))).round(2)
        array([[ 0.1,  0.2,  0.3, -0.4,  0.5]])
    """

    dim: int
    epsilon: float
    reach: float
    length: float

    @functools.cached_property
    def cells(self) -> tuple[int, ...]:
        """Number of cells along each edge of a face of the cube, in each shell."""
        num_shells = math.ceil(self.dim * self.reach / self.epsilon)
        scale = 2 * self.dim * self.length / math.sqrt(self.dim - 1) / self.epsilon
        radii = (k * self.reach / num_shells / self.length for k in range(1, num_shells + 1))
        return tuple(math.ceil(scale * math.sinh(radius)) for radius in radii)

    @property
    def num_bins(self) -> int:
        """Number of bins; they are numbered from 1."""
        return sum(self._sizes)

    @functools.cached_property
    def _sizes(self) -> tuple[int, ...]:
        """Number of bins of each shell."""
        return tuple(2 * self.dim * cells ** (self.dim - 1) for cells in self.cells)

    @functools.cached_property
    def _starts(self) -> Int[np.ndarray, " shells"]:
        """Number of bins before each shell."""
        return np.cumsum([0, *self._sizes[:-1]], dtype=np.int64)

    def encode(self, points: Float[np.ndarray, "n dim"]) -> Int[np.ndarray, " n"]:
        """Number of the bin of each point, from 1; that of the last shell beyond the ball.

        Args:
            points: Points of the open Poincare ball, not checked.
        """
        reach = 2 * self.length * np.arctanh(np.linalg.norm(points, axis=1) / self.length)
        shell = np.floor(reach / self.reach * len(self.cells)).astype(np.int64)
        shell = shell.clip(0, len(self.cells) - 1)
        cells = np.array(self.cells)[shell]
        axis = np.abs(points).argmax(axis=1)
        height = np.take_along_axis(points, axis[:, None], axis=1)[:, 0]
        others = np.take_along_axis(points, _others(self.dim, axis), axis=1).T
        scale = np.where(height == 0, 1, np.abs(height))  # the origin has no direction: any will do
        number = 2 * axis + (height < 0)
        for along in np.floor((others / scale + 1) / 2 * cells).astype(np.int64):
            number = number * cells + along.clip(0, cells - 1)
        return self._starts[shell] + number + 1

    def decode(self, bins: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n dim"]:
        """Centres of bins.

        Args:
            bins: Numbers of the bins, from 1, not checked.
        """
        shell = np.searchsorted(self._starts, bins - 1, side="right") - 1
        cells, number = np.array(self.cells)[shell], bins - 1 - self._starts[shell]
        places = []
        for _ in range(self.dim - 1):
            number, along = np.divmod(number, cells)
            places.append((2 * along + 1) / cells - 1)
        axis, negative = np.divmod(number, 2)
        directions = np.empty((len(bins), self.dim))
        np.put_along_axis(directions, axis[:, None], 1.0 - 2 * negative[:, None], axis=1)
        flat = np.stack(places[::-1], axis=1)
        np.put_along_axis(directions, _others(self.dim, axis), flat, axis=1)
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        middle = (shell + 0.5) / len(self.cells) * self.reach
        return self.length * np.tanh(middle / 2 / self.length)[:, None] * directions


def _others(dim: int, axis: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n others"]:
    """Indices of the axes other than one, ascending."""
    found = np.arange(dim - 1)[None, :]
    return found + (found >= axis[:, None])
