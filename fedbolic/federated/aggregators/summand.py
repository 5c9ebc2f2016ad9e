"""Payloads as what an aggregator adds: their leaves as numbers, and rows of stacked tensors."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from fedbolic.core import tree
from fedbolic.core.types import Tree
from fedbolic.federated.aggregators.update import Update

LARGEST_BLOCK = 2**22
"""Entries of the largest float64 block that a weighted sum holds, 32 MiB."""


def as_number(leaf: Tensor | float) -> Tensor:
    """A leaf as a tensor of its own precision; by default torch converts a float to float32."""
    if isinstance(leaf, Tensor):
        return leaf
    return torch.as_tensor(leaf, dtype=torch.float64 if isinstance(leaf, float) else None)


def cast_like(value: Tensor, like: Tensor | float) -> Tensor:
    """``value`` in the dtype of ``like``, rounded if that is an integer dtype."""
    like = as_number(like)
    return (value if like.is_floating_point() else value.round()).to(like.dtype)


def as_double(leaf: Tensor | float) -> Tensor:
    """Copy of a leaf in float64."""
    value = as_number(leaf)
    return value.clone() if value.dtype == torch.float64 else value.double()


def as_summand(leaf: Tensor | float) -> Tensor:
    """Copy of a leaf in the widest dtype of its kind: float64 or int64."""
    value = as_number(leaf)
    return as_double(value) if value.is_floating_point() else value.to(torch.int64, copy=True)


def summed_rows(leaf: Tensor) -> Tensor:
    """Sum of a stacked leaf over clients, in the dtype of :func:`as_summand`.

    Args:
        leaf: Values of all clients, along a leading axis.
    """
    return leaf.sum(dim=0, dtype=torch.float64 if leaf.is_floating_point() else torch.int64)


def weighted_sum_of(weights: Sequence[float]) -> Callable[[Tensor], Tensor]:
    """The function from a stacked leaf to its weighted sum over clients, in float64.

    Args:
        weights: Weight of each row of the leaves.
    """

    @functools.cache
    def factors(device: torch.device) -> Tensor:
        return torch.tensor(weights, dtype=torch.float64, device=device).unsqueeze(1)

    def weighted_sum(leaf: Tensor) -> Tensor:
        num_clients, *shape = leaf.shape
        rows = leaf.reshape(num_clients, leaf[0].numel())
        blocks = rows.split(max(1, LARGEST_BLOCK // num_clients), dim=1)
        sums = [(block * factors(leaf.device)).sum(dim=0) for block in blocks]
        return (sums[0] if len(sums) == 1 else torch.cat(sums)).view(shape)

    return weighted_sum


def by_stack(updates: Iterable[tuple[int, Update]]) -> Iterator[list[tuple[int, Update]]]:
    """Lists of updates whose payloads are rows of the same stack; other updates stand alone.

    A list ends when a client with a larger id than those of its stack has followed, so that at most
    the stacks of neighbouring clients are kept in memory.

    Args:
        updates: Updates in ascending order of id, iterated once.
    """
    waiting: dict[int, list[tuple[int, Update]]] = {}
    last: dict[int, int] = {}
    for client_id, update in updates:
        for key in [key for key in waiting if last[key] < client_id]:
            yield waiting.pop(key)
        stack = update.stack
        if stack is None:
            yield [(client_id, update)]
            continue
        last[id(stack)] = stack.clients[-1]
        waiting.setdefault(id(stack), []).append((client_id, update))
    yield from waiting.values()


def stacked_payload(updates: Sequence[Update]) -> Tree | None:
    """The payloads with a leading axis of clients; ``None`` if they are not rows of one stack.

    Args:
        updates: Updates of a list of :func:`by_stack`.
    """
    stack, rows = updates[0].stack, [update.row.index for update in updates if update.row]
    if stack is None:
        return None
    if len(rows) == len(stack.clients):
        return stack.payload

    def chosen(x: Tensor) -> Tensor:
        return x.index_select(0, torch.tensor(rows, device=x.device))

    return tree.map(chosen, stack.payload)
