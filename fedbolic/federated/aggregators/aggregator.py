"""Aggregators: the interface, and the base of those that sum."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from fedbolic import tree
from fedbolic.federated.update import AggregatedUpdate, Update
from fedbolic.types import Tree


class Aggregator(ABC):
    """Updates with the ids of their clients, in ascending order of id, to one total."""

    @abstractmethod
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> AggregatedUpdate:
        """The total of ``updates``, which are read once.

        Raises:
            ValueError: If there is none, or they do not fit together.
        """

    def find_fault(self, update: Update) -> str | None:
        """The reason for which an update cannot be aggregated, whatever the others are.

        By default ``None``: forms and finite numbers are checked before.
        """
        del update
        return None


class Additive(Aggregator):
    """Base of aggregators that sum; their sums can be streamed, sharded and masked."""

    @abstractmethod
    def to_summand(self, update: Update) -> Tree:
        """Summand of one client: integers as int64, floats as float64."""

    @abstractmethod
    def from_sum(self, total: Tree, weight: float, like: Tree) -> Tree:
        """The aggregate from the sum, with the dtypes of ``like``, one client's payload."""

    @override
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> AggregatedUpdate:
        total, weight, clients, like = None, 0.0, [], None
        for client_id, update in updates:
            summand = self.to_summand(update)
            total = summand if total is None else tree.map(_add, total, summand)
            weight += update.weight
            clients.append(client_id)
            like = update.payload if like is None else like
        if total is None or like is None:
            raise ValueError("there is no update to aggregate")
        return AggregatedUpdate(self.from_sum(total, weight, like), weight, tuple(clients))


def _add(total: Tensor, summand: Tensor) -> Tensor:
    return total.add_(summand)  # to_summand allocated it, and nobody else holds it


@dataclass(frozen=True)
class Gather(Aggregator):
    """Every payload by the id of its client: for servers that keep clients apart."""

    @override
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> AggregatedUpdate:
        collected = dict(updates)
        if not collected:
            raise ValueError("there is no update to aggregate")
        payload = {str(client_id): update.payload for client_id, update in collected.items()}
        weight = sum(update.weight for update in collected.values())
        return AggregatedUpdate(payload, weight, tuple(collected))
