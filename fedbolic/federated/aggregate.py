"""How the updates of an exchange become one total."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic import tree
from fedbolic.federated.method import Total, Update
from fedbolic.types import Tree


class Aggregator(ABC):
    """Updates with the ids of their clients, in ascending order of id, to one total."""

    @abstractmethod
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> Total:
        """The total of ``updates``, which are read once.

        Raises:
            ValueError: If there is none, or they do not fit together.
        """

    def find_fault(self, update: Update) -> str | None:
        """The reason for which an update cannot be aggregated, whatever the others are.

        By default there is none: forms and finite numbers are checked before.
        """
        del update
        return None


class Additive(Aggregator):
    """A sum between two maps: whatever is additive streams, shards and masks without knowing it."""

    @abstractmethod
    def lift(self, update: Update) -> Tree:
        """What one client adds to the sum: integers as int64, floats as float64."""

    @abstractmethod
    def lower(self, total: Tree, weight: float, like: Tree) -> Tree:
        """The aggregate from the sum, with the dtypes of ``like``, one client's payload."""

    @override
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> Total:
        total, weight, clients, like = None, 0.0, [], None
        for client_id, update in updates:
            summand = self.lift(update)
            total = summand if total is None else tree.map(_add, total, summand)
            weight += update.weight
            clients.append(client_id)
            like = update.payload if like is None else like
        if total is None or like is None:
            raise ValueError("there is no update to aggregate")
        return Total(self.lower(total, weight, like), weight, tuple(clients))


def _add(total: Tensor, summand: Tensor) -> Tensor:
    return total.add_(summand)  # lift made the storage, nobody else holds it


@dataclass(frozen=True)
class Mean(Additive):
    """The mean of the payloads by weight, summed in float64; integers are rounded to nearest.

    Example:
        >>> updates = [(0, Update({"a": torch.tensor([0.0])}, 1.0)),
        ...            (1, Update({"a": torch.tensor([4.0])}, 3.0))]
        >>> Mean().aggregate(updates).payload
        {'a': tensor([3.])}
    """

    @override
    def lift(self, update: Update) -> Tree:
        return tree.map(lambda leaf: _double(leaf).mul_(update.weight), update.payload)

    @override
    def lower(self, total: Tree, weight: float, like: Tree) -> Tree:
        if weight == 0:
            raise ValueError("the weights of all updates are zero: no client has training data")
        return tree.map(lambda leaf, old: _cast(leaf / weight, old), total, like)


def _tensor(leaf: Tensor | float) -> Tensor:
    """A number as a tensor of its own precision: torch would make a float32 of it."""
    return torch.as_tensor(leaf, dtype=torch.float64 if isinstance(leaf, float) else None)


def _cast(value: Tensor, like: Tensor | float) -> Tensor:
    like = _tensor(like)
    return (value if like.is_floating_point() else value.round()).to(like.dtype)


@dataclass(frozen=True)
class Sum(Additive):
    """The sum of the payloads, whatever their weights: integers exactly, floats in float64.

    Example:
        >>> updates = [(i, Update({"n": torch.tensor([2**53 + 1])})) for i in range(2)]
        >>> Sum().aggregate(updates).payload["n"].item() == 2**54 + 2
        True
    """

    @override
    def lift(self, update: Update) -> Tree:
        return tree.map(_wide, update.payload)

    @override
    def lower(self, total: Tree, weight: float, like: Tree) -> Tree:
        del weight
        return tree.map(
            lambda leaf, old: _cast(leaf, old) if leaf.is_floating_point() else leaf, total, like
        )


def _double(leaf: Tensor | float) -> Tensor:
    return _tensor(leaf).to(torch.float64, copy=True)


def _wide(leaf: Tensor | float) -> Tensor:
    value = _tensor(leaf)
    return _double(value) if value.is_floating_point() else value.to(torch.int64, copy=True)


@dataclass(frozen=True)
class Collect(Aggregator):
    """Every payload by the id of its client: for servers that keep clients apart."""

    @override
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> Total:
        collected = dict(updates)
        if not collected:
            raise ValueError("there is no update to aggregate")
        payload = {str(client_id): update.payload for client_id, update in collected.items()}
        weight = sum(update.weight for update in collected.values())
        return Total(payload, weight, tuple(collected))


@dataclass(frozen=True)
class Median(Aggregator):
    """The median of every coordinate over clients, unweighted; of an even number, the midpoint.

    Robust to a minority of arbitrary updates.

    References:
        Yin et al. (2018), Definition 1, arXiv:1803.01498.

    Example:
        >>> values = enumerate([1.0, 2.0, 99.0])
        >>> Median().aggregate((i, Update({"a": torch.tensor([v])})) for i, v in values).payload
        {'a': tensor([2.])}
    """

    @override
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> Total:
        collected = dict(updates)
        if not collected:
            raise ValueError("there is no update to aggregate")
        first, *others = (update.payload for update in collected.values())
        payload = tree.map(_median, first, *others)
        weight = sum(update.weight for update in collected.values())
        return Total(payload, weight, tuple(collected))


PIECE = 2**14
"""Coordinates whose values of all clients are sorted at once: whole leaves would not fit."""


def _median(*leaves: Tensor | float) -> Tensor:
    tensors = [_tensor(leaf) for leaf in leaves]
    if len(shapes := {tuple(each.shape) for each in tensors}) > 1:
        raise ValueError(f"the payloads differ in shape: {sorted(shapes)}")
    first, columns = tensors[0], [each.reshape(-1) for each in tensors]
    found = torch.empty(first.numel(), dtype=first.dtype, device=first.device)
    low, high = (len(leaves) - 1) // 2, len(leaves) // 2
    for start in range(0, len(found), PIECE):
        rows = [column[start : start + PIECE].double() for column in columns]
        values = torch.stack(rows).sort(dim=0).values
        found[start : start + PIECE] = _cast((values[low] + values[high]) / 2, first)
    return found.reshape(first.shape)
