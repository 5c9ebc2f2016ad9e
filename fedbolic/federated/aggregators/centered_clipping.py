"""Centred clipping of the client deltas."""

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
class CenteredClipping(Aggregator):
    r"""Iterated mean of the client deltas, each clipped to a ball around the current centre.

    .. math:: v \leftarrow v + \frac1n \sum_i (\Delta_i - v)
        \min\Big(1, \frac{\tau}{\|\Delta_i - v\|}\Big), \quad v = 0 \text{ at first}

    An update moves the result by at most :math:`2 \tau / n` per iteration, whatever it holds. With
    one iteration, this is the mean of clipped deltas. Many iterations tend to the minimiser of the
    sum of Huber losses of the distances, which does not depend on the first centre.

    Departs from the paper, where v begins at the aggregate of the step before and clients send
    momenta: here it begins at 0. A delta is measured from the current model, so 0 is the hypothesis
    of no progress, and the aggregator holds no state. A ``tau`` far below the length of honest
    deltas slows training down instead of stopping it.

    Weights are ignored, as in the paper. The result is that of ``payload["delta"]``; every other
    part is the coordinate-wise median.

    Args:
        radius: Radius of the ball, tau, in units of the deltas, above 0.
        iterations: Number of iterations, at least 1.

    Raises:
        ValueError: If a value is out of range, or (from ``aggregate``) a payload has no part
            ``delta``.

    References:
        Karimireddy et al. (2021), centered clipping (CC), arXiv:2012.10333.

    Example:
        >>> values = enumerate([1.0, 2.0, 99.0])
        >>> updates = [(i, Update({"delta": {"w": torch.tensor([v])}})) for i, v in values]
        >>> CenteredClipping(radius=3.0).aggregate(updates).payload
        {'delta': {'w': tensor([2.])}}
    """

    radius: float
    iterations: int = 1

    def __post_init__(self) -> None:
        check.positive(radius=self.radius)
        check.at_least(1, iterations=self.iterations)

    @override
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> AggregatedUpdate:
        collected, gram = usable_deltas(dict(updates), "CenteredClipping")
        weights, clipped = self.weigh(gram)
        return combine_updates(collected, weights, {"centered_clipping/clipped": clipped})

    def weigh(self, gram: Float[Tensor, "k k"]) -> tuple[Float[Tensor, " k"], float]:
        """Coefficients of the deltas in the result, and the share clipped in the last iteration.

        Args:
            gram: Inner products of the deltas, in float64.
        """
        weights, clipped = torch.zeros_like(gram[0]), 0.0
        for _ in range(self.iterations):
            distances = distances_to(gram, weights)
            factors = (self.radius / distances).clamp_max(1)  # 1 at distance 0
            weights = weights + (factors - factors.sum() * weights) / len(gram)
            clipped = float((factors < 1).double().mean())
        return weights, clipped
