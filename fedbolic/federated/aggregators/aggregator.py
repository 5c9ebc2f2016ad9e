"""The interface of aggregators, and the base class of aggregators that sum."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from typing_extensions import override

from fedbolic.core import tree
from fedbolic.core.types import Tree
from fedbolic.federated.aggregators.summand import by_stack, stacked_payload
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update


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
