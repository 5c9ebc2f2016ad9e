"""Exchanges of a method, from a loop that is written without the trainer."""

import functools
from dataclasses import dataclass

from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data import Client, FederatedData
from fedbolic.federated import AggregatedUpdate, Method, Sequential, Update
from fedbolic.federated.contract.engine import Exchange, Failure


@dataclass(frozen=True, eq=False)
class RecordedExchange:
    """Inputs and outputs of one exchange in which all clients take part."""

    phase: Method
    server_state: Tree
    clients: tuple[Client, ...]
    messages: dict[int, Tree]
    client_states: dict[int, Tree]
    rng: Rng
    updates: dict[int, Update]
    kept: dict[int, Tree]
    total: AggregatedUpdate
    next: Tree

    @property
    def given(self) -> Exchange:
        """Work of an engine in this exchange."""
        return Exchange(self.phase, self.messages, self.clients, self.client_states, self.rng)

    def work(self, client: Client) -> tuple[Update, Tree]:
        """Result of the client's local work, computed again."""
        state, stream = self.client_states[client.id], self.rng.at("client", client.id)
        return self.phase.local_update(self.messages[client.id], client, state, stream)


@dataclass(frozen=True, eq=False)
class MethodRun:
    """A method and data on which its laws are tested.

    Choose few rounds and small data: every law repeats some of the work.

    Args:
        method: Method to test.
        data: Federation of at least two clients with a test set of the server.
        seed: Seed of all random numbers.
    """

    method: Method
    data: FederatedData
    seed: int = 11

    @property
    def rng(self) -> Rng:
        """Random stream of the run."""
        return Rng(self.seed)

    @functools.cached_property
    def exchanges(self) -> list[RecordedExchange]:
        """All exchanges of the run."""
        method, data = self.method, self.data
        server_state = method.admit(method.init(data.meta, self.rng.at("init")), data.sizes)
        client_states: dict[int, Tree] = {}
        log, answered, round, exchange = [], (), 0, 0
        while round < method.rounds:
            phase = method.phase(server_state)
            same = phase.traits.cohort == "same" and exchange
            clients = tuple(c for c in data.clients if not same or c.id in answered)
            stream = self.rng.at("round", round + 1, "exchange", exchange)
            done = _exchange(phase, server_state, clients, client_states, stream)
            log.append(done)
            server_state, answered = done.next, done.total.clients
            client_states = {**client_states, **done.kept}
            round, exchange = (round + 1, 0) if phase.traits.evaluates else (round, exchange + 1)
        return log


def _exchange(
    phase: Method,
    server_state: Tree,
    clients: tuple[Client, ...],
    client_states: dict[int, Tree],
    stream: Rng,
) -> RecordedExchange:
    messages = {c.id: phase.broadcast(server_state, c.id) for c in clients}
    updates, kept = {}, {}
    results = Sequential().run(Exchange(phase, messages, clients, client_states, stream))
    for client, update, client_state in results:
        if isinstance(update, Failure):
            raise update.error
        updates[client.id], kept[client.id] = update, client_state
    total = phase.aggregator.aggregate(updates.items())
    new = phase.server_update(server_state, total)
    before = {c.id: client_states.get(c.id, {}) for c in clients}
    return RecordedExchange(
        phase, server_state, clients, messages, before, stream, updates, kept, total, new
    )
