"""Coordinate-wise medians."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.federated.aggregators.aggregator import Aggregator, as_number, cast_like
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update


@dataclass(frozen=True)
class Median(Aggregator):
    """Unweighted median of every coordinate over clients; of an even number, the midpoint.

    Robust to a minority of arbitrary updates.

    References:
        Yin et al. (2018), Definition 1, arXiv:1803.01498.

    Example:
        >>> values = enumerate([1.0, 2.0, 99.0])
        >>> Median().aggregate((i, Update({"a": torch.tensor([v])})) for i, v in values).payload
        {'a': tensor([2.])}
    """

    @override
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> AggregatedUpdate:
        collected = dict(updates)
        if not collected:
            raise ValueError("there is no update to aggregate")
        first, *others = (update.payload for update in collected.values())
        payload = tree.map(coordinate_median, first, *others)
        weight = sum(update.weight for update in collected.values())
        return AggregatedUpdate(payload, weight, tuple(collected))


PIECE = 2**14
"""Coordinates to sort at once; a stack of whole leaves of all clients would not fit into memory."""


def coordinate_median(*leaves: Tensor | float) -> Tensor:
    """Median of corresponding leaves; of an even number, the midpoint.

    Raises:
        ValueError: If the leaves differ in shape.
    """
    low, high = (len(leaves) - 1) // 2, len(leaves) // 2
    return reduce_sorted(lambda values: (values[low] + values[high]) / 2, leaves)


def reduce_sorted(reduce: Callable[[Tensor], Tensor], leaves: Sequence[Tensor | float]) -> Tensor:
    """Statistic of every coordinate over clients, a piece of coordinates at a time.

    Args:
        reduce: Function of float64 values of shape (clients, coordinates), ascending along the
            first axis, to one value per coordinate.
        leaves: Corresponding leaves, one per client; the first determines the dtype.

    Raises:
        ValueError: If the leaves differ in shape.
    """
    tensors = [as_number(leaf) for leaf in leaves]
    if len(shapes := {tuple(each.shape) for each in tensors}) > 1:
        raise ValueError(f"the payloads differ in shape: {sorted(shapes)}")
    first, columns = tensors[0], [each.reshape(-1) for each in tensors]
    found = torch.empty(first.numel(), dtype=first.dtype, device=first.device)
    for start in range(0, len(found), PIECE):
        rows = [column[start : start + PIECE].double() for column in columns]
        values = torch.stack(rows).sort(dim=0).values
        found[start : start + PIECE] = cast_like(reduce(values), first)
    return found.reshape(first.shape)
