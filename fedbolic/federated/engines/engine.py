"""Executes the clients of an exchange."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias

from fedbolic.data.client import Client, FederatedData
from fedbolic.federated.method import Method
from fedbolic.federated.update import Update
from fedbolic.rng import Rng
from fedbolic.types import Tree


def torch_stream(client: Client, rng: Rng) -> AbstractContextManager[Callable[[], bool]]:
    """Torch's global random stream as the client's own, for networks that draw from it.

    Args:
        client: Who works or is scored.
        rng: The client's stream of this exchange or evaluation.
    """
    return rng.at("torch").as_torch_global(client.no_inputs.device)


class RunStoppedError(RuntimeError):
    """Training cannot go on; the last checkpoint is untouched."""


@dataclass(frozen=True, eq=False)
class Failure:
    """Result of a client whose work raised an error."""

    error: Exception


Result: TypeAlias = tuple[Client, Update | Failure, Tree]
"""A client with its update and its new memory; with the old one where its work failed."""


class Engine(ABC):
    """Runs the local work of an exchange.

    Every engine gives the results of :class:`~fedbolic.federated.engines.sequential.Sequential` up
    to rounding, whatever the clients' sizes: streams, the order of batches and the order of results
    belong to this law.
    """

    @abstractmethod
    def run(
        self,
        method: Method,
        messages: Mapping[int, Tree],
        clients: Sequence[Client],
        client_states: Mapping[int, Tree],
        rng: Rng,
    ) -> Iterator[Result]:
        """Every client with its update and new memory, in ascending order of id.

        Args:
            method: Whose local work is done.
            messages: What each client received, by id.
            clients: Those who take part, in ascending order of id.
            client_states: What clients kept from earlier turns, by id; absent the first time.
            rng: The stream of this exchange; client ``i`` works with ``rng.at("client", i)``.
        """

    def scores(
        self,
        method: Method,
        messages: Mapping[int, Tree],
        clients: Sequence[Client],
        client_states: Mapping[int, Tree],
        rng: Rng,
    ) -> dict[int, dict[str, float]]:
        """The scores of clients on their own data, by id; by default found here, one by one.

        Args:
            method: Whose :meth:`~fedbolic.federated.method.Method.evaluate` scores.
            messages: What each client received, by id.
            clients: Those who are scored, in ascending order of id.
            client_states: What clients kept, by id.
            rng: The stream of this evaluation; client ``i`` has ``rng.at("client", i)``.
        """
        found = {}
        for client in clients:
            client_state, stream = client_states.get(client.id, {}), rng.at("client", client.id)
            with torch_stream(client, stream):
                found[client.id] = method.evaluate(
                    messages[client.id], client, client_state, stream
                )
        return found

    def check(self, clients: Sequence[Client]) -> None:
        """Refuse clients for whom this engine cannot work; by default it works for all.

        Raises:
            ValueError: Saying why.
        """
        del clients

    def open(self, clients: Sequence[Client]) -> AbstractContextManager["Engine"]:
        """The engine to use for many exchanges over ``clients``; leaving gives back what it took.

        By default it is the engine itself, which takes nothing.

        Raises:
            ValueError: As :meth:`check`.
        """
        self.check(clients)
        return nullcontext(self)


class Remote(Engine):
    """An engine whose clients hold their data and memories elsewhere, where they work.

    Their updates come as the channels left them, and in place of memories the names of these.
    """

    @property
    @abstractmethod
    def deployment(self) -> dict[str, float]:
        """The settings by which such an engine can be had again."""

    @abstractmethod
    def federation(self, holdout: Client | None) -> FederatedData:
        """The clients, without any data, and what the server holds.

        Args:
            holdout: The server's own test set, if there is one.

        Raises:
            RunStoppedError: If clients are missing.
            ValueError: If they do not fit together.
        """
