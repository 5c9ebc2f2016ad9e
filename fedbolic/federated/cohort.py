"""Sampling of the clients that take part in a round."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from fedbolic import check
from fedbolic.rng import Rng


@dataclass(frozen=True)
class Cohort:
    """Random sample of the clients, independent in every exchange.

    Args:
        rate: Fraction of the clients, in (0, 1].
        sampling: ``fixed`` for a uniform sample without replacement, whose size is rounded up;
            ``poisson`` for an independent choice of every client, which may choose none and is
            therefore only for runs with ``privacy``.

    Raises:
        ValueError: If ``rate`` is outside (0, 1], or ``sampling`` is unknown.
    """

    rate: float = 1.0
    sampling: Literal["fixed", "poisson"] = "fixed"

    def __post_init__(self) -> None:
        check.positive(rate=self.rate)
        check.rate(rate=self.rate)
        check.one_of(("fixed", "poisson"), sampling=self.sampling)

    def expected_size(self, num_clients: int) -> float:
        """Expected number of sampled clients; their exact number if that is fixed.

        Args:
            num_clients: Number of clients of the federation, at least 1.
        """
        if self.sampling == "poisson":
            return self.rate * num_clients
        # 0.1 * 30 is 3, not 3.0000000000000004
        return float(max(1, math.ceil(self.rate * num_clients - 1e-9)))

    def sample(self, ids: Sequence[int], rng: Rng) -> tuple[int, ...]:
        """Ids of the sampled clients, ascending."""
        if self.sampling == "poisson":
            drawn = torch.rand(len(ids), generator=rng.generator(), dtype=torch.float64)
            return tuple(ids[i] for i in torch.nonzero(drawn < self.rate).flatten().tolist())
        count = int(self.expected_size(len(ids)))
        chosen = torch.randperm(len(ids), generator=rng.generator())[:count]
        return tuple(ids[i] for i in sorted(chosen.tolist()))
