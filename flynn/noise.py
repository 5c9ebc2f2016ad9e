"""Draws for privacy: exact discrete Laplace in integers; the only file that imports opendp."""

import math
import secrets
from typing import Literal

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

from fedbolic import check

_STEP = 2**16
"""Scales are rounded up to a multiple of one over this."""


class Noise:
    """Draws of the operating system, or, for tests alone, of a seed.

    Args:
        seed: None for the system's randomness; a number gives the same draws again, which hide
            nothing from whoever knows it: not private.
        sampler: ``own``, vectorised, or ``opendp`` (the extra ``dp``), which takes no seed.

    Raises:
        ValueError: If a seed is given to OpenDP.
    """

    def __init__(
        self, seed: int | None = None, *, sampler: Literal["own", "opendp"] = "own"
    ) -> None:
        if seed is not None and sampler == "opendp":
            raise ValueError("OpenDP draws from the system: give no seed, or take sampler='own'")
        self.sampler = sampler
        self._seeded = None if seed is None else np.random.Philox(key=seed)

    def laplace(self, scale: float, size: int) -> Int64[ndarray, " size"]:
        r"""Independent draws from the integers with probability proportional to exp(-|z| / scale).

        Args:
            scale: Above 0; rounded up to a multiple of 2 ** -16, so never less private.
            size: How many.

        Raises:
            ValueError: If the scale is not positive.

        References:
            Canonne, Kamath and Steinke (2020), Algorithm 2, arXiv:2004.00010.
        """
        check.positive(scale=scale)
        if self.sampler == "opendp":
            return _by_opendp(scale, size)
        top = math.ceil(scale * _STEP)
        drawn = np.empty(size, dtype=np.int64)
        left = np.arange(size)
        while len(left):
            low = self.below(top, len(left))
            kept = self.bernoulli_exp(low, top)
            left, low, later = left[kept], low[kept], left[~kept]
            high = self._geometric(len(left))
            value = (low + top * high) // _STEP
            negative = self.below(2, len(left)).astype(bool)
            again = negative & (value == 0)  # zero must not come twice
            drawn[left] = np.where(negative, -value, value)
            left = np.concatenate([later, left[again]])
        return drawn

    def gumbel(self, size: int) -> Float64[ndarray, " size"]:
        """Independent draws of the standard Gumbel distribution, in floating point.

        Args:
            size: How many.
        """
        uniform = (self._words(size) >> np.uint64(11)).astype(np.float64) + 0.5
        return -np.log(-np.log(uniform * 2.0**-53))

    def below(self, bound: int, size: int) -> Int64[ndarray, " size"]:
        """Independent integers from 0 to ``bound - 1``, exactly uniform.

        Args:
            bound: From 1 to 2 ** 62.
            size: How many.
        """
        fair = np.uint64(2**64 - 2**64 % bound - 1)  # the last word before a part of a cycle
        words = self._words(size)
        while (wrong := words > fair).any():
            words[wrong] = self._words(int(wrong.sum()))
        return (words % np.uint64(bound)).astype(np.int64)

    def bernoulli_exp(self, part: Int64[ndarray, " size"], whole: int) -> ndarray:
        """Independent coins that show true with probability exp(-part / whole), exactly.

        Args:
            part: From 0 to ``whole``.
            whole: Above 0.

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

    def _geometric(self, size: int) -> ndarray:
        """Number of successes of a coin of probability exp(-1) before the first failure."""
        found, left = np.zeros(size, dtype=np.int64), np.arange(size)
        while len(left):
            left = left[self.bernoulli_exp(np.ones(len(left), dtype=np.int64), 1)]
            found[left] += 1
        return found

    def _below_each(self, bounds: ndarray) -> ndarray:
        found = np.empty(len(bounds), dtype=np.int64)
        for bound in np.unique(bounds):  # few: the round that a coin is in
            same = bounds == bound
            found[same] = self.below(int(bound), int(same.sum()))
        return found

    def _words(self, size: int) -> ndarray:
        if self._seeded is not None:
            return np.atleast_1d(self._seeded.random_raw(size))
        return np.frombuffer(secrets.token_bytes(8 * size), dtype=np.uint64).copy()


def _by_opendp(scale: float, size: int) -> ndarray:
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_laplace
    from opendp.metrics import l1_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    measure = make_laplace(vector_domain(atom_domain(T=int)), l1_distance(T=int), scale=scale)
    return np.array(measure([0] * size), dtype=np.int64)
