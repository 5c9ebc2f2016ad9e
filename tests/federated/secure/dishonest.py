"""A server of a secure sum that departs from the protocol as a strategy says."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data import FederatedData
from fedbolic.federated import Method, RunStoppedError, Sum, Update
from fedbolic.federated.aggregators.modular import reduce_limbs
from fedbolic.federated.secure import SecureSum
from fedbolic.federated.secure.mask import unpack
from fedbolic.federated.secure.roster import listed_ids
from tests.federated.secure.parties import parties
from tests.federated.simple_method import RNG

NUM, THRESHOLD, VICTIM = 5, 4, 2
FIVE = parties(NUM)


@dataclass(frozen=True)
class Gated(Method):
    """Every client sends its row times a number that it received, as a network that may be dead.

    Whatever else a server may choose changes the update, too: the random stream, the facts about
    the federation, and the client state that earlier messages have prepared.

    Args:
        sent: Takes what each client has computed, in the clear, for comparison with the sum.
    """

    sent: dict = field(default_factory=dict, compare=False)
    rounds: int = 9
    aggregator = Sum()

    @override
    def init(self, meta, rng):
        return {"gate": 1.0, "body": {"x": torch.ones(2)}}

    @override
    def local_update(self, message, client, client_state, rng):
        drawn = torch.randint(1000, (3,), generator=rng.generator())
        row = torch.tensor([10 ** min(client.id, 16), -(3**client.id), client.meta.num_classes])
        values = row * int(message["gate"]) + drawn
        self.sent[client.id] = values
        seen = f"{client_state.get('seen', '')}{message['gate']} "
        return Update({"values": values}), {"seen": seen}

    @override
    def server_update(self, server_state, total):
        return {**server_state, "sum": total.payload["values"]}

    @override
    def evaluate(self, message, client, client_state, rng):
        return {}


@dataclass
class Dishonest:
    """A server that adds all masked vectors, and goes on without the clients that refuse.

    Args:
        method: Secure sum of all parties.
        data: The clients.
        alter: Message for a client in an exchange, from its name, the client's id and the message
            of the protocol; ``None`` to leave the client out.
        rng: Beginning of the random stream that the server names, from the same names.
        path: End of the name of the random stream; by default another round in every sum.
        facts: What the server claims about the federation to each client, by id.
    """

    method: SecureSum
    data: FederatedData = FIVE
    alter: Callable = lambda stage, client_id, message: message
    rng: Callable = lambda stage, client_id: Rng(3)
    facts: dict = field(default_factory=dict)
    path: tuple | None = None
    session: int = 0
    client_states: dict[int, Tree] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)

    def ask(self, client_id, message):
        """Reply of one client; ``None`` if it refuses."""
        client = self.data.clients[client_id]
        meta = dataclasses.replace(client.meta, **self.facts.get(client_id, {}))
        client = dataclasses.replace(client, meta=meta)
        stage = message["stage"]
        stream = self.rng(stage, client_id)
        stream = stream.at(*(self.path or ("round", self.session, "exchange", 2)))
        before = self.client_states.get(client_id, {})
        try:
            update, state = self.method.local_update(
                message, client, before, stream.at("client", client_id)
            )
        except Exception as error:
            self.refusals.append(f"{stage}: {error}")
            return None
        self.client_states[client_id] = state
        return update

    def exchange(self, state, members):
        """The next server state, from the replies of some clients."""
        phase, updates = self.method.phase(state), {}
        for client_id in members:
            message = self.alter(phase.stage, client_id, phase.broadcast(state, client_id))
            update = None if message is None else self.ask(client_id, message)
            if update is not None:
                updates[client_id] = update
        if not updates:
            raise RunStoppedError("all clients refused")
        if phase.stage == "sums":
            return self.added(phase, state, updates)
        return phase.server_update(state, phase.aggregator.aggregate(updates.items()))

    def added(self, phase, state, updates):
        """The server state after all vectors are added, although their broadcasts may differ."""
        first, total = updates[min(updates)].payload, {}
        for name, modulus in phase.aggregator.moduli:
            limbs = sum(
                torch.from_numpy(unpack(u.payload[name].numpy(), modulus)) for u in updates.values()
            )
            total[name] = reduce_limbs(limbs, modulus)
        total |= {name: leaf for name, leaf in first.items() if name in ("form", "broadcast")}
        broadcast = {name: leaf for name, leaf in first.items() if name == "broadcast"}
        survivors = listed_ids(sorted(updates), phase.roster)
        found = {"stage": "survivors", "survivors": survivors, "total": total}
        return {**state, **broadcast, **found}

    def states(self, members=None, **inner):
        """The server states of one more sum, exchange by exchange.

        Args:
            members: Ids of the clients that are asked; ``None`` for all.
            **inner: Entries of the method's server state to replace.
        """
        state = self.method.init(self.data.meta, RNG)
        members = range(len(self.data.clients)) if members is None else members
        self.session += 1
        state |= {"session": self.session, "inner": {**state["inner"], **inner}}
        yield state
        while state["session"] == self.session:
            state = self.exchange(state, members)
            yield state

    def sum(self, members=None, **inner):
        """Numbers that the server reads at the end of a sum; ``None`` if it reads none."""
        try:
            *_, last = self.states(members, **inner)
        except RunStoppedError as error:
            self.refusals.append(str(error))
            return None
        return last["inner"]["sum"].tolist()


def clear(method, members=range(NUM)):
    """The sum of what clients have computed, in the clear."""
    return sum(method.method.sent[i] for i in members).tolist()


def gated(**settings):
    """A secure sum of five clients, four of whom must agree."""
    return SecureSum(Gated(), threshold=THRESHOLD, **settings)
