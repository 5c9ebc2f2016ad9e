"""Rényi differential privacy of Gaussian releases with sampling."""

import math

import numpy as np
from jaxtyping import Float64
from numpy import ndarray
from scipy.special import gammaln

from fedbolic import check
from fedbolic.federated.privacy.gaussian import check_delta

ORDERS = tuple(
    map(float, (*(1 + k / 10 for k in range(1, 100)), *range(11, 65), 80, 96, 128, 192, 256))
)
"""Orders at which divergences are computed; any order gives a valid bound."""

_STEP = 0.01
"""Step of quadrature, in standard deviations: for these integrands it is exact to rounding."""

_FARTHEST = 1e4
"""Largest number of standard deviations to integrate over; beyond, sampling is not credited."""


def renyi_poisson(
    rate: float, noise_multiplier: float, orders: tuple[float, ...] = ORDERS
) -> Float64[ndarray, " orders"]:
    r"""Rényi divergences of the Gaussian mechanism on a Poisson sample, for add/remove neighbours.

    .. math::
        \frac{1}{\alpha - 1} \log E_{t \sim N(0, 1)} \left[
            \left(1 - q + q e^{t / z - 1 / (2 z^2)}\right)^\alpha \right]

    The other direction is never larger.

    Args:
        rate: Probability of every record, q, in [0, 1].
        noise_multiplier: Standard deviation over the sensitivity, z, above 0.
        orders: Orders alpha, above 1.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Mironov, Talwar and Zhang (2019), Sec. 3, arXiv:1908.10530.
    """
    check.rate(rate=rate)
    check.positive(noise_multiplier=noise_multiplier)
    if rate == 0:
        return np.zeros(len(orders))
    found = []
    for order in orders:
        if order / noise_multiplier > _FARTHEST:
            found.append(order / (2 * noise_multiplier**2))
            continue
        points = _points(order / noise_multiplier)
        loss = np.logaddexp(
            math.log1p(-rate) if rate < 1 else -math.inf,
            math.log(rate) + points / noise_multiplier - 0.5 / noise_multiplier**2,
        )
        found.append(_log_mean(points, order * loss) / (order - 1))
    return np.maximum(found, 0.0)


def renyi_fixed_size(
    rate: float, noise_multiplier: float, orders: tuple[float, ...] = ORDERS
) -> Float64[ndarray, " orders"]:
    r"""Bound of the Rényi divergences on a sample of fixed size, for replace-one neighbours.

    .. math::
        \frac{1}{\alpha - 1} \log \Bigl( 1 + \binom{\alpha}{2} q^2 \min\{4 (e^{1 / z^2} - 1),
            2 e^{1 / z^2}\} + \sum_{j=3}^{\alpha} \binom{\alpha}{j} q^j \min\{4 \sqrt{B_{2
            \lfloor j / 2 \rfloor} B_{2 \lceil j / 2 \rceil}}, 2 e^{j (j - 1) / (2 z^2)}\} \Bigr)

    with :math:`B_l = E_{t \sim N(0, 1)} (e^{t / z - 1 / (2 z^2)} - 1)^l`. Between integers the
    logarithm is interpolated linearly, which bounds it because it is convex.

    Args:
        rate: Size of the sample over the number of records, q, in [0, 1].
        noise_multiplier: Standard deviation over the sensitivity to a replaced record, z, above 0.
        orders: Orders alpha, above 1.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Wang, Balle and Kasiviswanathan (2019), Theorem 27 and Corollary 10, arXiv:1808.00087.
    """
    check.rate(rate=rate)
    check.positive(noise_multiplier=noise_multiplier)
    if rate in (0, 1):
        return np.array(orders) / (2 * noise_multiplier**2) * rate
    top = math.ceil(max(orders))
    terms = _fixed_size_terms(top, rate, noise_multiplier)
    logs = np.array([0.0, 0.0, *(_log_sum(order, terms) for order in range(2, top + 1))])
    whole = np.floor(orders).astype(int)
    share = np.array(orders) - whole
    upper = np.minimum(whole + 1, top)
    return ((1 - share) * logs[whole] + share * logs[upper]) / (np.array(orders) - 1)


def renyi_epsilon(
    divergences: Float64[ndarray, " orders"],
    dp_delta: float,
    orders: tuple[float, ...] = ORDERS,
) -> float:
    r"""Epsilon that Rényi divergences imply; infinite if they imply none.

    .. math::
        \min_\alpha \varepsilon_\alpha + \log \frac{\alpha - 1}{\alpha}
            - \frac{\log(\delta \alpha)}{\alpha - 1}

    Args:
        divergences: Divergences of all releases together: those of single releases add up.
        dp_delta: Delta, in (0, 1).
        orders: Their orders, above 1.

    Raises:
        ValueError: If ``dp_delta`` is out of range.

    References:
        Canonne, Kamath and Steinke (2020), Proposition 12, arXiv:2004.00010.

    Example:
        >>> round(renyi_epsilon(np.full(31, 1.1), 1e-5, tuple(map(float, range(2, 33)))), 6)
        1.327838
    """
    check_delta(dp_delta)
    order = np.array(orders)
    bounds = divergences + np.log1p(-1 / order) - np.log(dp_delta * order) / (order - 1)
    return max(0.0, float(bounds.min()))


def _points(centre: float) -> ndarray:
    """Points of quadrature around 0 and ``centre``, 40 standard deviations to each side."""
    return np.arange(-40.0, centre + 40.0, _STEP)


def _log_mean(points: ndarray, values: ndarray) -> float:
    """Logarithm of the mean of exp(values) under the standard normal distribution."""
    density = -(points**2) / 2 - 0.5 * math.log(2 * math.pi)
    return _log_total(values + density) + math.log(_STEP)


def _fixed_size_terms(top: int, rate: float, z: float) -> ndarray:
    """Logarithms of the factors of the binomials, for j from 0 to ``top``."""
    log_moments = dict.fromkeys(range(2, top + 2, 2), math.inf)
    for even in log_moments:
        if even / z > _FARTHEST:
            break
        points = _points(even / z)
        loss = points / z - 0.5 / z**2
        with np.errstate(divide="ignore"):  # the loss may be 0 at one point
            ratio = np.log(np.abs(np.expm1(np.minimum(loss, 40.0))))
        log_moments[even] = _log_mean(points, even * np.where(loss > 40, loss, ratio))
    terms = np.full(top + 1, -math.inf)
    for j in range(2, top + 1):
        within = log_moments[j // 2 * 2] / 2 + log_moments[-(-j // 2) * 2] / 2
        terms[j] = min(math.log(4) + within, math.log(2) + j * (j - 1) / (2 * z**2))
        terms[j] += j * math.log(rate)
    return terms


def _log_sum(order: int, terms: ndarray) -> float:
    j = np.arange(order + 1)
    binomials = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    return float(np.logaddexp(0.0, _log_total((binomials + terms[: order + 1])[2:])))


def _log_total(logs: ndarray) -> float:
    """Logarithm of the sum of the exponentials."""
    largest = float(logs.max())
    return largest + math.log(float(np.exp(logs - largest).sum()))
