"""Normal draws rounded to integers, without the rounding errors of floating point."""

import mpmath
import numpy as np
import scipy
from jaxtyping import Int64
from numpy import ndarray

from fedbolic.federated.noise.draws import SecretStream

LARGEST_SCALE = 2.0**28
"""Largest standard deviation in units of the grid; with more, too many draws need many digits."""

_ERROR = 2.0**-43
"""Bound of the error of a quantile and its scaling in float64, relative to one plus the quantile.

SciPy's ``ndtri`` is right to about 2 ** -50."""


def rounded_gaussian(stream: SecretStream, size: int, *, scale: float) -> Int64[ndarray, " size"]:
    r"""Independent draws from the normal distribution, rounded to the nearest integers.

    .. math:: P(k) = \Phi\left(\frac{k + 1/2}{s}\right) - \Phi\left(\frac{k - 1/2}{s}\right)

    A whole number plus such a draw is the rounded sum of that number and a normal draw. So a sum of
    integers with this noise costs what it costs with Gaussian noise: rounding is post-processing.
    In floating point this would not hold, as the last digits of a noisy sum can betray the sum.

    A draw is the quantile of a uniform number of 64 bits, in float64. If that number and the bound
    of the error of float64 do not decide which integer is nearest, 256 more bits and a comparison
    with many digits do. The distribution of a draw is that of the formula up to a total variation
    of 2 ** -280, and the same on every machine.

    Args:
        stream: Random stream.
        size: Number of draws.
        scale: Standard deviation, s, above 0 and at most 2 ** 28.

    Raises:
        ValueError: If the scale is out of range.

    References:
        Mironov (2012), On significance of the least significant bits for differential privacy,
        doi:10.1145/2382196.2382264, for the attack on noise in floating point.

    Example:
        >>> rounded_gaussian(SecretStream(bytes(32)), 6, scale=1000.0).tolist()
        [1201, 76, 1404, 1332, -988, -1662]
    """
    if not 0 < scale <= LARGEST_SCALE:
        raise ValueError(f"scale must lie in (0, {LARGEST_SCALE:g}], got {scale}")
    words = stream.words(size)
    tail, negative = words >> np.uint64(1), (words & np.uint64(1)).astype(bool)
    # the tail probability is a number from tail to tail + 1 over 2 ** 64, below a half
    quantile = -scipy.special.ndtri((tail.astype(np.float64) + 0.5) * 2.0**-64)
    place = scale * quantile + 0.5
    found = np.floor(place)
    # the slope of a quantile is at most sqrt(pi / 2) over the tail probability
    error = scale * (_ERROR * (1 + quantile) + 1.26 / np.maximum(tail, 1))
    undecided = np.flatnonzero(np.minimum(place - found, found + 1 - place) <= error)
    found = found.astype(np.int64)
    for i in undecided.tolist():
        more = stream.at("more", i).words(4).tobytes()
        found[i] = _nearest(int(tail[i]) << 256 | int.from_bytes(more, "big"), scale)
    return np.where(negative, -found, found)


def _nearest(tail: int, scale: float) -> int:
    """The integer nearest to ``scale`` times the normal quantile of a tail probability.

    Args:
        tail: The probability in units of 2 ** -320, below a half.
        scale: Factor.
    """
    with mpmath.workprec(400):
        whole = mpmath.mpf(2) ** 320
        root = mpmath.mpf(scale) * mpmath.sqrt(2)

        def beyond(place: float) -> bool:
            return (tail + mpmath.mpf(0.5)) / whole < mpmath.erfc(place / root) / 2

        near = int(-scale * scipy.special.ndtri((tail + 0.5) * 2.0**-320) + 0.5)
        while near > 0 and not beyond(near - 0.5):
            near -= 1
        while beyond(near + 0.5):
            near += 1
    return near
