"""Geometric medians of the client deltas, by the smoothed Weiszfeld algorithm."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.deltas import combine_updates, distances_to, usable_deltas
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update


@dataclass(frozen=True)
class GeometricMedian(Aggregator):
    r"""Weighted geometric median of the client deltas (RFA), smoothed near the deltas themselves.

    .. math:: \arg\min_z \sum_k \alpha_k \|z - \Delta_k\|, \quad
        z \leftarrow \frac{\sum_k \beta_k \Delta_k}{\sum_k \beta_k}, \quad
        \beta_k = \frac{\alpha_k}{\max(\nu, \|z - \Delta_k\|)}

    Robust to clients with less than half of the total weight. As in the paper, ``alpha`` is
    proportional to the weights that clients report; where they may lie, use a method with equal
    weights. The iteration begins at the weighted mean and works on the inner products of the
    deltas, so its cost per step does not depend on the number of parameters. The median is that of
    ``payload["delta"]``; every other part is the unweighted coordinate-wise median.

    Args:
        smoothing: Smallest distance in the denominator, nu, in units of the deltas, above 0.
        tolerance: Step length that ends the iteration, relative to the weighted harmonic mean of
            the distances, in which far deltas hardly count; at least 0.
        max_steps: Maximum number of steps, at least 1. The paper finds 3 sufficient in practice.

    Raises:
        ValueError: If a value is out of range, or (from ``aggregate``) a payload has no part
            ``delta``, or all weights are 0.

    References:
        Pillutla et al. (2022), smoothed Weiszfeld algorithm, arXiv:1912.13445.

    Example:
        >>> values = enumerate([1.0, 2.0, 99.0])
        >>> updates = [(i, Update({"delta": {"w": torch.tensor([v])}})) for i, v in values]
        >>> GeometricMedian().aggregate(updates).payload["delta"]["w"].round(decimals=3)
        tensor([2.])
    """

    smoothing: float = 1e-6
    tolerance: float = 1e-6
    max_steps: int = 1000

    def __post_init__(self) -> None:
        check.positive(smoothing=self.smoothing)
        check.not_negative(tolerance=self.tolerance)
        check.at_least(1, max_steps=self.max_steps)

    @override
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> AggregatedUpdate:
        collected, gram = usable_deltas(dict(updates), "GeometricMedian", centre="median")
        sizes = torch.tensor([update.weight for update in collected.values()]).double()
        if not sizes.sum() > 0:
            raise ValueError("the weights of all updates are zero: no client has training data")
        weights, steps = self.weigh(gram, sizes / sizes.sum())
        metrics = {
            "geometric_median/steps": float(steps),
            "geometric_median/weight_max": float(weights.max()),
        }
        return combine_updates(collected, weights, metrics)

    def weigh(
        self, gram: Float[Tensor, "k k"], alpha: Float[Tensor, " k"]
    ) -> tuple[Float[Tensor, " k"], int]:
        """Weights of the deltas in their geometric median, which sum to 1, and the number of steps.

        Args:
            gram: Inner products of the deltas about any centre, in float64.
            alpha: Weights of the distances, which sum to 1.
        """
        weights = alpha
        for step in range(1, self.max_steps + 1):
            distances = distances_to(gram, weights)
            beta = alpha / distances.clamp_min(self.smoothing)
            moved = beta / beta.sum() - weights
            weights = weights + moved
            length = (moved @ gram @ moved).clamp_min(0).sqrt()
            if length * beta.sum() <= self.tolerance:
                return weights, step
        return weights, self.max_steps
