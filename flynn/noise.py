"""Random draws for privacy, such as exact discrete Laplace; the only file that imports opendp."""

import math
import secrets
from typing import Literal

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

from fedbolic import check

_STEP = 2**16
"""Inverse step of scales, which are rounded up to a multiple of ``1 / _STEP``."""


class Noise:
    """Random draws from the operating system or, for tests only, from a seed.

    Args:
        seed: ``None`` for the randomness of the operating system. A number gives reproducible
            draws, which are not private: anybody who knows the seed can subtract them.
        sampler: ``own``, which is vectorised, or ``opendp`` (the extra ``dp``), without a seed.

    Raises:
        ValueError: If ``opendp`` is combined with a seed.
    """

    def __init__(
        self, seed: int | None = None, *, sampler: Literal["own", "opendp"] = "own"
    ) -> None:
        if seed is not None and sampler == "opendp":
            raise ValueError("OpenDP draws from the system: give no seed, or use sampler='own'")
        self.sampler = sampler
        self._seeded = None if seed is None else np.random.Philox(key=seed)

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
            again = negative & (value == 0)  # -0 is rejected, or 0 would be twice as likely
            drawn[left] = np.where(negative, -value, value)
            left = np.concatenate([later, left[again]])
        return drawn

    def gumbel(self, size: int) -> Float64[ndarray, " size"]:
        """Independent draws from the standard Gumbel distribution, in floating point.

        Args:
            size: Number of draws.
        """
        uniform = (self._words(size) >> np.uint64(11)).astype(np.float64) + 0.5
        return -np.log(-np.log(uniform * 2.0**-53))

    def below(self, bound: int, size: int) -> Int64[ndarray, " size"]:
        """Independent integers from 0 to ``bound - 1``, exactly uniform.

        Args:
            bound: Number of values, from 1 to 2 ** 62.
            size: Number of draws.
        """
        fair = np.uint64(2**64 - 2**64 % bound - 1)  # larger words would bias the remainder
        words = self._words(size)
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
