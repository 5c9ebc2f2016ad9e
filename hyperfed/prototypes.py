"""Class prototypes: directions as far apart as possible, and their place in the Poincare ball."""

import tempfile
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from fedbolic import check
from fedbolic.log import logger
from fedbolic.rng import Rng
from hyperfed.sphere import construct, search


def prototypes(
    num_classes: int, dim: int, slope: float, *, seed: int = 0
) -> Float64[Tensor, "classes dim"]:
    """The fixed prototypes of all classes in the Poincare ball: :func:`tammes` at one radius.

    Args:
        num_classes: At least 2.
        dim: Of the ball.
        slope: Their distance from the origin as a share of the ball's radius, in (0, 1).
        seed: Of the search, where no construction is known.

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
    """Refuse a radius at which prototypes meet or are infinitely far away.

    Raises:
        ValueError: If it is not in (0, 1).
    """
    if not 0 < slope < 1:
        raise ValueError(
            f"slope must lie in (0, 1), got {slope}: at 1 the prototypes are infinitely far away"
        )


def tammes(num_classes: int, dim: int, *, seed: int = 0) -> Float64[Tensor, "classes dim"]:
    r"""Unit vectors whose least angle is as large as is known how to make it.

    .. math:: W^* = \arg\min_{|w_i| = 1} \, \max_{i \ne j} \, w_i^\top w_j

    Exact and optimal in the plane and for at most ``2 dim`` classes, whatever the seed. Else the
    best of many descents, found once and kept in the user's cache folder.

    Departs from the paper: it optimises Eq. (4), not its surrogate Eq. (5), which prefers to merge
    two classes; :func:`eq5` is that one.

    Args:
        num_classes: At least 2.
        dim: Of the space, at least 1; on the line there is room for two.
        seed: Of the search, where no construction is known.

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
    r"""The paper's prototypes: gradient steps on the mean over classes of the largest cosine.

    .. math:: L_P = \frac1C \sum_i \max_j M_{ij}, \quad M = W W^\top - 2 I

    For comparison only: it may end with two classes at one place.

    Args:
        num_classes: At least 2.
        dim: Of the space.
        seed: Of the start.
        lr: Step size; rows are scaled to length one after each step.
        steps: How many.

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
    """The points after a random rotation or reflection about the origin, and in random order.

    Args:
        points: Of the ball.
        generator: Of the randomness, on the CPU.
    """
    num_classes, dim = points.shape
    normal = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(normal)
    orthogonal = (q * r.diagonal().sign()).to(points)  # without the signs not evenly distributed
    return points[torch.randperm(num_classes, generator=generator)] @ orthogonal


def min_angle(points: Float64[Tensor, "points dim"]) -> float:
    """The least angle between two of some directions, in degrees.

    Accurate for near and for opposite ones, where an inverse cosine is not.

    Args:
        points: Unit vectors, at least two.

    Raises:
        ValueError: If there are fewer.

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
        raise ValueError(f"there is nothing to keep apart: num_classes is {num_classes}, not 2+")
    check.at_least(1, dim=dim)
    if dim == 1 and num_classes > 2:
        raise ValueError(f"a line has two directions, not {num_classes}: dim must be at least 2")


def _searched(num_classes: int, dim: int, seed: int) -> Tensor:
    """The result of the search from the user's cache, or made and put there."""
    from fedbolic.data.download import cache

    path = cache() / "tammes" / f"{num_classes}x{dim}-seed{seed}.npz"
    points = _read(path, (num_classes, dim))
    if points is None:
        logger.info("placing %d prototypes in %d dimensions, once", num_classes, dim)
        points = torch.from_numpy(search(num_classes, dim, Rng(seed).at("tammes")))
        _write(path, points)
    return points


def _read(path: Path, shape: tuple[int, int]) -> Tensor | None:
    """Kept points, if they are intact: of the right shape, unit rows and the angle told beside."""
    try:
        # numpy leaves a file open that is not a zip archive, so it does not get to open it
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            points, angle = torch.from_numpy(kept["points"]), float(kept["angle"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, TypeError, BadZipFile) as error:
        logger.warning("%s cannot be read and is made again: %s", path, error)
        return None
    if (
        points.shape == shape
        and points.dtype == torch.float64
        and bool(((points.norm(dim=1) - 1).abs() < 1e-12).all())
        and abs(min_angle(points) - angle) < 1e-9
    ):
        return points
    logger.warning("%s does not hold the points that were written: made again", path)
    return None


def _write(path: Path, points: Tensor) -> None:
    """Keep points, under another name first, so that no reader sees half a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            part = Path(folder) / path.name
            np.savez(part, points=points.numpy(), angle=min_angle(points))
            part.replace(path)
    except OSError as error:  # a full or read-only disk costs time at the next use, no more
        logger.warning("the prototypes could not be kept: %s", error)
