"""Vectors on a grid of integers, noise for their sum modulo a number, and its privacy cost."""

import dataclasses
import math
from dataclasses import dataclass

import scipy
from jaxtyping import Float64, Int64
from torch import Tensor

from fedbolic.core import check
from fedbolic.federated.accounting.costs import ConcentratedCost
from fedbolic.federated.accounting.ledger import Neighbours
from fedbolic.federated.noise.draws import SecretStream
from fedbolic.federated.noise.integers import LARGEST_VARIANCE

LARGEST_BITS = 32
"""Most bits of a modulus; its residues are then single limbs."""

_FAILURE = math.exp(-0.5)
"""Probability beta of the paper's Algorithm 1, with which a rounding is tried again."""


@dataclass(frozen=True)
class NoisyCount:
    """Integers by which clients count who has some property, and the noise that they add.

    A client counts as ``units`` if it has the property, and as minus ``units`` otherwise.

    Args:
        units: Absolute value of a client's contribution, at least 1.
        variance: Variance of a client's noise, at least 1.
        num_noisy: Number of clients whose noise counts, at least 1.

    Example:
        >>> count = finest_count(2.0, num_clients=10, num_noisy=7, bits=20, failure=1e-6)
        >>> count.units, round(count.std, 3)
        (1024, 2.0)
    """

    units: int
    variance: int
    num_noisy: int

    @property
    def std(self) -> float:
        """Standard deviation of the number of clients with the property."""
        return math.sqrt(self.num_noisy * self.variance) / (2 * self.units)

    def reach(self, num_clients: int, failure: float) -> float:
        """Bound that the sum over some clients does not exceed, up to a probability."""
        noise = 2 * num_clients * self.variance * math.log(2 / failure)
        return num_clients * self.units + math.sqrt(noise)

    def costs(self, neighbours: Neighbours) -> tuple[ConcentratedCost, ConcentratedCost]:
        """Two valid bounds of the cost of one sum, as those of :class:`NoisyLattice`."""
        moved = self.units * (2 if neighbours == "replace" else 1)
        return _sum_costs(
            self.num_noisy, self.variance, square=moved**2, absolute=float(moved), dim=1
        )

    def drawn(self, has: bool, stream: SecretStream) -> int:
        """Contribution of a client, with its noise.

        Args:
            has: Whether the client has the property.
            stream: Random stream of the client that serves nothing else.
        """
        noise = int(stream.integers().gaussian(self.variance, 1)[0])
        return (self.units if has else -self.units) + noise

    def fraction(self, total: int, num_clients: int) -> float:
        """Noisy fraction of the clients of a sum that have the property.

        Args:
            total: Sum of their contributions.
            num_clients: Number of clients of the sum.
        """
        return total / (2 * self.units * num_clients) + 0.5


def finest_count(
    std: float, *, num_clients: int, num_noisy: int, bits: int, failure: float
) -> NoisyCount:
    """Count with the most units, a power of two, that do not wrap around modulo 2 ** bits.

    Args:
        std: Least standard deviation of the number of clients, above 0.
        num_clients: Largest number of clients in a sum.
        num_noisy: Number of clients whose noise counts.
        bits: Bits of the modulus, from 2 to 32.
        failure: Probability that a sum wraps around, in (0, 1).

    Raises:
        ValueError: If not even one unit suits the modulus.
    """
    found = None
    for units in (2**k for k in range(bits)):
        variance = max(1, math.ceil((2 * std * units) ** 2 / num_noisy))
        count = NoisyCount(units, variance, num_noisy)
        if variance > LARGEST_VARIANCE or count.reach(num_clients, failure) >= 2 ** (bits - 1):
            break
        found = count
    if found is None:
        raise ValueError(
            f"a modulus of {bits} bits is too small for a count of {num_clients} clients with "
            f"noise of standard deviation {std:.4g}: use more bits, or less count_noise"
        )
    return found


@dataclass(frozen=True)
class NoisyLattice:
    r"""Grid on which clients round their vectors, and the noise that they add.

    Every client clips its vector of ``dim`` numbers to the norm c, divides it by the granularity
    :math:`\gamma`, rounds it at random to integers of squared norm at most L, and adds discrete
    Gaussian noise. The sum of ``num_noisy`` such noises has ``noise_multiplier`` times the standard
    deviation :math:`\sqrt L`, up to rounding up.

    Args:
        dim: Number of coordinates, d, at least 1.
        clip_norm: Clipping bound, c, above 0.
        noise_multiplier: Standard deviation of the noise of ``num_noisy`` clients over the bound of
            a rounded vector, z, above 0.
        num_clients: Largest number of clients in a sum, n, at least 1.
        num_noisy: Number of clients whose noise counts, t, from 1 to ``num_clients``.
        granularity: Length of the grid's unit, above 0.
        count: Count of clients next to the vectors; ``None`` for none.

    Raises:
        ValueError: If a value is out of range.

    References:
        Kairouz, Liu and Steinke (2021), Algorithm 1, arXiv:2102.06387.

    Example:
        >>> NoisyLattice(64, 1.0, 1.0, num_clients=4, num_noisy=2, granularity=0.1).largest
        130
    """

    dim: int
    clip_norm: float
    noise_multiplier: float
    num_clients: int
    num_noisy: int
    granularity: float
    count: NoisyCount | None = None

    def __post_init__(self) -> None:
        check.at_least(1, dim=self.dim, num_noisy=self.num_noisy)
        check.positive(
            clip_norm=self.clip_norm,
            noise_multiplier=self.noise_multiplier,
            granularity=self.granularity,
        )
        if self.num_noisy > self.num_clients:
            raise ValueError(
                f"the noise of {self.num_noisy} clients shall count in sums of at most "
                f"{self.num_clients}"
            )

    @property
    def largest(self) -> int:
        """Largest squared norm L of a rounded vector, an integer."""
        unit, root = self.clip_norm / self.granularity, math.sqrt(self.dim)
        spread = math.sqrt(2 * math.log(1 / _FAILURE)) * (unit + root / 2)
        return math.floor(min((unit + root) ** 2, unit**2 + self.dim / 4 + spread))

    @property
    def variance(self) -> int:
        """Variance of a client's noise, in squared units of the grid."""
        return max(1, math.ceil(self.noise_multiplier**2 * self.largest / self.num_noisy))

    @property
    def inflation(self) -> float:
        """Bound of a rounded vector over the clipping bound."""
        return math.sqrt(self.largest) * self.granularity / self.clip_norm

    def reach(self, failure: float) -> float:
        r"""Bound that no number of a sum exceeds, up to a probability.

        .. math::
            n + \sqrt{2 \left( \frac{n^2 c^2}{\gamma^2 d} + n s^2 \right) \log \frac{2 d}{p}}

        Random signs and discrete Gaussian noise are sub-Gaussian, and rounding moves a number of
        one client by less than 1. The clients' vectors may all be equal.

        Args:
            failure: Probability p that a number of the sum exceeds the bound, in (0, 1).

        References:
            Canonne, Kamath and Steinke (2020), Corollary 17, for the noise, arXiv:2004.00010.
        """
        signal = (self.num_clients * self.clip_norm / self.granularity) ** 2 / self.dim
        proxy = signal + self.num_clients * self.variance
        return self.num_clients + math.sqrt(2 * proxy * math.log(2 * self.dim / failure))

    def costs(self, neighbours: Neighbours) -> tuple[ConcentratedCost, ConcentratedCost]:
        r"""Two valid bounds of the cost of one sum of ``num_noisy`` clients or more, and its count.

        .. math::
            D_\alpha \le \frac{\alpha \Delta_2^2}{2 t s^2} + \tau d, \quad
            D_\alpha \le \frac{\alpha}{2} \left( \frac{\Delta_2^2}{t s^2}
                + \frac{2 \Delta_1 \tau}{s \sqrt t} + \tau^2 d \right), \quad
            \tau = 10 \sum_{k=1}^{t-1} e^{-2 \pi^2 s^2 k / (k + 1)}

        A sum of discrete Gaussians is none, and tau accounts for the difference. Noise of further
        clients, and the modulus, are computed from such a sum and cost nothing.

        Args:
            neighbours: Neighbouring relation; by ``replace`` a sum changes by twice the bound.

        References:
            Kairouz, Liu and Steinke (2021), Proposition 14, arXiv:2102.06387.
        """
        times = 2 if neighbours == "replace" else 1
        # an integer vector's sum of absolute values is at most its sum of squares
        absolute = times * min(math.sqrt(self.dim * self.largest), float(self.largest))
        norms = {"square": times**2 * self.largest, "absolute": absolute, "dim": self.dim}
        first, second = _sum_costs(self.num_noisy, self.variance, **norms)
        if self.count is None:
            return first, second
        counted = min(self.count.costs(neighbours), key=lambda cost: cost.xi + cost.rho)
        return first + counted, second + counted

    def rounded(self, x: Float64[Tensor, " dim"], stream: SecretStream) -> Int64[Tensor, " dim"]:
        """Integers near a vector in units of the grid, of the right mean up to the norm's bound.

        Every number is rounded up with a probability equal to its fraction, and all are drawn again
        as long as their squared norm exceeds ``largest``.

        Args:
            x: Vector of norm at most ``clip_norm``.
            stream: Random stream of the client.

        Raises:
            ValueError: If the norm is larger, for which no rounding may be found.

        References:
            Kairouz, Liu and Steinke (2021), Algorithm 1, arXiv:2102.06387.
        """
        if not float(x.norm()) <= self.clip_norm * (1 + 1e-9):  # the norm itself stays secret
            raise ValueError(f"the norm of a vector must be at most {self.clip_norm:g}: clip it")
        scaled = x / self.granularity
        low, tries = scaled.floor(), 0
        while True:
            up = stream.at("rounding", tries).uniform(len(x)) < scaled - low
            found = low.long() + up
            if int(found.square().sum()) <= self.largest:
                return found
            tries += 1


def _sum_costs(
    num_noisy: int, variance: int, *, square: int, absolute: float, dim: int
) -> tuple[ConcentratedCost, ConcentratedCost]:
    """Both bounds of :meth:`NoisyLattice.costs`, for a change of given norms."""
    whole = num_noisy * variance
    ratio = square / whole
    terms = (k / (k + 1) for k in range(1, num_noisy))
    tau = 10 * sum(math.exp(-2 * math.pi**2 * variance * part) for part in terms)
    mixed = ratio + 2 * absolute * tau / math.sqrt(whole) + tau**2 * dim
    return ConcentratedCost(ratio / 2, tau * dim), ConcentratedCost(mixed / 2)


def finest_lattice(
    dim: int,
    clip_norm: float,
    noise_multiplier: float,
    *,
    num_clients: int,
    num_noisy: int,
    bits: int,
    failure: float,
) -> NoisyLattice:
    """Finest grid whose sums do not wrap around modulo 2 ** bits, up to a probability.

    Args:
        dim: Number of coordinates, at least 1.
        clip_norm: Clipping bound, above 0.
        noise_multiplier: See :class:`NoisyLattice`.
        num_clients: Largest number of clients in a sum.
        num_noisy: Number of clients whose noise counts.
        bits: Bits of the modulus, from 2 to 32.
        failure: Probability that a number of a sum wraps around, in (0, 1).

    Raises:
        ValueError: If a value is out of range, or no grid suits the modulus.

    Example:
        >>> grid = {"num_clients": 10, "num_noisy": 7, "failure": 1e-6}
        >>> finest_lattice(1024, 1.0, 1.0, bits=16, **grid).inflation < 1.02
        True
    """
    if not 2 <= bits <= LARGEST_BITS:
        raise ValueError(f"bits must lie in 2 .. {LARGEST_BITS}, got {bits}")
    if not 0 < failure < 1:
        raise ValueError(f"the probability to wrap around must lie in (0, 1), got {failure}")
    # so coarse that the bound of a rounded vector hardly depends on the granularity
    start = NoisyLattice(dim, clip_norm, noise_multiplier, num_clients, num_noisy, 4 * clip_norm)

    def excess(log_granularity: float) -> float:  # at most 0 if the grid is valid
        lattice = dataclasses.replace(start, granularity=math.exp(log_granularity))
        over = math.log(lattice.reach(failure) / 2 ** (bits - 1))
        return max(over, math.log(lattice.variance / LARGEST_VARIANCE))

    low = high = math.log(start.granularity)
    if excess(high) >= 0:
        raise ValueError(_too_small(start, bits, failure))
    while excess(low) < 0:
        low -= 4.0
    found = float(scipy.optimize.bisect(excess, low, high, xtol=1e-6))
    while excess(found) >= 0:  # a step of the floors and ceilings may lie within the tolerance
        found += 1e-6
    return dataclasses.replace(start, granularity=math.exp(found))


def _too_small(coarse: NoisyLattice, bits: int, failure: float) -> str:
    """Message that even the coarsest grid does not suit a modulus or the noise, with the remedy."""
    if coarse.variance > LARGEST_VARIANCE:
        return (
            f"noise of variance {coarse.variance} at every client is above {LARGEST_VARIANCE}, "
            "the largest that is drawn exactly: use a larger epsilon, more survivors, or a smaller "
            "model"
        )
    larger = range(bits + 1, LARGEST_BITS + 1)
    needed = next((b for b in larger if coarse.reach(failure) < 2 ** (b - 1)), None)
    remedy = "use fewer clients, or less noise"
    if needed is not None:
        remedy = f"use bits of {needed} or better {min(needed + 8, LARGEST_BITS)}, or {remedy[4:]}"
    return (
        f"a modulus of {bits} bits is too small for the sum of {coarse.num_clients} clients and "
        f"their noise, which would wrap around: {remedy}"
    )
