"""Hyperbolic distances between NumPy points, without the overhead of tensors for small arrays."""

import numpy as np
import torch
from jaxtyping import Float

from fedbolic.manifolds import Poincare


def sinh_half_distance(
    x: Float[np.ndarray, "*#batch dim"], y: Float[np.ndarray, "*#batch dim"], *, c: float = 1.0
) -> Float[np.ndarray, "*#batch"]:
    r"""Hyperbolic sine of half the distance over the root of c, a monotonic function of distance.

    .. math:: \frac{1}{\sqrt c} \sinh \frac{\sqrt c \, d(x, y)}{2}
        = \frac{|x - y|}{\sqrt{(1 - c |x|^2)(1 - c |y|^2)}}

    Args:
        x: Points of the open Poincare ball.
        y: Other points, which broadcast with ``x``.
        c: Minus the curvature, 0 or more.

    Example:
        >>> sinh_half_distance(np.array([[0.0, 0.6]]), np.zeros((1, 2)))
        array([0.75])
    """
    gaps = (1 - c * _square(x)) * (1 - c * _square(y))
    # by coordinate, since loops over a short last axis are slow
    apart = sum(np.square(x[..., k] - y[..., k]) for k in range(x.shape[-1]))
    return np.sqrt(apart / gaps)


def poincare_distance(
    x: Float[np.ndarray, "*#batch dim"], y: Float[np.ndarray, "*#batch dim"], *, c: float = 1.0
) -> Float[np.ndarray, "*#batch"]:
    """Geodesic distance in the Poincare ball.

    Args:
        x: Points of the open Poincare ball.
        y: Other points, which broadcast with ``x``.
        c: Minus the curvature, above 0.

    Example:
        >>> poincare_distance(np.array([[0.0, 0.6]]), np.zeros((1, 2))).round(4)
        array([1.3863])
    """
    root = c**0.5
    return 2 / root * np.arcsinh(root * sinh_half_distance(x, y, c=c))


def median_point(
    points: Float[np.ndarray, "n dim"], *, c: float = 1.0
) -> Float[np.ndarray, " dim"]:
    r"""Point whose logarithm at the origin has the medians of the points' logarithms.

    .. math:: \exp_0 \operatorname{median}_x \log_0 x

    Args:
        points: Points of the open Poincare ball, at least one.
        c: Minus the curvature, above 0.

    Example:
        >>> median_point(np.array([[0.1, 0.0], [0.5, 0.0], [0.9, 0.0]])).round(9)
        array([0.5, 0. ])
    """
    space = Poincare(c)
    middle = np.median(space.logmap0(torch.from_numpy(points)).numpy(), axis=0)
    return space.expmap0(torch.from_numpy(middle)).numpy()


def _square(x: np.ndarray) -> np.ndarray:
    """Squared norm along the last axis, where NumPy's ``sum`` is slow if the axis is short."""
    return np.einsum("...d,...d->...", x, x)
