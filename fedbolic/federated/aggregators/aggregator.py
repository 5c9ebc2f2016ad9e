"""The interface of aggregators, those that sum or gather, and their summands."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.core.types import Tree
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update

LARGEST_BLOCK = 2**22
"""Entries of the largest float64 block that a weighted sum holds, 32 MiB."""

LARGEST_FACTOR = 2**29
"""Largest whole number whose products with numbers of float32 are exact in float64."""


class Aggregator(ABC):
    """Combines client updates, in ascending order of client id, into one aggregated update."""

    @abstractmethod
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> AggregatedUpdate:
        """Aggregate of ``updates``, which is iterated once.

        Raises:
            ValueError: If there is no update, or the updates do not fit together.
        """

    def form(self, payload: Tree) -> Tree:
        """Tree with the names, shapes and dtypes that all payloads share; by default the payload.

        An aggregator of payloads that hold a part, such as some rows of a table, returns the form
        of the whole, with tensors on the device ``meta``. A method's template has this form.
        """
        return payload

    def find_fault(self, update: Update) -> str | None:
        """Reason why this update cannot be aggregated, independent of all other updates.

        By default ``None``: forms and finite values have already been checked.
        """
        del update
        return None


class Additive(Aggregator):
    """Base of aggregators that sum; their sums can be streamed, sharded and masked."""

    @abstractmethod
    def to_summand(self, update: Update) -> Tree:
        """Summand of one client, with integers as int64 and floats as float64."""

    @abstractmethod
    def from_sum(self, total: Tree, weight: float, like: Tree) -> Tree:
        """Aggregate from the sum, with the dtypes of ``like``, the form of one client's payload."""

    def stacked_summand(self, payload: Tree, weights: Sequence[float]) -> Tree | None:
        """Sum of the summands of several clients; by default ``None``: they are added one by one.

        Args:
            payload: Payloads with a leading axis of clients, in ascending order of id.
            weights: Weights of the clients.
        """
        del payload, weights
        return None

    def add_to(self, total: Tree, update: Update) -> Tree:
        """Sum of ``total``, which is overwritten, and the summand of one client."""
        return tree.add_(total, self.to_summand(update))

    @override
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> AggregatedUpdate:
        total, weight, clients, like = None, 0.0, [], None
        for some in by_stack(updates):
            ids, of_clients = zip(*some, strict=True)
            total = self._added(total, of_clients)
            weight += sum(update.weight for update in of_clients)
            clients += ids
            like = self.form(of_clients[0].payload) if like is None else like
        if total is None or like is None:
            raise ValueError("there is no update to aggregate")
        clients = tuple(sorted(clients))
        return AggregatedUpdate(self.from_sum(total, weight, like), weight, clients)

    def _added(self, total: Tree | None, updates: Sequence[Update]) -> Tree:
        """The sum with the updates of a stack; without a sum yet, theirs."""
        stacked = stacked_payload(updates)
        if stacked is not None:
            summand = self.stacked_summand(stacked, [update.weight for update in updates])
            if summand is not None:
                return summand if total is None else tree.add_(total, summand)
        for update in updates:
            total = self.to_summand(update) if total is None else self.add_to(total, update)
        assert total is not None
        return total


@dataclass(frozen=True)
class Gather(Aggregator):
    """Payloads by client id, for servers that treat clients individually."""

    @override
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> AggregatedUpdate:
        collected = dict(updates)
        if not collected:
            raise ValueError("there is no update to aggregate")
        payload = {str(client_id): update.payload for client_id, update in collected.items()}
        weight = sum(update.weight for update in collected.values())
        return AggregatedUpdate(payload, weight, tuple(collected))


@dataclass(frozen=True)
class Mean(Additive):
    """Weighted mean of the payloads, summed in float64; integers are rounded to the nearest.

    Stacked payloads are summed by operations on all clients. Their sum is that of the clients in
    ascending order of id up to rounding in float64.

    Example:
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

        sums, exact = [], []  # those whose products with the weight have at most 53 bits
        for summed, leaf in zip(*tree.paired(total, update.payload), strict=True):
            if isinstance(leaf, Tensor) and leaf.dtype == torch.float32:
                sums.append(summed)
                exact.append(leaf)
            else:
                summed.add_(as_double(leaf).mul_(weight))
        if sums:
            torch._foreach_add_(sums, exact, alpha=weight)  # pyright: ignore[reportPrivateImportUsage]
        return total

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


def as_number(leaf: Tensor | float) -> Tensor:
    """A leaf as a tensor of the leaf's precision; by default torch converts a float to float32."""
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
    stack = updates[0].stack
    if stack is None:
        return None
    rows = [update.row.index for update in updates if update.row]
    if len(rows) == len(stack.clients):
        return stack.payload

    def chosen(x: Tensor) -> Tensor:
        return x.index_select(0, torch.tensor(rows, device=x.device))

    return tree.map(chosen, stack.payload)
