"""Interface of engines, which execute the clients of an exchange."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias

import torch

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client, FederatedData
from fedbolic.federated.aggregators.update import Update
from fedbolic.federated.contract.method import Method


def torch_stream(client: Client, rng: Rng) -> AbstractContextManager[Callable[[], bool]]:
    """Context manager that seeds torch's global random stream for a client and restores it.

    Args:
        client: The client that is trained or scored.
        rng: The client's stream of this exchange or evaluation.
    """
    return rng.at("torch").as_torch_global(client.no_inputs.device)


class RunStoppedError(RuntimeError):
    """Training cannot continue; the last checkpoint is untouched."""


@dataclass(frozen=True, eq=False)
class Failure:
    """Result of a client whose local update raised an error."""

    error: BaseException


@dataclass(frozen=True, eq=False)
class Exchange:
    """Work of an engine: the clients of an exchange, or of an evaluation, with what they received.

    Args:
        method: Method whose ``local_update`` is run, or whose ``evaluate`` is called.
        messages: Message that each client received, by id.
        clients: The clients, in ascending order of id.
        client_states: Client states from earlier rounds, by id; a new client has no entry.
        rng: Random stream of this exchange or evaluation.
    """

    method: Method
    messages: Mapping[int, Tree]
    clients: Sequence[Client]
    client_states: Mapping[int, Tree]
    rng: Rng

    def of(self, clients: Sequence[Client]) -> "Exchange":
        """The exchange of some of the clients."""
        return dataclasses.replace(self, clients=clients)

    def state(self, client: Client) -> Tree:
        """State that a client kept from earlier rounds; empty for a new client."""
        return self.client_states.get(client.id, {})

    def stream(self, client: Client) -> Rng:
        """Random stream of a client."""
        return self.rng.at("client", client.id)


def messages_to(method: Method, server_state: Tree, clients: Sequence[Client]) -> dict[int, Tree]:
    """Message to each client by id: one object where the method sends the same to all.

    Args:
        method: Method of the exchange, or of the evaluation.
        server_state: Current server state.
        clients: The recipients.
    """
    if clients and type(method).broadcast is Method.broadcast:
        message = method.broadcast(server_state, clients[0].id)
        return dict.fromkeys((client.id for client in clients), message)
    return {client.id: method.broadcast(server_state, client.id) for client in clients}


Result: TypeAlias = tuple[Client, Update | Failure, Tree]
"""A client, its update and its new client state; a failed client keeps its old state."""


def moved_result(
    update: Update | Failure, client_state: Tree, device: torch.device | str
) -> tuple[Update | Failure, Tree]:
    """A client's result with its tensors on a device; a failure if it is no result.

    Args:
        update: Update, failure, or whatever the client returned.
        client_state: The same of its state.
        device: The device.
    """
    if isinstance(update, Failure):
        return update, client_state
    try:
        both = {"payload": update.payload, "client_state": client_state}
        if (fault := tree.find_tree_fault(both)) is not None:
            raise ValueError(f"its result is not a tree: {fault}")
        both = tree.to(both, device)
        return dataclasses.replace(update, payload=both["payload"]), both["client_state"]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a client returns, only that client is left out
        return Failure(error), client_state


@dataclass(frozen=True, eq=False)
class MethodKey:
    """Key for what an engine remembers about a method, which need not be hashable.

    Keys of equal methods are equal. Methods with fields that cannot be compared, such as tensors,
    are equal only to themselves.

    Args:
        method: Method that is remembered.
    """

    method: Method

    def __hash__(self) -> int:
        return hash(type(self.method))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MethodKey):
            return NotImplemented
        try:
            return self.method is other.method or bool(self.method == other.method)
        except (RuntimeError, ValueError):  # as comparisons of whole tensors and arrays raise
            return False


class Engine(ABC):
    """Executes the clients of an exchange.

    Every engine gives the results of :class:`~fedbolic.federated.engines.sequential.Sequential` up
    to rounding, for clients of any size: with the same random streams, the same batches in the same
    order, and results in the same order.
    """

    @abstractmethod
    def run(self, exchange: Exchange) -> Iterator[Result]:
        """Run the local update of every client; results come in ascending order of id.

        Args:
            exchange: The clients, with their messages, states and random streams.
        """

    def scores(self, exchange: Exchange) -> dict[int, dict[str, float]]:
        """Scores of clients on their own data, by id; by default computed one client at a time.

        Args:
            exchange: The clients to score, with what they received.
        """
        found = {}
        for client in exchange.clients:
            given, stream = exchange.messages[client.id], exchange.stream(client)
            with torch_stream(client, stream):
                state = exchange.state(client)
                found[client.id] = exchange.method.evaluate(given, client, state, stream)
        return found

    def check(self, clients: Sequence[Client]) -> None:
        """Raise an error if this engine cannot run the clients; by default it runs all.

        Raises:
            ValueError: If the engine cannot run one of the clients.
        """
        del clients

    def open(self, clients: Sequence[Client]) -> AbstractContextManager["Engine"]:
        """Context manager with an engine for many exchanges over ``clients``; leaving it frees it.

        By default it is the engine itself, which holds no resources.

        Raises:
            ValueError: If :meth:`check` refuses the clients.
        """
        self.check(clients)
        return nullcontext(self)


class Remote(Engine):
    """An engine whose clients train on other machines, where their data and states stay.

    Channels are applied at the clients. The server keeps only the name of each client state.
    """

    @property
    @abstractmethod
    def deployment(self) -> dict[str, float | str]:
        """Settings from which an equal engine is rebuilt when a run is resumed."""

    @abstractmethod
    def federation(self, holdout: Client | None) -> FederatedData:
        """The federation as the server sees it: clients without data, and the server's test set.

        Args:
            holdout: The server's own test set; ``None`` if it has none.

        Raises:
            RunStoppedError: If clients are missing.
            ValueError: If the clients' ids or input shapes do not form one federation.
        """
