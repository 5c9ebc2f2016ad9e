"""The interface of aggregators, and the base class of aggregators that sum."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from fedbolic import tree
from fedbolic.federated.update import AggregatedUpdate, Update
from fedbolic.types import Tree


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

    @override
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> AggregatedUpdate:
        total, weight, clients, like = None, 0.0, [], None
        for client_id, update in updates:
            summand = self.to_summand(update)
            total = summand if total is None else tree.map(_add, total, summand)
            weight += update.weight
            clients.append(client_id)
            like = self.form(update.payload) if like is None else like
        if total is None or like is None:
            raise ValueError("there is no update to aggregate")
        return AggregatedUpdate(self.from_sum(total, weight, like), weight, tuple(clients))


def _add(total: Tensor, summand: Tensor) -> Tensor:
    return total.add_(summand)  # to_summand allocated it, so no caller sees the change


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
