"""Random draws for private counts; the only file that imports opendp."""

import secrets
from typing import Literal

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from fedbolic import check
from fedbolic.federated.privacy.integers import IntegerDraws


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
        return self.integers().laplace(scale, size)

    def integers(self) -> IntegerDraws:
        """Exact draws of integers, from the same source whatever the sampler is."""
        return IntegerDraws(self._words)

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
