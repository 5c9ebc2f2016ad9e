"""Exact privacy of the Gaussian mechanism without sampling."""

import math

import scipy

from fedbolic.core import check


def gaussian_delta(epsilon: float, noise_multiplier: float, num_releases: int = 1) -> float:
    r"""Exact delta of Gaussian releases.

    .. math::
        \delta = \Phi\left(\frac{\mu}{2} - \frac{\varepsilon}{\mu}\right)
            - e^{\varepsilon} \Phi\left(-\frac{\mu}{2} - \frac{\varepsilon}{\mu}\right), \qquad
        \mu = \frac{\sqrt{k}}{z}

    k releases of noise multiplier z are one release of noise multiplier :math:`z / \sqrt k`.

    Args:
        epsilon: Epsilon, at least 0.
        noise_multiplier: Standard deviation over the sensitivity, z, above 0.
        num_releases: Number of releases, k, at least 0.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Balle and Wang (2018), Theorem 8, arXiv:1805.06530.

    Example:
        >>> round(gaussian_delta(1.0, 3**0.5, 3), 6)
        0.126937
    """
    check.not_negative(epsilon=epsilon)
    check.positive(noise_multiplier=noise_multiplier)
    check.at_least(0, num_releases=num_releases)
    if num_releases == 0:
        return 0.0
    mu = math.sqrt(num_releases) / noise_multiplier
    return float(_delta(epsilon, mu))


def gaussian_epsilon(dp_delta: float, noise_multiplier: float, num_releases: int = 1) -> float:
    """Exact epsilon of Gaussian releases; see :func:`gaussian_delta`.

    Args:
        dp_delta: Delta, in (0, 1).
        noise_multiplier: Standard deviation over the sensitivity, above 0.
        num_releases: Number of releases, at least 0.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> round(gaussian_epsilon(1e-6, 4.2246787), 5)  # Balle and Wang: calibrated to (1, 1e-6)
        1.0
    """
    check_delta(dp_delta)
    if gaussian_delta(0.0, noise_multiplier, num_releases) <= dp_delta:
        return 0.0
    mu = math.sqrt(num_releases) / noise_multiplier
    # above this epsilon the first term alone is at most delta
    top = mu * (mu / 2 + max(0.0, -float(scipy.special.ndtri(dp_delta)))) + 1e-9
    if _delta(top, mu) >= dp_delta:  # noise so small that rounding hides the difference
        return top
    found = scipy.optimize.root_scalar(
        lambda epsilon: _delta(epsilon, mu) - dp_delta, bracket=(0.0, top)
    )
    return float(found.root)


def check_delta(dp_delta: float) -> None:
    """Refuse a delta outside (0, 1).

    Raises:
        ValueError: If the value is out of range.
    """
    if not 0 < dp_delta < 1:
        raise ValueError(f"dp_delta must lie in (0, 1), got {dp_delta}")


def _delta(epsilon: float, mu: float) -> float:
    # the second term in logarithms, where it is at most 0: exp(epsilon) alone would overflow
    second = min(0.0, epsilon + scipy.special.log_ndtr(-mu / 2 - epsilon / mu))
    return scipy.special.ndtr(mu / 2 - epsilon / mu) - math.exp(second)
