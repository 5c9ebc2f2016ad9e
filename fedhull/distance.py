"""Hyperbolic distances of arrays, without the cost of a tensor for each few points."""

import numpy as np
from jaxtyping import Float


def sinh_half_distance(
    x: Float[np.ndarray, "*#batch dim"], y: Float[np.ndarray, "*#batch dim"], *, c: float = 1.0
) -> Float[np.ndarray, "*#batch"]:
    r"""The hyperbolic sine of half the distance, over the root of c: it orders as distances do.

    .. math:: \frac{1}{\sqrt c} \sinh \frac{\sqrt c \, d(x, y)}{2}
        = \frac{|x - y|}{\sqrt{(1 - c |x|^2)(1 - c |y|^2)}}

    Args:
        x: Of the open Poincare ball.
        y: The others; both broadcast.
        c: Minus the curvature, 0 or more.

    Example:
        >>> sinh_half_distance(np.array([[0.0, 0.6]]), np.zeros((1, 2)))
        array([0.75])
    """
    gaps = (1 - c * _square(x)) * (1 - c * _square(y))
    return np.sqrt(_square(x - y) / gaps)


def poincare_distance(
    x: Float[np.ndarray, "*#batch dim"], y: Float[np.ndarray, "*#batch dim"], *, c: float = 1.0
) -> Float[np.ndarray, "*#batch"]:
    """The distance itself.

    Args:
        x: Of the open Poincare ball.
        y: The others; both broadcast.
        c: Minus the curvature, above 0.

    Example:
        >>> poincare_distance(np.array([[0.0, 0.6]]), np.zeros((1, 2))).round(4)
        array([1.3863])
    """
    root = c**0.5
    return 2 / root * np.arcsinh(root * sinh_half_distance(x, y, c=c))


def _square(x: np.ndarray) -> np.ndarray:
    """The squared norm; numpy's own sum is slow along a short axis."""
    return np.einsum("...d,...d->...", x, x)
