"""Points far apart on the unit sphere, by construction where one is known, else by search."""

import numpy as np
from jaxtyping import Float
from scipy.linalg import block_diag, helmert
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from fedbolic.core.rng import Rng

SHARPNESS = (8.0, 64.0, 256.0)
"""Initial sharpness of the starts in up to 6 dimensions. No single value finds every optimum: the
best 10, 13 and 14 points in 3 dimensions are not found from 8, the best 26 only from 256."""

LAST_SHARPNESS = 2e6
"""Final sharpness, at which the largest cosine is accurate to 1e-6, about 1e-4 degrees."""


def construct(num_points: int, dim: int) -> Float[np.ndarray, "points dim"] | None:
    """Optimal points where a construction is known; ``None`` elsewhere.

    Up to ``dim + 1`` points form a regular simplex, up to ``2 dim`` a direct sum of simplices,
    whose largest cosine is 0; in the plane they form a regular polygon.

    Args:
        num_points: Number of points, at least 2.
        dim: Dimension of the space, at least 1.

    References:
        Rankin (1955), The closest packing of spherical caps in n dimensions.
    """
    if dim == 2:
        turns = 2 * np.pi * np.arange(num_points) / num_points
        return np.stack([np.cos(turns), np.sin(turns)], axis=1)
    if num_points <= dim + 1:
        return np.pad(_simplex(num_points), [(0, 0), (0, dim + 1 - num_points)])
    if num_points <= 2 * dim:
        parts = num_points - dim
        simplices = [_simplex((dim + i) // parts + 1) for i in range(parts)]
        return np.asarray(block_diag(*simplices))
    return None


def _simplex(num_points: int) -> Float[np.ndarray, "points dim"]:
    points = helmert(num_points).T
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def search(
    num_points: int, dim: int, rng: Rng, *, starts: int | None = None
) -> Float[np.ndarray, "points dim"]:
    r"""Points with a small largest cosine: the best of many random starts.

    .. math:: \min_W \; \frac1\beta \log \sum_{i \ne j} \exp(\beta \, w_i^\top w_j), \quad
        \beta = \beta_0, 3 \beta_0, 9 \beta_0, \dots

    Each start follows the minimum from a smooth problem to one close to Eq. (4). BLAS has one
    thread: with more the last bits differ, and two processes side by side wait for each other.

    Args:
        num_points: Number of points, at least 2.
        dim: Dimension of the space, at least 2.
        rng: Random stream of the starts.
        starts: Number of starts, at least 1; ``None`` for as many as take a few seconds, between 8
            and 96. One start in 30 finds the best 24 points in 4 dimensions, or 26 in 3.

    Raises:
        ValueError: If ``starts`` is below 1.

    References:
        Liao et al. (2023), Eq. (4), arXiv:2307.14384.
    """
    first = SHARPNESS if dim <= 6 else SHARPNESS[:1]  # measured: soft starts are best in high dim
    if starts is None:
        starts = min(96, max(8, 12_000 // (num_points * dim)))
    best, least = None, np.inf
    for i in range(starts):
        points = rng.at("start", i).numpy().standard_normal((num_points, dim))
        with threadpool_limits(1, "blas"):
            points = _descend(points, first[i % len(first)], least)
        largest = _cosines(points).max()
        if best is None or largest < least:
            best, least = points, largest
    if best is None:
        raise ValueError(f"starts must be at least 1, got {starts}")
    return best


def _descend(
    points: Float[np.ndarray, "points dim"], sharpness: float, least: float
) -> Float[np.ndarray, "points dim"]:
    """The minimum near ``points``, with the sharpness raised until only the largest cosine counts.

    The descent stops early if the largest cosine cannot fall below ``least``: the soft maximum
    exceeds it by at most ``log(pairs) / sharpness``.
    """
    shape = points.shape
    slack = np.log(shape[0] * (shape[0] - 1))
    while sharpness <= LAST_SHARPNESS:
        found = minimize(
            _soft_maximum,
            points.ravel(),
            args=(shape, sharpness),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 500, "maxcor": 20, "ftol": 1e-15, "gtol": 1e-10},
        )
        points = found.x.reshape(shape)
        points = points / np.linalg.norm(points, axis=1, keepdims=True)
        if found.fun - slack / sharpness > least:
            break
        sharpness *= 3
    return points


def _soft_maximum(
    flat: Float[np.ndarray, " entries"], shape: tuple[int, int], sharpness: float
) -> tuple[float, Float[np.ndarray, " entries"]]:
    """Soft maximum of the cosines of unnormalized points, and its gradient."""
    rows = flat.reshape(shape)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    points = rows / lengths
    cosines = _cosines(points)
    largest = cosines.max()
    shares = np.exp(sharpness * (cosines - largest))
    total = shares.sum()
    gradient = (2 / total) * (shares @ points)
    gradient -= (gradient * points).sum(axis=1, keepdims=True) * points
    return float(largest + np.log(total) / sharpness), (gradient / lengths).ravel()


def _cosines(points: Float[np.ndarray, "points dim"]) -> Float[np.ndarray, "points points"]:
    cosines = points @ points.T
    np.fill_diagonal(cosines, -np.inf)
    return cosines
