"""Random draws for private counts; the only file that imports opendp."""

import itertools

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from fedbolic.core import check
from fedbolic.core.imports import extra
from fedbolic.federated.noise.draws import SecretStream
from fedbolic.federated.noise.integers import IntegerDraws


class Noise:
    """Random draws from a secret stream, new ones in every call.

    Args:
        stream: Secret stream; by default one with a key of the operating system.
        opendp: True to let OpenDP (the extra ``dp``) draw the integers, from the system.
    """

    def __init__(self, stream: SecretStream | None = None, *, opendp: bool = False) -> None:
        stream = SecretStream.fresh() if stream is None else stream
        self.opendp, self._streams = opendp, map(stream.at, itertools.count())

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
        if self.opendp:
            return _by_opendp(scale, size)
        return self.integers().laplace(scale, size)

    def integers(self) -> IntegerDraws:
        """Exact draws of integers, from the secret stream whatever draws the noise."""
        return next(self._streams).integers()


def _by_opendp(scale: float, size: int) -> ndarray:
    with extra("dp", "noise by OpenDP"):
        from opendp.domains import atom_domain, vector_domain
        from opendp.measurements import make_laplace
        from opendp.metrics import l1_distance
        from opendp.mod import enable_features

    enable_features("contrib")
    measure = make_laplace(vector_domain(atom_domain(T=int)), l1_distance(T=int), scale=scale)
    return np.array(measure([0] * size), dtype=np.int64)
