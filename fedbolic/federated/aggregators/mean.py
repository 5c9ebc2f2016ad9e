"""Weighted means and exact sums."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.core.types import Tree
from fedbolic.federated.aggregators.aggregator import (
    Additive,
    as_double,
    as_summand,
    cast_like,
    summed_rows,
    weighted_sum_of,
)
from fedbolic.federated.aggregators.update import Update

LARGEST_FACTOR = 2**29
"""Largest whole number whose products with numbers of float32 are exact in float64."""


@dataclass(frozen=True)
class Mean(Additive):
    """Weighted mean of the payloads, summed in float64; integers are rounded to the nearest.

    Stacked payloads are summed by operations on all clients. Their sum is that of the clients in
    ascending order of id up to rounding in float64.

    Example:
        >>> import torch
        >>> updates = [(0, Update({"a": torch.tensor([0.0])}, 1.0)),
        ...            (1, Update({"a": torch.tensor([4.0])}, 3.0))]
        >>> Mean().aggregate(updates).payload
        {'a': tensor([3.])}
    """

    @override
    def to_summand(self, update: Update) -> Tree:
        return tree.scale_(tree.map(as_double, update.payload), update.weight)

    @override
    def add_to(self, total: Tree, update: Update) -> Tree:
        weight = update.weight
        if not (0 <= weight <= LARGEST_FACTOR and float(weight).is_integer()):
            return super().add_to(total, update)

        def added(sum: Tensor, leaf: Tensor | float) -> Tensor:
            if isinstance(leaf, Tensor) and leaf.dtype == torch.float32:
                return sum.add_(leaf, alpha=weight)  # the product has at most 53 bits: it is exact
            return sum.add_(as_double(leaf).mul_(weight))

        return tree.map(added, total, update.payload)

    @override
    def stacked_summand(self, payload: Tree, weights: Sequence[float]) -> Tree | None:
        return tree.map(weighted_sum_of(weights), payload)

    @override
    def from_sum(self, total: Tree, weight: float, like: Tree) -> Tree:
        if weight == 0:
            raise ValueError("the weights of all updates are zero: no client has training data")
        return tree.map(lambda leaf, old: cast_like(leaf / weight, old), total, like)


@dataclass(frozen=True)
class Sum(Additive):
    """Unweighted sum of the payloads: exact for integers, in float64 for floats.

    Stacked payloads are summed as by :class:`Mean`.

    Example:
        >>> import torch
        >>> updates = [(i, Update({"n": torch.tensor([2**53 + 1])})) for i in range(2)]
        >>> Sum().aggregate(updates).payload["n"].item() == 2**54 + 2
        True
    """

    @override
    def to_summand(self, update: Update) -> Tree:
        return tree.map(as_summand, update.payload)

    @override
    def stacked_summand(self, payload: Tree, weights: Sequence[float]) -> Tree | None:
        del weights
        return tree.map(summed_rows, payload)

    @override
    def from_sum(self, total: Tree, weight: float, like: Tree) -> Tree:
        del weight
        return tree.map(
            lambda leaf, old: cast_like(leaf, old) if leaf.is_floating_point() else leaf,
            total,
            like,
        )
