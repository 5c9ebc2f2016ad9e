"""Sampling of the clients that take part in a round."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.federated.noise.draws import SecretStream


@dataclass(frozen=True)
class Cohort:
    """Random sample of the clients, independent in every exchange or every epoch.

    Args:
        rate: Fraction of the clients, in (0, 1].
        sampling: ``fixed`` for a uniform sample without replacement, whose size is rounded up;
            ``poisson`` for an independent choice of every client, which may choose none and is
            therefore only for runs with ``privacy``; ``once`` for cohorts of the same size, the
            last of which may be smaller, by a random order that is new in every epoch: each client
            takes part in one round of an epoch; ``cyclic`` for the same with one order for all
            epochs, so that a client waits for as many rounds as an epoch has.

    Raises:
        ValueError: If ``rate`` is outside (0, 1], or ``sampling`` is unknown.
    """

    rate: float = 1.0
    sampling: Literal["fixed", "poisson", "once", "cyclic"] = "fixed"

    def __post_init__(self) -> None:
        check.positive(rate=self.rate)
        check.rate(rate=self.rate)
        check.one_of(("fixed", "poisson", "once", "cyclic"), sampling=self.sampling)

    def expected_size(self, num_clients: int) -> float:
        """Expected number of sampled clients; their exact number if that is fixed.

        Args:
            num_clients: Number of clients of the federation, at least 1.
        """
        if self.sampling == "poisson":
            return self.rate * num_clients
        # 0.1 * 30 is 3, not 3.0000000000000004
        return float(max(1, math.ceil(self.rate * num_clients - 1e-9)))

    def period(self, num_clients: int) -> int:
        """Number of rounds of an epoch; 1 if every round is sampled independently.

        Args:
            num_clients: Number of clients of the federation, at least 1.
        """
        if self.sampling not in ("once", "cyclic"):
            return 1
        return math.ceil(num_clients / self.expected_size(num_clients))

    def place(self, done: int, num_clients: int) -> tuple[int, int]:
        """Round, from 1, whose stream draws the next sample, and that sample's place in its order.

        Args:
            done: Number of rounds before.
            num_clients: Number of clients of the federation, at least 1.
        """
        place = done % self.period(num_clients)
        return (1 if self.sampling == "cyclic" else done + 1 - place), place

    def sample(
        self, ids: Sequence[int], stream: Rng | SecretStream, *, place: int = 0
    ) -> tuple[int, ...]:
        """Ids of the sampled clients, ascending.

        A sample that must stay secret needs a secret stream: from an
        :class:`~fedbolic.core.rng.Rng` all of it follows from 32 bits, and a few members reveal the
        others.

        Args:
            ids: Ids of all clients.
            stream: Random stream of the exchange; see :meth:`place`.
            place: Number of the round in its epoch, from 0.
        """
        if self.sampling == "poisson":
            chosen = torch.nonzero(_uniform(stream, len(ids)) < self.rate).flatten()
        else:
            count = int(self.expected_size(len(ids)))
            chosen = _order(stream, len(ids))[place * count : (place + 1) * count]
        return tuple(ids[i] for i in sorted(chosen.tolist()))


def _uniform(stream: Rng | SecretStream, size: int) -> Float64[Tensor, " size"]:
    if isinstance(stream, SecretStream):
        return stream.uniform(size)
    return torch.rand(size, generator=stream.generator(), dtype=torch.float64)


def _order(stream: Rng | SecretStream, size: int) -> Int64[Tensor, " size"]:
    if isinstance(stream, SecretStream):
        return stream.uniform(size).argsort(stable=True)
    return torch.randperm(size, generator=stream.generator())
