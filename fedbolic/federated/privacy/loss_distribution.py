"""Privacy loss distributions of the Gaussian mechanism on Poisson samples, composed numerically."""

import functools
import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float64
from numpy import ndarray
from scipy.signal import fftconvolve
from scipy.special import ndtr, ndtri

from fedbolic import check
from fedbolic.federated.privacy.gaussian import check_delta

Direction: TypeAlias = Literal["remove", "add"]


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """Distribution of the privacy loss on a grid, never better than the true one.

    Losses are rounded up to multiples of ``step``; probabilities that were cut off count as an
    infinite loss.

    Args:
        step: Distance of the grid points, above 0.
        first: Number of steps of the smallest loss.
        masses: Probabilities of the losses ``(first + i) * step``.
        infinite: Probability of an infinite loss.
    """

    step: float
    first: int
    masses: Float64[ndarray, " n"]
    infinite: float

    def compose(self, other: "LossDistribution", *, cut: float) -> "LossDistribution":
        """Loss distribution of two independent releases.

        Args:
            other: Loss distribution of the other release, on the same grid.
            cut: Probability at each end that may be cut off.
        """
        # rounding of the transform may leave -1e-19
        masses = np.maximum(fftconvolve(self.masses, other.masses), 0.0)
        infinite = self.infinite + other.infinite - self.infinite * other.infinite
        low = int(np.searchsorted(np.cumsum(masses), cut))
        above = np.cumsum(masses[::-1])
        high = len(masses) - int(np.searchsorted(above, cut))
        low = min(low, high - 1)
        kept = masses[low:high].copy()
        kept[0] += masses[:low].sum()  # a loss rounded up
        lost = float(masses[high:].sum())
        return LossDistribution(self.step, self.first + other.first + low, kept, infinite + lost)

    def delta(self, epsilon: float) -> float:
        r"""Delta at ``epsilon``, :math:`E \max(0, 1 - e^{\varepsilon - L})`.

        Args:
            epsilon: Epsilon, at least 0.
        """
        losses = self.step * (self.first + np.arange(len(self.masses)))
        gains = -np.expm1(np.minimum(epsilon - losses, 0.0))
        return min(1.0, self.infinite + float(self.masses @ gains))

    def epsilon(self, dp_delta: float) -> float:
        """Smallest epsilon, at least 0, with this delta; infinite if there is none.

        Args:
            dp_delta: Delta, in (0, 1).
        """
        check_delta(dp_delta)
        if self.infinite >= dp_delta:
            return math.inf
        if self.delta(0.0) <= dp_delta:
            return 0.0
        losses = self.step * (self.first + np.arange(len(self.masses)))
        positive = losses > 0
        losses, masses = losses[positive], self.masses[positive]
        # between two grid points delta is linear in exp(epsilon)
        above = np.cumsum(masses[::-1])[::-1]
        scaled = np.cumsum((masses * np.exp(-losses))[::-1])[::-1]
        at_points = self.infinite + above - np.exp(losses) * scaled
        i = int(np.argmax(at_points <= dp_delta))
        return math.log((self.infinite + above[i] - dp_delta) / scaled[i])


def poisson_losses(
    rate: float,
    noise_multiplier: float,
    direction: Direction,
    *,
    step: float,
    cut: float,
) -> LossDistribution:
    r"""Loss distribution of one Gaussian release on a Poisson sample.

    .. math::
        L(t) = \log\left(1 - q + q e^{t / z - 1 / (2 z^2)}\right)

    under :math:`t \sim (1 - q) N(0, 1) + q N(1 / z, 1)` if the record is removed, and -L under
    :math:`t \sim N(0, 1)` if it is added.

    Args:
        rate: Probability of every record, q, in (0, 1].
        noise_multiplier: Standard deviation over the sensitivity, z, above 0.
        direction: Record removed from, or added to, the data of the numerator.
        step: Distance of the grid points, above 0.
        cut: Probability at each end that may be cut off.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Koskela, Jälkö and Honkela (2020), Sec. 5, arXiv:1906.03049; Zhu, Dong and Wang (2022),
        Theorem 11, for both directions, arXiv:2106.08567.
    """
    check.rate(rate=rate)
    check.positive(rate=rate, noise_multiplier=noise_multiplier, step=step, cut=cut)
    z, far = noise_multiplier, -float(ndtri(cut))
    sign = 1.0 if direction == "remove" else -1.0
    top = far + 1 / z if direction == "remove" else far
    ends = sorted(sign * _loss(np.array([-far, top]), rate, z))
    first, last = math.ceil(ends[0] / step), math.ceil(ends[1] / step)
    edges = step * np.arange(first, last + 1)
    points = _point(sign * edges, rate, z)
    if direction == "remove":
        below = (1 - rate) * ndtr(points) + rate * ndtr(points - 1 / z)
    else:
        below = ndtr(-points)
    masses = np.maximum(np.diff(below, prepend=0.0), 0.0)
    return LossDistribution(step, first, masses, max(0.0, 1 - float(below[-1])))


def composed_losses(
    rate: float,
    noise_multiplier: float,
    direction: Direction,
    num_releases: int,
    *,
    step: float,
    cut: float,
) -> LossDistribution:
    """Loss distribution of several equal releases; see :func:`poisson_losses`.

    Args:
        rate: Probability of every record, in (0, 1].
        noise_multiplier: Standard deviation over the sensitivity, above 0.
        direction: Record removed from, or added to, the data of the numerator.
        num_releases: Number of releases, at least 1.
        step: Distance of the grid points, above 0.
        cut: Probability at each end that may be cut off by one operation; all of them together
            cut off at most ``2 * num_releases * cut`` from the upper end.

    Raises:
        ValueError: If an argument is out of range.
    """
    check.at_least(1, num_releases=num_releases)
    digits = reversed(f"{num_releases:b}")
    places = [place for place, digit in enumerate(digits) if digit == "1"]
    powers = [_power(rate, noise_multiplier, direction, i, step, cut) for i in places]
    return functools.reduce(lambda found, power: found.compose(power, cut=cut), powers)


@functools.lru_cache(maxsize=64)  # the rounds of a run share them
def _power(
    rate: float, z: float, direction: Direction, log2: int, step: float, cut: float
) -> LossDistribution:
    """Loss distribution of ``2 ** log2`` releases."""
    if log2 == 0:
        return poisson_losses(rate, z, direction, step=step, cut=cut)
    half = _power(rate, z, direction, log2 - 1, step, cut)
    return half.compose(half, cut=cut)


def _loss(t: ndarray, rate: float, z: float) -> ndarray:
    """Privacy loss at t if the record is removed."""
    rest = math.log1p(-rate) if rate < 1 else -math.inf
    return np.logaddexp(rest, math.log(rate) + t / z - 0.5 / z**2)


def _point(loss: ndarray, rate: float, z: float) -> ndarray:
    """Largest t with at most this loss; minus infinity if there is none."""
    small = np.minimum(loss, 1.0)  # where the difference from 1 - q matters
    with np.errstate(divide="ignore", invalid="ignore"):
        near = np.log1p(np.expm1(small) / rate)  # log of (exp(loss) - 1 + q) / q
        far = loss - math.log(rate) + np.log1p((rate - 1) * np.exp(-np.maximum(loss, 1.0)))
    ratio = np.where(loss > 1, far, near)
    return np.where(np.isnan(ratio), -np.inf, z * ratio + 0.5 / z)
