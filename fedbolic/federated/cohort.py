"""Sampling of the clients that take part in a round."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedbolic import check
from fedbolic.rng import Rng


@dataclass(frozen=True)
class Cohort:
    """Uniform sample of the clients without replacement, independent in every exchange.

    Args:
        rate: Fraction of the clients, in (0, 1]; their number is rounded up.

    Raises:
        ValueError: If ``rate`` is outside (0, 1].
    """

    rate: float = 1.0

    def __post_init__(self) -> None:
        check.positive(rate=self.rate)
        check.rate(rate=self.rate)

    def sample(self, ids: Sequence[int], rng: Rng) -> tuple[int, ...]:
        """Ids of the sampled clients, ascending."""
        # 0.1 * 30 is 3, not 3.0000000000000004
        count = max(1, math.ceil(self.rate * len(ids) - 1e-9))
        chosen = torch.randperm(len(ids), generator=rng.generator())[:count]
        return tuple(ids[i] for i in sorted(chosen.tolist()))
