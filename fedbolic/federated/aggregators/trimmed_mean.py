"""Coordinate-wise trimmed means."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.median import reduce_sorted
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    r"""Unweighted mean of every coordinate without its smallest and its largest values.

    .. math:: \frac{1}{n - 2 b} \sum_{i = b + 1}^{n - b} x_{(i)}, \quad
        b = \lfloor \beta n \rfloor, \quad x_{(1)} \le \dots \le x_{(n)}

    Robust to at most b arbitrary updates of n. Integers are rounded to the nearest. Like the paper,
    it ignores weights, which an attacker would choose.

    Args:
        share: Share of the clients that is trimmed at each end, beta, in (0, 0.5).

    Raises:
        ValueError: If ``share`` is outside (0, 0.5), or (from ``aggregate``) there are so few
            clients that none would be trimmed.

    References:
        Yin et al. (2018), Definition 2, arXiv:1803.01498.

    Example:
        >>> values = enumerate([1.0, 2.0, 3.0, 99.0])
        >>> updates = [(i, Update({"a": torch.tensor([v])})) for i, v in values]
        >>> TrimmedMean(0.25).aggregate(updates).payload
        {'a': tensor([2.5000])}
    """

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share < 0.5:
            raise ValueError(f"share must lie in (0, 0.5), got {self.share}")

    @override
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> AggregatedUpdate:
        collected = dict(updates)
        if not collected:
            raise ValueError("there is no update to aggregate")
        num = len(collected)
        trimmed = int(self.share * num + 1e-9)  # 0.29 * 100 is 28.999999999999996
        if trimmed == 0:
            raise ValueError(
                f"TrimmedMean({self.share}) would trim none of {num} clients: use a share of at "
                "least 1 / clients, or more clients"
            )

        def mean(*leaves: torch.Tensor | float) -> torch.Tensor:
            return reduce_sorted(lambda values: values[trimmed : num - trimmed].mean(0), leaves)

        first, *others = (update.payload for update in collected.values())
        weight = sum(update.weight for update in collected.values())
        return AggregatedUpdate(tree.map(mean, first, *others), weight, tuple(collected))
