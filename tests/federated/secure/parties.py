"""A method of given numbers, and engines that lose clients or alter their messages."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from typing_extensions import override

from fedbolic.federated import Failure, Method, Sequential, Sum, SumModulo, Update
from fedbolic.federated.aggregators.modular import from_limbs, to_limbs
from tests.federated.simple_method import federation, train

STAGES = ("cards", "shares", "sums", "survivors", "unmasking")


@dataclass(frozen=True)
class Numbers(Method):
    """Every client sends its row of numbers; the server keeps the sum and the senders' ids."""

    rows: tuple[tuple[int, ...], ...]
    modulus: int | None = None
    rounds: int = 1

    @property
    @override
    def aggregator(self):
        return Sum() if self.modulus is None else SumModulo(self.modulus)

    @override
    def init(self, meta, rng):
        return {"round": 0}

    @override
    def local_update(self, message, client, client_state, rng):
        row = list(self.rows[client.id])
        values = torch.tensor(row) if self.modulus is None else to_limbs(row, self.modulus)
        client_state = {"turns": client_state.get("turns", 0) + 1}
        return Update(
            {"deep": {"values": values}}, float(client.size), {"secret": 1.0}
        ), client_state

    @override
    def server_update(self, server_state, total):
        values = total.payload["deep"]["values"]
        found = {"sum": values, "weight": total.weight, "clients": torch.tensor(total.clients)}
        return {"round": server_state["round"] + 1, **found}

    @override
    def evaluate(self, message, client, client_state, rng):
        return {"test/turns": float(client_state.get("turns", 0))}


def summed(server_state, modulus=None):
    """The sum that the server holds after a run of ``Numbers``."""
    values = server_state["inner"]["sum"]
    return values.tolist() if modulus is None else from_limbs(values)


def parties(num):
    """A federation of clients with 1, 2, 3, ... examples."""
    return federation(tuple(range(1, num + 1)), dim=2, num_test=1)


@dataclass(frozen=True)
class Losing(Sequential):
    """An engine that loses the clients given as pairs (stage, id)."""

    lost: tuple[tuple[str, int], ...] = ()

    @override
    def run(self, exchange):
        for client, update, client_state in super().run(exchange):
            if (exchange.method.stage, client.id) in self.lost:
                yield client, Failure(RuntimeError("out of reach")), exchange.state(client)
            else:
                yield client, update, client_state


@dataclass(frozen=True)
class Altering(Sequential):
    """An engine that alters the payload of one client in one exchange."""

    stage: str = ""
    client_id: int = 0
    alter: Callable = dict

    @override
    def run(self, exchange):
        for client, update, client_state in super().run(exchange):
            if (exchange.method.stage, client.id) == (self.stage, self.client_id):
                update = dataclasses.replace(update, payload=self.alter(update.payload))
            yield client, update, client_state


@dataclass(frozen=True)
class Lying(Sequential):
    """A server that sends one client another message in one exchange."""

    stage: str = ""
    client_id: int = 0
    alter: Callable = dict

    @override
    def run(self, exchange):
        if exchange.method.stage == self.stage:
            told = self.alter(exchange.messages[self.client_id])
            messages = {**exchange.messages, self.client_id: told}
            exchange = dataclasses.replace(exchange, messages=messages)
        yield from super().run(exchange)


def flipped(tensor, index, bit=0):
    """A copy of a uint8 tensor with one bit flipped."""
    changed = tensor.contiguous().clone()
    changed.view(-1)[index] ^= 1 << bit
    return changed


TEN = parties(10)
ROWS = tuple((10**i, -i, 7 * i) for i in range(10))


def plain(rows, ids, modulus=None):
    """The sum in Python integers."""
    total = [sum(of) for of in zip(*(rows[i] for i in ids), strict=True)]
    return total if modulus is None else [value % modulus for value in total]


def last(method, data=TEN, **settings):
    """The final state of a run."""
    positions, _ = train(method, data, **settings)
    return positions[-1]
