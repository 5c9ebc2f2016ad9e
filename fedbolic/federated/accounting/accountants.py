"""Epsilon of sampled Gaussian releases by the accountants of dp-accounting, imported only here."""

import functools
from types import ModuleType
from typing import Literal, TypeAlias

from fedbolic.core.imports import extra

Participation: TypeAlias = Literal["everyone", "poisson", "fixed", "once"]

ORDERS = (*range(2, 17), *range(20, 65, 4), 96, 128, 512)
"""Orders of Rényi divergences; any order gives a valid bound.

Those of fixed samples take a time that grows with the square of the order, up to 256. Series of
fractional orders need not converge.
"""


@functools.lru_cache(maxsize=256)  # a round asks twice, and every client of it asks the same
def renyi_epsilon(
    participation: Participation,
    rate: float,
    noise_multiplier: float,
    num_releases: int,
    *,
    dp_delta: float,
) -> float:
    """Upper bound of epsilon by Rényi divergences.

    Args:
        participation: Choice of the clients of a sum, other than ``once``. Neighbours are by
            ``replace`` for ``fixed`` and by ``add/remove`` otherwise.
        rate: Probability of a client to be in a sum, in (0, 1].
        noise_multiplier: Standard deviation of the noise over the sensitivity, above 0.
        num_releases: Number of releases, at least 1.
        dp_delta: Delta, in (0, 1).

    Raises:
        ValueError: If dp-accounting, the extra ``accounting``, is not installed.

    References:
        Mironov, Talwar and Zhang (2019), Sec. 3, arXiv:1908.10530; Wang, Balle and
        Kasiviswanathan (2019), Theorem 27, arXiv:1808.00087; Canonne, Kamath and Steinke (2020),
        Proposition 12, arXiv:2004.00010.

    Example:
        >>> round(renyi_epsilon("poisson", 0.1, 1.0, 100, dp_delta=1e-5), 1)
        8.0
    """
    of_one = renyi_divergences(participation, rate, noise_multiplier)
    of_all = [num_releases * divergence for divergence in of_one]
    epsilon, _ = _library().rdp.compute_epsilon(ORDERS, of_all, dp_delta)
    return float(epsilon)


@functools.lru_cache(maxsize=256)
def poisson_epsilon(
    rate: float, noise_multiplier: float, num_releases: int, *, dp_delta: float, step: float
) -> float:
    """Epsilon of releases on Poisson samples by composition of privacy loss distributions.

    Neighbours are by ``add/remove``; the larger epsilon of both directions counts.

    Args:
        rate: Probability of a client to be in a sum, in (0, 1].
        noise_multiplier: Standard deviation of the noise over the sensitivity, above 0.
        num_releases: Number of releases, at least 1.
        dp_delta: Delta, in (0, 1).
        step: Distance of the grid points of the losses, above 0; epsilon exceeds the exact value by
            an amount that vanishes with its square.

    Raises:
        ValueError: If dp-accounting, the extra ``accounting``, is not installed.

    References:
        Doroshenko et al. (2022), arXiv:2207.04380; Zhu, Dong and Wang (2022), Theorem 11, for both
        directions, arXiv:2106.08567.

    Example:
        >>> round(poisson_epsilon(0.1, 1.0, 100, dp_delta=1e-5, step=1e-3), 2)
        7.05
    """
    library = _library()
    accountant = library.pld.PLDAccountant(
        library.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=step
    )
    release = library.GaussianDpEvent(noise_multiplier)
    accountant.compose(library.PoissonSampledDpEvent(rate, release), num_releases)
    return float(accountant.get_epsilon(dp_delta))


@functools.lru_cache(maxsize=256)
def concentrated_epsilon(rho: float, xi: float, num_releases: int, *, dp_delta: float) -> float:
    """Upper bound of epsilon from Rényi divergences that grow linearly with their order.

    Args:
        rho: Slope of the divergences of one release, at least 0.
        xi: Their constant, at least 0.
        num_releases: Number of releases, at least 1.
        dp_delta: Delta, in (0, 1).

    Raises:
        ValueError: If dp-accounting, the extra ``accounting``, is not installed.

    References:
        Bun and Steinke (2016), Lemma 8.2, arXiv:1605.02065; Canonne, Kamath and Steinke (2020),
        Proposition 12, arXiv:2004.00010.

    Example:
        >>> round(concentrated_epsilon(0.125, 0.0, 1, dp_delta=1e-5), 2)
        2.17
    """
    library = _library()
    accountant = library.rdp.RdpAccountant(ORDERS)
    accountant.compose(library.ZCDpEvent(rho, xi), num_releases)
    return float(accountant.get_epsilon(dp_delta))


@functools.lru_cache(maxsize=64)  # the rounds of a run share them
def renyi_divergences(
    participation: Participation, rate: float, noise_multiplier: float
) -> tuple[float, ...]:
    """Upper bounds of the Rényi divergences of one Gaussian release, at every order of ``ORDERS``.

    Args:
        participation: As for :func:`renyi_epsilon`.
        rate: Probability of a client to be in a sum, in (0, 1].
        noise_multiplier: Standard deviation of the noise over the sensitivity, above 0.

    Raises:
        ValueError: If dp-accounting, the extra ``accounting``, is not installed.
    """
    library = _library()
    neighbours = library.NeighboringRelation
    release = library.GaussianDpEvent(noise_multiplier)
    relation = neighbours.ADD_OR_REMOVE_ONE
    if participation == "poisson":
        release = library.PoissonSampledDpEvent(rate, release)
    elif participation == "fixed":
        relation = neighbours.REPLACE_ONE
        # only the ratio of the sizes counts
        size, num_clients = float(rate).as_integer_ratio()
        release = library.SampledWithoutReplacementDpEvent(num_clients, size, release)
    accountant = library.rdp.RdpAccountant(ORDERS, relation)
    accountant.compose(release)
    return tuple(accountant.rdp.tolist())


def _library() -> ModuleType:
    with extra("accounting", "the cost of samples and of discrete noise"):
        import dp_accounting
    return dp_accounting
