"""Krum and Multi-Krum: the client deltas that are closest to their nearest neighbours."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.deltas import combine_updates, squared_distances, usable_deltas
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update


@dataclass(frozen=True)
class Krum(Aggregator):
    r"""Krum, or Multi-Krum for ``num_selected`` above 1: the mean of the deltas of least score.

    .. math:: s_i = \sum_{j \in N_i} \|\Delta_i - \Delta_j\|^2, \quad
        N_i: \text{ the } n - f - 2 \text{ other deltas closest to } \Delta_i

    Of equal scores, the lower client id wins. Weights are ignored, as in the paper. The scores are
    those of ``payload["delta"]``; every other part is the coordinate-wise median over all clients.

    Args:
        num_byzantine: Number of attackers to withstand, f, at least 0. An exchange needs
            ``2 f + 3`` clients or more.
        num_selected: Number of deltas to average, at least 1 and at most ``n - f``.

    Raises:
        ValueError: If a number is out of range, or (from ``aggregate``) there are too few clients,
            or a payload has no part ``delta``.

    References:
        Blanchard et al. (2017), the Krum function and Multi-Krum, arXiv:1703.02757.

    Example:
        >>> values = enumerate([1.0, 1.1, 1.3, 9.0, 0.0])
        >>> updates = [(i, Update({"delta": {"w": torch.tensor([v])}})) for i, v in values]
        >>> Krum(num_byzantine=1).aggregate(updates).payload
        {'delta': {'w': tensor([1.1000])}}
    """

    num_byzantine: int
    num_selected: int = 1

    def __post_init__(self) -> None:
        check.at_least(0, num_byzantine=self.num_byzantine)
        check.at_least(1, num_selected=self.num_selected)

    @override
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> AggregatedUpdate:
        collected, gram = usable_deltas(dict(updates), "Krum", centre="median")
        num, least = len(collected), 2 * self.num_byzantine + 3
        if num < least:
            raise ValueError(
                f"Krum with num_byzantine={self.num_byzantine} needs at least {least} clients, and "
                f"{num} sent an update: use a smaller num_byzantine or a larger cohort"
            )
        if self.num_selected > num - self.num_byzantine:
            raise ValueError(
                f"Krum cannot select {self.num_selected} honest deltas if {self.num_byzantine} of "
                f"{num} clients attack: use num_selected of at most {num - self.num_byzantine}"
            )
        chosen, score = self.select(gram)
        weights = torch.zeros(num, dtype=torch.float64)
        weights[chosen] = 1 / self.num_selected
        return combine_updates(collected, weights, {"krum/score": score})

    def select(self, gram: Float[Tensor, "k k"]) -> tuple[Int64[Tensor, " m"], float]:
        """Positions of the selected deltas, best first, and the largest of their scores.

        Args:
            gram: Inner products of the deltas about any centre, in float64.
        """
        nearest = squared_distances(gram).sort(dim=1).values  # column 0: a delta and itself
        scores = nearest[:, 1 : len(gram) - self.num_byzantine - 1].sum(dim=1)
        chosen = scores.argsort(stable=True)[: self.num_selected]
        return chosen, float(scores[chosen[-1]])
