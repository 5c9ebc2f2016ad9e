"""Settings of differential privacy for a sum whose clients add the noise."""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import scipy

from fedbolic.core import check
from fedbolic.federated.accounting.gaussian import check_delta
from fedbolic.federated.accounting.ledger import Neighbours, PrivacyLedger
from fedbolic.federated.noise.lattice import NoisyLattice, finest_count, finest_lattice
from fedbolic.federated.noise.rotation import padded_size
from fedbolic.federated.privacy.client_privacy import AdaptiveClipping


@dataclass(frozen=True)
class SumPrivacy:
    """Differential privacy of every client by discrete noise of all clients of a sum.

    Args:
        survivors: Least number of clients in a sum whose noise counts: the threshold of the secure
            sum, minus the number of clients that may reveal their noise to the server.
        dp_delta: Delta, in (0, 1) and below one over the number of clients.
        epsilon: Budget of the whole run, above 0, for which the noise is found; ``None`` if
            ``noise_multiplier`` is given.
        noise_multiplier: Standard deviation of the noise of ``survivors`` clients over the bound of
            one rounded update, above 0. ``None`` to find it from ``epsilon``.
        clip_norm: Clipping bound of an update's Euclidean norm, above 0.
        neighbours: Neighbouring relation: the data of a client are replaced, or its contribution is
            zero although it adds its noise (``add/remove``).
        bits: Bits of the modulus, from 2 to 32. The grid is the finest for which a sum is not
            likely to wrap around.
        wrap_probability: Largest probability that some number of a sum wraps around, in (0, 1). It
            harms the model, not privacy.
        adaptive: Adaptive clipping, whose count is one more number of the sum and has noise of its
            own; the size of a cohort is taken to be ``survivors``. ``None`` for a constant bound.

    Raises:
        ValueError: If a value is out of range, or not exactly one of ``epsilon`` and
            ``noise_multiplier`` is given.

    Example:
        >>> privacy = SumPrivacy(survivors=70, dp_delta=1e-3, epsilon=8.0)
        >>> lattice, ledger = privacy.plan(num_clients=100, size=1000, rounds=10)
        >>> lattice.dim, 7.9 < ledger.epsilon(10) <= 8
        (1024, True)
    """

    survivors: int
    dp_delta: float
    epsilon: float | None = None
    noise_multiplier: float | None = None
    clip_norm: float = 1.0
    neighbours: Neighbours = "replace"
    bits: int = 20
    wrap_probability: float = 1e-6
    adaptive: AdaptiveClipping | None = None

    def __post_init__(self) -> None:
        check.at_least(1, survivors=self.survivors)
        check_delta(self.dp_delta)
        check.positive(clip_norm=self.clip_norm)
        check.one_of(("add/remove", "replace"), neighbours=self.neighbours)
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("noise in a sum needs either epsilon or noise_multiplier")
        for name in ("epsilon", "noise_multiplier"):
            if (value := getattr(self, name)) is not None:
                check.positive(**{name: value})

    @functools.lru_cache(maxsize=64)  # noqa: B019  # every client of every round asks the same
    def plan(
        self, *, num_clients: int, size: int, rounds: int
    ) -> tuple[NoisyLattice, PrivacyLedger]:
        """Grid and noise of every sum, and the ledger of the run.

        Args:
            num_clients: Number of clients of the federation.
            size: Number of numbers of an update, at least 1.
            rounds: Number of sums, at least 1.

        Raises:
            ValueError: If ``dp_delta`` is too large for that many clients, there are fewer clients
                than ``survivors``, or the modulus is too small.
        """
        if self.dp_delta * num_clients >= 1:
            raise ValueError(
                f"dp_delta must be below one over the number of clients, {1 / num_clients:.2g}, or "
                f"publishing one of them at random would count as private; got {self.dp_delta}"
            )

        planned = partial(self._planned, num_clients=num_clients, size=size, rounds=rounds)

        def epsilon_of(noise: float) -> float:
            given = self.adaptive and self.adaptive.count_noise
            # more noise than the count has cannot be shared with it, which `_planned` refuses
            return 0.0 if given and 2 * given <= noise else planned(noise)[1].epsilon(rounds)

        if self.epsilon is None:
            return planned(self.noise_multiplier or 0.0)
        return planned(_least_noise(epsilon_of, self.epsilon))

    def _planned(
        self, noise: float, *, num_clients: int, size: int, rounds: int
    ) -> tuple[NoisyLattice, PrivacyLedger]:
        """Grid and ledger for a multiplier of the noise, of which a part is for the count."""
        shared = {"num_clients": num_clients, "num_noisy": self.survivors, "bits": self.bits}
        count, failure = None, self.wrap_probability
        if self.adaptive is not None:
            failure /= 2
            noise, std = self.adaptive.split(noise, float(self.survivors))
            count = finest_count(std, failure=failure, **shared)
        whole = finest_lattice(padded_size(size), self.clip_norm, noise, failure=failure, **shared)
        lattice = dataclasses.replace(whole, count=count)
        return lattice, self.ledger(lattice, rounds)

    def ledger(self, lattice: NoisyLattice, rounds: int) -> PrivacyLedger:
        """Ledger of sums whose noise is known.

        Args:
            lattice: Grid and noise of every sum.
            rounds: Number of sums, at least 1.
        """
        costs = lattice.costs(self.neighbours)
        cost = min(costs, key=lambda cost: cost.epsilon(rounds, dp_delta=self.dp_delta))
        noise = math.sqrt(lattice.num_noisy * lattice.variance / lattice.largest)
        if lattice.count is not None:
            noise = (noise**-2 + (2 * lattice.count.std) ** -2) ** -0.5
        settings = self.dp_delta, rounds
        return PrivacyLedger("everyone", self.neighbours, 1.0, noise, *settings, cost=cost)


def _least_noise(epsilon_of: Callable[[float], float], budget: float) -> float:
    """Smallest noise multiplier, up to 0.1 %, whose epsilon stays within a budget.

    Epsilon does not quite fall with the multiplier, because variances are whole numbers.
    """

    def excess(log_noise: float) -> float:
        return math.log(max(epsilon_of(math.exp(log_noise)), 1e-9) / budget)

    high = 0.0
    while excess(high) > 0:
        high += 0.5
    low = high - 0.5
    while excess(low) <= 0:
        low -= 0.5
    found = float(
        scipy.optimize.root_scalar(excess, bracket=(low, high), method="bisect", xtol=5e-4).root
    )
    while excess(found) > 0:
        found += 2e-4
    return math.exp(found)
