"""Class prototypes in the Poincare ball, in directions as far apart as possible."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from fedbolic.core import check
from fedbolic.core.log import logger
from fedbolic.core.reading import read_arrays
from fedbolic.core.rng import Rng
from hyperfed.sphere import construct, search


def prototypes(
    num_classes: int, dim: int, slope: float, *, seed: int = 0
) -> Float64[Tensor, "classes dim"]:
    """Fixed class prototypes in the Poincare ball: the directions of :func:`tammes` at one radius.

    Args:
        num_classes: Number of classes, at least 2.
        dim: Dimension of the ball, at least 1.
        slope: Euclidean distance from the origin over the ball's radius, in (0, 1).
        seed: Seed of the search, used where no construction is known.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Liao et al. (2023), Sec. 4.3, arXiv:2307.14384.

    Example:
        >>> prototypes(2, 3, 0.9).norm(dim=1)
        tensor([0.9000, 0.9000], dtype=torch.float64)
    """
    check_slope(slope)
    return slope * tammes(num_classes, dim, seed=seed)


def check_slope(slope: float) -> None:
    """Check that prototypes at this radius are distinct and at a finite distance.

    Raises:
        ValueError: If ``slope`` is not in (0, 1).
    """
    if not 0 < slope < 1:
        raise ValueError(
            f"slope must lie in (0, 1), got {slope}: at 1 the prototypes are infinitely far away"
        )


def tammes(num_classes: int, dim: int, *, seed: int = 0) -> Float64[Tensor, "classes dim"]:
    r"""Unit vectors with the largest known least angle (the Tammes problem).

    .. math:: W^* = \arg\min_{|w_i| = 1} \, \max_{i \ne j} \, w_i^\top w_j

    In the plane, and for at most ``2 dim`` classes, the result is exact and optimal for every seed.
    Otherwise it is the best of many descents, computed once and stored in the user's cache folder.

    Departs from the paper: it optimises Eq. (4) instead of the surrogate Eq. (5), which favours
    merging two classes; :func:`eq5` optimises the surrogate.

    Args:
        num_classes: Number of classes, at least 2; a line has room for exactly 2.
        dim: Dimension of the space, at least 1.
        seed: Seed of the search, used where no construction is known.

    Raises:
        ValueError: If there is no such set of distinct directions.

    References:
        Liao et al. (2023), Eq. (4), arXiv:2307.14384; Rankin (1955).

    Example:
        >>> min_angle(tammes(4, 2))
        90.0
    """
    _check_size(num_classes, dim)
    points = construct(num_classes, dim)
    return _searched(num_classes, dim, seed) if points is None else torch.from_numpy(points)


def eq5(
    num_classes: int, dim: int, *, seed: int = 0, lr: float = 0.1, steps: int = 5000
) -> Float64[Tensor, "classes dim"]:
    r"""The paper's prototypes, from gradient steps on the mean largest cosine of the classes.

    .. math:: L_P = \frac1C \sum_i \max_j M_{ij}, \quad M = W W^\top - 2 I

    For comparison only: two classes may end with the same prototype.

    Args:
        num_classes: Number of classes, at least 2.
        dim: Dimension of the space, at least 1.
        seed: Seed of the initial directions.
        lr: Step size, above 0; rows are normalized after each step.
        steps: Number of steps, at least 0.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Liao et al. (2023), Eq. (5), arXiv:2307.14384; step size and steps from the authors' code.

    Example:
        >>> min_angle(eq5(2, 3)) > 179
        True
    """
    _check_size(num_classes, dim)
    check.positive(lr=lr)
    check.at_least(0, steps=steps)
    w = Rng(seed).at("eq5").numpy().standard_normal((num_classes, dim))
    w /= np.linalg.norm(w, axis=1, keepdims=True)
    for _ in range(steps):
        nearest = (w @ w.T - 2 * np.eye(num_classes)).argmax(axis=1)
        gradient = w[nearest]
        np.add.at(gradient, nearest, w)
        w = w - lr / num_classes * gradient
        w /= np.linalg.norm(w, axis=1, keepdims=True)
    return torch.from_numpy(w)


def turned(
    points: Float[Tensor, "classes dim"], generator: torch.Generator
) -> Float[Tensor, "classes dim"]:
    """Points after a random orthogonal transformation, in random order.

    Args:
        points: Points of the ball.
        generator: Random generator on the CPU.
    """
    num_classes, dim = points.shape
    normal = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(normal)
    orthogonal = (q * r.diagonal().sign()).to(points)  # the signs make it uniform (Haar)
    return points[torch.randperm(num_classes, generator=generator)] @ orthogonal


def min_angle(points: Float64[Tensor, "points dim"]) -> float:
    """Least angle between any two unit vectors, in degrees.

    The formula is accurate for nearly equal and nearly opposite vectors, unlike an inverse cosine.

    Args:
        points: Unit vectors, at least 2.

    Raises:
        ValueError: If there are fewer than 2 vectors.

    References:
        Kahan (2006), How Futile are Mindless Assessments of Roundoff, Sec. 12.

    Example:
        >>> min_angle(torch.eye(3, dtype=torch.float64))
        90.0
    """
    if len(points) < 2:
        raise ValueError(f"an angle needs two points, got {len(points)}")
    i, j = torch.triu_indices(len(points), len(points), offset=1)
    apart, together = (points[i] - points[j]).norm(dim=1), (points[i] + points[j]).norm(dim=1)
    return float(torch.rad2deg(2 * torch.atan2(apart, together)).min())


def _check_size(num_classes: int, dim: int) -> None:
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}: nothing to separate")
    check.at_least(1, dim=dim)
    if dim == 1 and num_classes > 2:
        raise ValueError(f"a line has two directions, not {num_classes}: dim must be at least 2")


def _searched(num_classes: int, dim: int, seed: int) -> Tensor:
    """Result of the search, from the user's cache if it is there."""
    from fedbolic.data.files.download import cache

    path = cache() / "tammes" / f"{num_classes}x{dim}-seed{seed}.npz"
    points = _read(path, (num_classes, dim))
    if points is None:
        logger.info("placing %d prototypes in %d dimensions, once", num_classes, dim)
        points = torch.from_numpy(search(num_classes, dim, Rng(seed).at("tammes")))
        _write(path, points)
    return points


def _read(path: Path, shape: tuple[int, int]) -> Tensor | None:
    """Cached points, if their shape, their unit norms and the stored least angle are correct."""
    try:
        kept = read_arrays(path, ("points", "angle"))
        points, angle = torch.from_numpy(kept["points"]), float(kept["angle"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s cannot be read, so the prototypes are computed again: %s", path, error)
        return None
    if (
        points.shape == shape
        and points.dtype == torch.float64
        and bool(((points.norm(dim=1) - 1).abs() < 1e-12).all())
        and abs(min_angle(points) - angle) < 1e-9
    ):
        return points
    logger.warning("%s is damaged, so the prototypes are computed again", path)
    return None


def _write(path: Path, points: Tensor) -> None:
    """Cache the points; the rename at the end keeps readers from seeing half a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            part = Path(folder) / path.name
            np.savez(part, points=points.numpy(), angle=min_angle(points))
            part.replace(path)
    except OSError as error:  # with a full or read-only disk, the next run only searches again
        logger.warning("the prototypes could not be kept in the cache: %s", error)
