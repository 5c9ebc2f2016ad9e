"""Ledger of a private run: what its releases cost, and the noise that a budget needs."""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import scipy

from fedbolic.core import check
from fedbolic.core.log import logger
from fedbolic.federated.accounting.accountants import (
    ORDERS,
    Participation,
    poisson_epsilon,
    renyi_divergences,
    renyi_epsilon,
)
from fedbolic.federated.accounting.costs import ConcentratedCost, PureCost
from fedbolic.federated.accounting.gaussian import check_delta, gaussian_epsilon
from fedbolic.federated.accounting.tree_noise import tree_height

Neighbours: TypeAlias = Literal["add/remove", "replace"]
Correlation: TypeAlias = Literal["none", "tree", "banded"]
Unit: TypeAlias = Literal["client", "example", "edge", "leaf"]

SMALLEST_DELTA = 1e-10
"""Below it, rounding in the composition of loss distributions matters, and Rényi bounds serve."""

LARGEST_EPSILON = 300.0
"""Above it, nothing is private anyway, and Rényi bounds serve."""

LARGEST_SHARE = 0.01
"""Delta times the number of units of privacy above which a ledger warns."""

_WORDS = {
    "add/remove": "of one {} that takes part, or whose contribution is zero",
    "replace": "of one {} whose data are replaced by any other data",
}

_OF_A_PART = {
    "edge": "of one edge that is in the graph or is not",
    "leaf": "of one leaf that is in the hierarchy or is not",
}


@dataclass(frozen=True)
class PrivacyLedger:
    r"""Privacy cost of equal releases, one in a round.

    Every release is a sum over clients plus Gaussian noise, or noise of a known cost. A client adds
    a vector of norm at most b, and the noise has the standard deviation ``noise_multiplier`` * b.

    * ``everyone``: all clients are in every sum. Exact, by the analytic Gaussian mechanism.
    * ``poisson``: every client is in a sum with probability ``rate``, independently. By
      composition of privacy loss distributions, which exceeds the exact epsilon by less than 1 %.
    * ``fixed``: a uniform sample of fixed size. By Rényi divergences, an upper bound.
    * ``once``: cohorts that are not sampled, each client in one round of an epoch of 1 / ``rate``
      rounds. Exact: a client changes one release of an epoch or, under noise that is correlated by
      a tree over the rounds of an epoch, one node on every level of the tree. Under banded noise,
      exact after whole epochs, it changes one column of the matrix in an epoch.

    Samples need dp-accounting, the extra ``accounting``, and must be secret: whoever sees a client
    take part must count it by ``everyone`` or ``once``.

    Args:
        participation: Choice of the clients of a sum.
        neighbours: Neighbouring relation: a client is absent (``add/remove``), which changes a sum
            by up to b, or replaced (``replace``), which changes it by up to 2 b. ``fixed`` requires
            ``replace``, because the size of the sample is public, and ``poisson`` requires
            ``add/remove``.
        rate: Probability of a client to be in a sum, in (0, 1]; 1 for ``everyone``, one over the
            number of rounds of an epoch for ``once``.
        noise_multiplier: Standard deviation of the noise (of one node if there is a tree; of a
            round's own noise over the norm of a column if it is banded; the scale if it is
            Laplace) over the bound, above 0.
        dp_delta: Delta, in (0, 1), smaller than one over the number of clients.
        rounds: Largest number of releases, at least 1.
        unit: Owner of a contribution: a ``client`` with all of its data, as said above, a single
            ``example``, an ``edge`` of a graph or a ``leaf`` of a hierarchy; the last two require
            ``add/remove``.
        cost: Cost of one release to ``everyone`` if its noise is not Gaussian; ``dp_delta`` may be
            0 if that cost is pure.
        correlation: Correlation of the noise, by a ``tree`` over the rounds of an epoch, by a
            ``banded`` matrix over all rounds, or ``none``; both require ``once``, and a banded
            matrix no more bands than rounds between any two of a client.

    Raises:
        ValueError: If an argument is out of range, or the relation or the cost does not fit the
            participation.

    References:
        Balle and Wang (2018), arXiv:1805.06530; Doroshenko et al. (2022), arXiv:2207.04380; Wang,
        Balle and Kasiviswanathan (2019), arXiv:1808.00087; Kairouz et al. (2021), Theorem 4.1, for
        trees, arXiv:2103.00039; Denisov et al. (2022), Theorem 2.1, for clients that see earlier
        rounds, arXiv:2202.08312.

    Example:
        >>> ledger = PrivacyLedger("poisson", "add/remove", 0.1, 1.0, dp_delta=1e-5, rounds=100)
        >>> round(ledger.epsilon(100), 1), round(ledger.renyi_epsilon(100), 1)
        (7.0, 8.0)
    """

    participation: Participation
    neighbours: Neighbours
    rate: float
    noise_multiplier: float
    dp_delta: float
    rounds: int
    unit: Unit = "client"
    cost: ConcentratedCost | PureCost | None = None
    correlation: Correlation = "none"

    def __post_init__(self) -> None:
        check.positive(rate=self.rate, noise_multiplier=self.noise_multiplier)
        check.rate(rate=self.rate)
        if not (isinstance(self.cost, PureCost) and self.dp_delta == 0):
            check_delta(self.dp_delta)
        check.at_least(1, rounds=self.rounds)
        needed = {"poisson": "add/remove", "fixed": "replace"}.get(self.participation)
        if needed not in (None, self.neighbours):
            raise ValueError(
                f"no bound is known here for {self.participation} samples and neighbours by "
                f"{self.neighbours}: use {needed}"
            )
        if self.unit in _OF_A_PART and self.neighbours != "add/remove":
            raise ValueError(
                f"neighbours by one {self.unit} are by add/remove, got {self.neighbours}"
            )
        if self.participation == "everyone" and self.rate != 1:
            raise ValueError(f"the rate of everyone is 1, got {self.rate}")
        if self.correlation != "none" and self.participation != "once":
            raise ValueError(
                f"no bound is known here for correlated noise and clients by {self.participation}: "
                "each must take part once in an epoch"
            )
        if self.cost is not None and self.participation != "everyone":
            raise ValueError(
                f"no bound is known here for {self.participation} samples and noise that is not "
                "Gaussian: count everyone"
            )

    @property
    def _multiplier(self) -> float:
        """Standard deviation of the noise over the largest change of a sum."""
        return self.noise_multiplier / (2 if self.neighbours == "replace" else 1)

    def without_sampling(self) -> "PrivacyLedger":
        """Ledger of the same releases for whoever sees who takes part; itself without a sample."""
        if self.participation not in ("poisson", "fixed"):
            return self
        return dataclasses.replace(self, participation="everyone", rate=1.0)

    def mechanism(self, num_releases: int = 1) -> str:
        """Text that is equal for runs of which one may go on where the other one stopped.

        A banded matrix belongs to its number of rounds.

        Args:
            num_releases: Number of releases in a round.
        """
        rounds = self.rounds if self.correlation == "banded" else num_releases
        return repr(dataclasses.replace(self, rounds=rounds))

    @property
    def period(self) -> int:
        """Number of rounds of an epoch; 1 except for ``once``."""
        return round(1 / self.rate) if self.participation == "once" else 1

    def epsilon(self, num_releases: int) -> float:
        """Epsilon after a number of releases, for this ledger's delta.

        Args:
            num_releases: Number of releases, from 0 to ``rounds``.

        Raises:
            ValueError: If the number is out of range.
        """
        check.at_least(0, num_releases=num_releases)
        if num_releases > self.rounds:
            raise ValueError(f"the ledger is for {self.rounds} releases, got {num_releases}")
        if num_releases == 0:
            return 0.0
        if self.cost is not None:
            return self.cost.epsilon(num_releases, dp_delta=self.dp_delta)
        match self.participation:
            case "everyone":
                return gaussian_epsilon(self.dp_delta, self._multiplier, num_releases)
            case "poisson":
                return self._poisson_epsilon(num_releases)
            case "fixed":
                return self.renyi_epsilon(num_releases)
            case "once":
                changed = self._changed(num_releases)
                return gaussian_epsilon(self.dp_delta, self._multiplier, changed)

    def _changed(self, num_releases: int) -> int:
        """Largest number of noisy sums that one client changes, if it is in one of each epoch.

        Columns of a banded matrix have the norm 1 and disjoint rows, so each counts as a sum.
        """
        epochs, rest = divmod(num_releases, self.period)
        if self.correlation == "tree":
            return epochs * tree_height(self.period) + tree_height(rest)
        return epochs + (rest > 0)

    def renyi_epsilon(self, num_releases: int) -> float:
        """Epsilon by Rényi divergences, an upper bound for every participation in Gaussian noise.

        Args:
            num_releases: Number of releases, at least 0.
        """
        if num_releases == 0:
            return 0.0
        settings, num_releases = self._gaussian(num_releases)
        return renyi_epsilon(*settings, num_releases, dp_delta=self.dp_delta)

    def divergences(self, num_releases: int) -> dict[int, float]:
        """Upper bounds of the Rényi divergences of some releases, by order.

        Args:
            num_releases: Number of releases, at least 0; it may be above ``rounds``.
        """
        if self.cost is not None:
            return {order: num_releases * self.cost.divergence(order) for order in ORDERS}
        settings, num_releases = self._gaussian(num_releases)
        of_one = renyi_divergences(*settings)
        return {order: num_releases * one for order, one in zip(ORDERS, of_one, strict=True)}

    def _gaussian(self, num_releases: int) -> tuple[tuple[Participation, float, float], int]:
        """Sampling and noise of Gaussian releases that cost as much, and their number."""
        if self.participation == "once":  # as many Gaussian releases to everyone
            return ("everyone", 1.0, self._multiplier), self._changed(num_releases)
        return (self.participation, self.rate, self._multiplier), num_releases

    def _poisson_epsilon(self, num_releases: int) -> float:
        bound = self.renyi_epsilon(self.rounds)
        if self.dp_delta < SMALLEST_DELTA or not 0 < bound <= LARGEST_EPSILON:
            return self.renyi_epsilon(num_releases)
        # small compared with the loss of one round, which is about bound / sqrt(rounds)
        step = 1e-3 * bound / self.rounds**0.25
        settings = self.rate, self._multiplier, num_releases
        return poisson_epsilon(*settings, dp_delta=self.dp_delta, step=step)

    def __str__(self) -> str:
        size = {
            "everyone": "all leaves" if self.unit == "leaf" else f"all {self.unit}s",
            "poisson": "Poisson samples",
            "fixed": "fixed samples",
            "once": f"each client once in {self.period} rounds",
        }
        bound = ""
        if self.participation == "poisson":  # the other values have no second one to compare
            bound = f", by Rényi divergences {self.renyi_epsilon(self.rounds):.4g}"
        words = _OF_A_PART.get(self.unit) or _WORDS[self.neighbours].format(self.unit)
        releases = "1 release" if self.rounds == 1 else f"{self.rounds} releases"
        return (
            f"epsilon {self.epsilon(self.rounds):.4g} at delta {self.dp_delta:g} after "
            f"{releases} over {size[self.participation]} (rate {self.rate:g}){bound}; "
            f"noise {self.noise_multiplier:.4g} times the bound; it limits what the "
            f"releases reveal {words}"
        )


def log_ledger(ledger: PrivacyLedger, num_units: int, *, of: str) -> None:
    """Log a ledger and the product of its delta and the number of units; warn if that is large.

    A mechanism that publishes each unit's data with probability delta satisfies the definition, and
    the product is the number of units that it publishes on average.

    Args:
        ledger: Ledger of a run.
        num_units: Number of units of privacy.
        of: Name of the units, in the plural.
    """
    share = ledger.dp_delta * num_units
    logger.info("privacy: %s; delta times the number of %s is %.2g", ledger, of, share)
    if share > LARGEST_SHARE:
        logger.warning(
            "dp_delta %g allows to publish %.2g of the %d %s outright: use %.2g or less",
            *(ledger.dp_delta, share, num_units, of, LARGEST_SHARE / num_units),
        )


@functools.lru_cache(maxsize=64)  # a run asks again at every start
def solve_noise(
    participation: Participation,
    neighbours: Neighbours,
    rate: float,
    *,
    epsilon: float,
    dp_delta: float,
    rounds: int,
    correlation: Correlation = "none",
) -> float:
    """Smallest noise multiplier, up to 0.1 %, whose ledger stays within a budget.

    Args:
        participation: Choice of the clients of a sum; see :class:`PrivacyLedger`.
        neighbours: Neighbouring relation.
        rate: Probability of a client to be in a sum, in (0, 1].
        epsilon: Budget for all rounds together, above 0.
        dp_delta: Delta, in (0, 1).
        rounds: Number of releases, at least 1.
        correlation: Correlation of the noise; see :class:`PrivacyLedger`.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> z = solve_noise("everyone", "add/remove", 1.0, epsilon=1.0, dp_delta=1e-6, rounds=1)
        >>> round(z, 2)  # Balle and Wang: 4.2247
        4.22
    """
    check.positive(epsilon=epsilon)

    def excess(log_noise: float) -> float:
        noise = math.exp(log_noise)
        sampling = participation, neighbours, rate
        ledger = PrivacyLedger(*sampling, noise, dp_delta, rounds, correlation=correlation)
        return math.log(max(ledger.epsilon(rounds), 1e-9) / epsilon)

    high = 0.0
    while excess(high) > 0:
        high += 1.0
    while excess(high - 1.0) <= 0:
        high -= 1.0
    found = float(scipy.optimize.root_scalar(excess, bracket=(high - 1.0, high), xtol=5e-4).root)
    while excess(found) > 0:
        found += 2e-4
    return math.exp(found)
