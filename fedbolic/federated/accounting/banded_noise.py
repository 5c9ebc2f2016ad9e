"""Correlated noise by a banded matrix: most of a round's noise is taken back in later rounds."""

import functools

import numpy as np
import scipy
from jaxtyping import Float64, Int64
from numpy import ndarray
from torch import Tensor

from fedbolic.core import check

DIGITS = 8
"""Binary digits of a coefficient after the point, and of a round's own noise below the grid."""


@functools.lru_cache(maxsize=64)
def banded_coefficients(rounds: int, bands: int) -> tuple[float, ...]:
    r"""Banded Toeplitz matrix with the least error of the sums of all rounds so far.

    .. math:: \min_c \|c\|^2 \, \frac{1}{n} \|A C^{-1}\|_F^2, \qquad C_{ij} = c_{i - j}, \quad
        c_0 = 1, \quad A_{ij} = [i \ge j]

    Noise :math:`C^{-1} z` on the sums g of the rounds costs what independent noise z on
    :math:`C g` costs. A client that takes part in rounds that are at least as far apart as there
    are bands changes as many disjoint groups of rows, each by its update times :math:`\|c\|`.

    Args:
        rounds: Number of rounds, n, at least 1.
        bands: Number of coefficients, from 1 to n.

    Returns:
        The coefficients, as multiples of 2 ** -8. Noise of multiplier z on columns of norm 1 is
        noise of z times their norm on these.

    Raises:
        ValueError: If a number is out of range.

    References:
        Choquette-Choo et al. (2023), (Amplified) banded matrix factorization, arXiv:2306.08153;
        McKenna (2024), Sec. 3, for Toeplitz matrices, arXiv:2405.15913.

    Example:
        >>> banded_coefficients(30, 3)
        (1.0, 0.63671875, 0.5)
    """
    check.at_least(1, rounds=rounds, bands=bands)
    if bands > rounds:
        raise ValueError(f"bands must be at most {rounds}, the number of rounds, got {bands}")
    ones, left = np.ones(rounds), np.arange(rounds, 0, -1) / rounds

    def loss(tail: Float64[ndarray, " tail"]) -> tuple[float, Float64[ndarray, " tail"]]:
        c = np.append(1.0, tail)
        sums = scipy.signal.lfilter([1.0], c, ones)  # a column of A inverse(C)
        error, square = float(left @ sums**2), float(c @ c)
        adjoint = scipy.signal.lfilter([1.0], c, (2 * left * sums)[::-1])[::-1]
        of_error = [-adjoint[j:] @ sums[: rounds - j] for j in range(1, bands)]
        return error * square, square * np.array(of_error) + 2 * error * tail

    start = np.cumprod(1 - 0.5 / np.arange(1, bands))  # optimal for as many bands as rounds
    found = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B").x if bands > 1 else []
    return (1.0, *(round(float(c) * 2**DIGITS) / 2**DIGITS for c in found))


def add_round(
    earlier: dict[str, Tensor], own: Int64[Tensor, " size"], coefficients: tuple[float, ...]
) -> tuple[dict[str, Tensor], Int64[Tensor, " size"]]:
    r"""Noise of another round, rounded to integers, and the noise that later rounds need.

    .. math:: e_t = \Big\lfloor 2^{-8} z_t - \sum_{i > 0} c_i e_{t - i} \Big\rceil

    With sums of integers g, the release is :math:`g_t + e_t = \lfloor (C g)_t + 2^{-8} z_t -
    \sum_{i > 0} c_i (g_{t - i} + e_{t - i}) \rceil`. So it follows from :math:`C g + 2^{-8} z` and
    from earlier releases, and rounding is post-processing.

    Args:
        earlier: Noise of earlier rounds, by their distance as text; empty before the first round.
        own: Independent noise of the round, z, in units of 2 ** -8.
        coefficients: Result of :func:`banded_coefficients`.

    Example:
        >>> import torch
        >>> first, noise = add_round({}, torch.tensor([512]), (1.0, 0.5))
        >>> noise, add_round(first, torch.tensor([0]), (1.0, 0.5))[1]
        (tensor([2]), tensor([-1]))
    """
    total = own.clone()
    for name, noise in earlier.items():
        total -= int(coefficients[int(name)] * 2**DIGITS) * noise
    noise = (total + 2 ** (DIGITS - 1)) >> DIGITS
    recent = {"1": noise} | {str(int(name) + 1): old for name, old in earlier.items()}
    return {name: old for name, old in recent.items() if int(name) < len(coefficients)}, noise
