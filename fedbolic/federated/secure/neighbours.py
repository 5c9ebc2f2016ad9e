"""Random neighbours in a secure sum of many clients, with bounds on what can go wrong."""

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray

from fedbolic.core.types import Tree
from fedbolic.federated.secure.mask import expand

SECURITY, CORRECTNESS = 40, 30
"""Bits of the probabilities that a server reads more than one sum, and that a sum is not read."""

TAG_BYTES = 2
"""First bytes of each signature, which the server shows before it knows which ones are checked."""


@dataclass(frozen=True)
class DegreePlan:
    """Numbers of a secure sum with neighbours.

    Args:
        degree: Number of clients that hold shares of a client's secrets.
        threshold: Number of shares that give a secret.
        sample: Number of signatures of the list of survivors that a client checks.
    """

    degree: int
    threshold: int
    sample: int


@dataclass(frozen=True)
class NeighbourGraph:
    """Neighbours in place of all pairs, for thousands of clients.

    A client shares its secrets with a few others, which it draws itself from the operating system.
    How many follows from the fractions by exact hypergeometric sums: the server learns more than
    one sum, or one of less than half of the honest clients in it, with a probability of at most
    2^-40, and a sum cannot be read with at most 2^-30 if clients drop out by chance. Where nearly
    all clients would be neighbours, all pairs are used.

    Args:
        corrupt: Fraction of the clients that collude with the server, in [0, 0.5).
        dropped: Fraction of the clients that may drop out, in [0, 0.5).

    Raises:
        ValueError: If a fraction is out of range.

    References:
        Bell, Bonawitz, Gascon, Lepoint and Raykova (2020), Secure single-server aggregation with
        (poly)logarithmic overhead, CCS 2020, doi:10.1145/3372297.3417885.

    Example:
        >>> NeighbourGraph(corrupt=0.1, dropped=0.1).plan(1000, least=900)
        DegreePlan(degree=52, threshold=28, sample=70)
    """

    corrupt: float = 0.1
    dropped: float = 0.1

    def __post_init__(self) -> None:
        for name, value in (("corrupt", self.corrupt), ("dropped", self.dropped)):
            if not 0 <= value < 0.5:
                raise ValueError(f"{name} must lie in [0, 0.5), got {value}")

    def least(self, num_clients: int) -> int:
        """Number of clients that are left if as many drop out as may.

        Args:
            num_clients: Number of clients of the whole federation.
        """
        return num_clients - math.floor(self.dropped * num_clients)

    def plan(self, num_clients: int, *, least: int) -> DegreePlan | None:
        """Least numbers within the bounds; ``None`` if the clients are so few that all are needed.

        Args:
            num_clients: Number of clients of the whole federation.
            least: Least number of clients in a sum.

        Raises:
            ValueError: If two lists of so few clients could both be signed by enough of them.
        """
        corrupt = math.floor(self.corrupt * num_clients)
        if 2 * least <= num_clients + corrupt:
            raise ValueError(
                f"a threshold of {least} is too low for {num_clients} clients of whom {corrupt} "
                "may be corrupt: the server could deceive two halves separately"
            )
        return _plan(num_clients, corrupt, math.floor(self.dropped * num_clients), least)


@functools.lru_cache(maxsize=32)
def _plan(num_clients: int, corrupt: int, dropped: int, least: int) -> DegreePlan | None:
    part = -SECURITY - 2  # three events: a fourth of the probability for each
    samples = range(1, least + 1)
    sample = next((m for m in samples if log_deceived(num_clients, corrupt, least, m) < part), None)
    if sample is None:
        return None
    for degree in range(1, num_clients - 1):
        thresholds = (  # a lower one is less secure
            t
            for t in range(degree, 0, -1)
            if log_failed(num_clients, dropped, degree, t) < -CORRECTNESS
        )
        threshold = next(thresholds, 0)
        alone = log_alone(num_clients, corrupt, degree, threshold)
        if alone < part and log_split(num_clients, corrupt, degree, threshold) < part:
            return DegreePlan(degree, threshold, sample)
    return None


def log_alone(num_clients: int, corrupt: int, degree: int, threshold: int) -> float:
    """Base-2 logarithm of a bound on the probability that corrupt clients can join a secret.

    Args:
        num_clients: Number of clients.
        corrupt: Number of corrupt ones, who are not chosen by the neighbours.
        degree: Number of neighbours that hold shares of a secret.
        threshold: Number of shares that give it.
    """
    tail = log_tail(num_clients - 1, np.array([corrupt]), degree, threshold)
    return math.log2(num_clients - corrupt) + tail.item()


def log_failed(num_clients: int, dropped: int, degree: int, threshold: int) -> float:
    """Base-2 logarithm of a bound on the probability that a secret cannot be joined.

    Args:
        num_clients: Number of clients.
        dropped: Number of those that drop out, by chance.
        degree: Number of neighbours that hold shares of a secret.
        threshold: Number of shares that give it.
    """
    tail = log_tail(num_clients - 1, np.array([dropped]), degree, degree - threshold + 1)
    return math.log2(num_clients) + tail.item()


def log_split(num_clients: int, corrupt: int, degree: int, threshold: int) -> float:
    """Base-2 logarithm of a bound on the probability that the sum of a minority can be read.

    The server chooses who drops out when it knows all neighbours. A sum over some honest clients U
    is readable only if each of them has ``threshold`` neighbours among U and corrupt clients. For
    larger U, none of them and of the other honest clients may be neighbours, either. The bound adds
    up over all U that are at most half of the honest clients in the sum, and over all of these.
    They are more than half of all, as so many have signed the list: see :func:`log_deceived`.

    Args:
        num_clients: Number of clients.
        corrupt: Number of corrupt ones, who are not chosen by the neighbours.
        degree: Number of neighbours that a client draws.
        threshold: Number of shares that give a secret.
    """
    honest, others = num_clients - corrupt, num_clients - 1
    sizes = np.arange(1, honest // 2 + 1)
    enough = log_tail(others, corrupt + sizes - 1, degree, threshold)
    found = log_choose(honest, sizes) + sizes * enough
    for i in np.flatnonzero(found > -2 * SECURITY - math.log2(num_clients)):
        size = int(sizes[i])
        rest = np.arange(max(size, honest // 2 + 1 - size), honest - size + 1)  # not dropped
        chosen = log_choose(honest, size) + log_choose(honest - size, rest)
        avoided = log_choose(others - np.array([*rest, size]), degree) - log_choose(others, degree)
        apart = size * np.minimum(avoided[:-1], enough[i]) + rest * avoided[-1]
        found[i] = min(found[i], np.logaddexp2.reduce(chosen + apart))
    return float(np.logaddexp2.reduce(found))


def log_deceived(num_clients: int, corrupt: int, least: int, sample: int) -> float:
    """Base-2 logarithm of a bound on the probability that two lists of survivors are acted on.

    An honest client signs one list, so one of two lists has the signatures of at most half of them
    and of the corrupt ones. For the others, the server would have to guess tags.

    Args:
        num_clients: Number of clients.
        corrupt: Number of corrupt ones.
        least: Least number of signatures that the server has to show.
        sample: Number of signatures that a client checks, among these.
    """
    signed = corrupt + (num_clients - corrupt) // 2
    guessed = np.arange(sample + 1)
    hits = log_choose(max(least - signed, 0), guessed) + log_choose(signed, sample - guessed)
    chance = np.logaddexp2.reduce(hits - 8 * TAG_BYTES * guessed) - log_choose(least, sample)
    return math.log2(num_clients) + float(chance)


def log_tail(
    population: int, marked: Int[ndarray, " n"], draws: int, least: int
) -> Float[ndarray, " n"]:
    """Base-2 logarithm of the probability that a sample has at least ``least`` marked members.

    Args:
        population: Number of members.
        marked: Number of marked ones, one or several cases.
        draws: Size of the sample, without replacement.
        least: Number of marked members in the sample.
    """
    hits, cases = np.arange(least, draws + 1), marked[:, None]
    each = log_choose(cases, hits) + log_choose(population - cases, draws - hits)
    return np.logaddexp2.reduce(each, axis=1) - log_choose(population, draws)


def log_choose(n: int | ndarray, k: int | ndarray) -> Float[ndarray, "*shape"]:
    """Base-2 logarithm of binomial coefficients; minus infinity where there is no choice.

    Args:
        n: Numbers of members.
        k: Numbers of chosen ones.
    """
    n, k = np.broadcast_arrays(n, k)
    table, possible = _log_factorials(int(n.max())), (k >= 0) & (k <= n)
    n, k = np.where(possible, n, 0), np.where(possible, k, 0)
    return np.where(possible, table[n] - table[k] - table[n - k], -np.inf)


@functools.lru_cache(maxsize=8)
def _log_factorials(largest: int) -> Float[ndarray, " n"]:
    return np.concatenate([[0.0], np.log2(np.arange(1, largest + 1)).cumsum()])


@dataclass(frozen=True, eq=False)
class DrawnGraph:
    """Neighbours that clients have drawn.

    Args:
        num_clients: Number of clients of the whole federation.
        degree: Number of neighbours that each draws.
        draws: Seed of a client's neighbours, by its id.
    """

    num_clients: int
    degree: int
    draws: dict[int, bytes]

    @classmethod
    def read(cls, shown: Tree) -> "DrawnGraph":
        """DrawnGraph from a tree.

        Args:
            shown: Result of :meth:`tree`.
        """
        draws = {int(i): seed.cpu().numpy().tobytes() for i, seed in shown["draws"].items()}
        return cls(shown["num_clients"], shown["degree"], draws)

    def tree(self) -> Tree:
        """The graph as a tree."""
        draws = {
            str(i): torch.frombuffer(bytearray(s), dtype=torch.uint8) for i, s in self.draws.items()
        }
        return {"num_clients": self.num_clients, "degree": self.degree, "draws": draws}

    @functools.cached_property
    def holders(self) -> dict[int, list[int]]:
        """Ids of the clients that hold a client's shares, ascending, by its id."""
        found = {}
        for client_id, seed in self.draws.items():
            places = draw_places(seed, self.num_clients - 1, self.degree)
            found[client_id] = sorted(i + (i >= client_id) for i in places)
        return found

    @functools.cached_property
    def senders(self) -> dict[int, list[int]]:
        """Ids of the clients whose shares a client holds, ascending, by its id."""
        found: dict[int, list[int]] = {}
        for client_id in sorted(self.draws):
            for holder in self.holders[client_id]:
                found.setdefault(holder, []).append(client_id)
        return found


def draw_places(seed: bytes, population: int, count: int) -> list[int]:
    """Different numbers below ``population``, in random order.

    Args:
        seed: 32 bytes, uniform.
        population: At least ``count``.
        count: Number of numbers, at least 1.

    Example:
        >>> sorted(draw_places(bytes(32), 4, 4))
        [0, 1, 2, 3]
    """
    if population < 2:
        return list(range(population))
    length = 2 * count
    while True:  # equal numbers are skipped, so all sets are equally likely
        found = dict.fromkeys(expand(seed, population, length, stream=0)[:, 0].tolist())
        if len(found) >= count:
            return list(found)[:count]
        length *= 2
