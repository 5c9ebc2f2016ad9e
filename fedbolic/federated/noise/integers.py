"""Exact integer noise: discrete Laplace and discrete Gaussian, by integer arithmetic alone.

Noise in floating point can betray in its last digits what it hides. These samplers decide by
comparing integers, so their distributions are exactly those of the privacy proofs.
"""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from fedbolic.core import check

LARGEST_VARIANCE = 2**22
"""Largest variance of discrete Gaussian noise, for which products of integers fit 64 bits."""

_STEP = 2**16
"""Inverse step of scales, which are rounded up to a multiple of ``1 / _STEP``."""


class IntegerDraws:
    """Exact draws of integers from a source of uniform 64-bit words.

    Args:
        words: Function from a number n to n new words, independent and uniform, as uint64.

    Example:
        >>> generator = np.random.Philox(key=0)
        >>> IntegerDraws(generator.random_raw).below(7, 3).max() < 7
        np.True_
    """

    def __init__(self, words: Callable[[int], ndarray]) -> None:
        self._words = words

    def gaussian(self, variance: int, size: int) -> Int64[ndarray, " size"]:
        r"""Independent integers z with probability proportional to exp(-z² / (2 variance)).

        Args:
            variance: Square of the scale, from 1 to 2 ** 22.
            size: Number of draws.

        Raises:
            ValueError: If the variance is out of range.

        References:
            Canonne, Kamath and Steinke (2020), Algorithm 3, arXiv:2004.00010.
        """
        check.at_least(1, variance=variance)
        if variance > LARGEST_VARIANCE:
            raise ValueError(
                f"variance must be at most {LARGEST_VARIANCE}, got {variance}: use a coarser grid"
            )
        scale = math.isqrt(variance) + 1
        drawn, left = np.empty(size, dtype=np.int64), np.arange(size)
        while len(left):
            tried = self.laplace(float(scale), len(left))
            above = (np.abs(tried) * scale - variance) ** 2
            kept = self.exponential(above, 2 * variance * scale**2)
            drawn[left[kept]] = tried[kept]
            left = left[~kept]
        return drawn

    def laplace(self, scale: float, size: int) -> Int64[ndarray, " size"]:
        r"""Independent integers z with probability proportional to ``exp(-|z| / scale)``.

        Args:
            scale: Scale, above 0; rounding up to a multiple of 2 ** -16 never weakens privacy.
            size: Number of draws.

        Raises:
            ValueError: If the scale is not positive.

        References:
            Canonne, Kamath and Steinke (2020), Algorithm 2, arXiv:2004.00010.
        """
        check.positive(scale=scale)
        top = math.ceil(scale * _STEP)
        drawn, left = np.empty(size, dtype=np.int64), np.arange(size)
        while len(left):
            low = self.below(top, len(left))
            kept = self.bernoulli_exp(low, top)
            left, low, later = left[kept], low[kept], left[~kept]
            high = self._geometric(len(left))
            value = (low + top * high) // _STEP
            negative = self.below(2, len(left)).astype(bool)
            again = negative & (value == 0)  # -0 is rejected, or 0 would be twice as likely
            drawn[left] = np.where(negative, -value, value)
            left = np.concatenate([later, left[again]])
        return drawn

    def below(self, bound: int, size: int) -> Int64[ndarray, " size"]:
        """Independent integers from 0 to ``bound - 1``, exactly uniform.

        Args:
            bound: Number of values, from 1 to 2 ** 62.
            size: Number of draws.
        """
        fair = np.uint64(2**64 - 2**64 % bound - 1)  # larger words would bias the remainder
        words = np.array(self._words(size))
        while (wrong := words > fair).any():
            words[wrong] = self._words(int(wrong.sum()))
        return (words % np.uint64(bound)).astype(np.int64)

    def bernoulli_exp(self, part: Int64[ndarray, " size"], whole: int) -> ndarray:
        """Independent Bernoulli draws, true with probability exp(-part / whole), exactly.

        Args:
            part: Numerators, from 0 to ``whole``.
            whole: Common denominator, above 0.

        References:
            Canonne, Kamath and Steinke (2020), Algorithm 1, arXiv:2004.00010.
        """
        rounds = np.ones(len(part), dtype=np.int64)
        left = np.arange(len(part))
        while len(left):
            shown = self._below_each(rounds[left] * whole) < part[left]
            left = left[shown]
            rounds[left] += 1
        return rounds % 2 == 1

    def exponential(self, part: Int64[ndarray, " size"], whole: int) -> ndarray:
        """:meth:`bernoulli_exp` for numerators of any size.

        Args:
            part: Numerators, at least 0.
            whole: Common denominator, above 0.
        """
        # as many successes of exp(-1), and the rest
        rest = self.bernoulli_exp(part % whole, whole)
        return (self._geometric(len(part)) >= part // whole) & rest

    def _geometric(self, size: int) -> ndarray:
        """Number of successes with probability exp(-1) before the first failure."""
        found, left = np.zeros(size, dtype=np.int64), np.arange(size)
        while len(left):
            left = left[self.bernoulli_exp(np.ones(len(left), dtype=np.int64), 1)]
            found[left] += 1
        return found

    def _below_each(self, bounds: ndarray) -> ndarray:
        found = np.empty(len(bounds), dtype=np.int64)
        for bound in np.unique(bounds):  # few values: one for each round of the draws
            same = bounds == bound
            found[same] = self.below(int(bound), int(same.sum()))
        return found
