"""Small federations, reference networks and reference loops for testing the federated core."""

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import nn
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Tree
from fedbolic.data import HOLDOUT, Client, Examples, FederatedData
from fedbolic.federated import (
    AggregatedUpdate,
    Aggregator,
    LocalTraining,
    Mean,
    Median,
    Method,
    Reporting,
    Sum,
    Trainer,
    Update,
)
from fedbolic.federated.contract.traits import Traits
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import MLP, Backbone
from fedbolic.testing import assert_near, assert_same, flat, saved_and_loaded
from tests.federated.faults import spoil

__all__ = ["assert_near", "assert_same", "flat", "saved_and_loaded"]

RNG = Rng(3)


def federation(sizes=(7, 4, 12), *, dim=5, classes=3, dtype=torch.float64, seed=0, num_test=6):
    generator = torch.Generator().manual_seed(seed)

    def examples(n):
        x = torch.randn(n, dim, generator=generator, dtype=torch.float64).to(dtype)
        return Examples({"x": x, "y": torch.randint(classes, (n,), generator=generator)})

    meta = Meta(classes, (dim,), len(sizes))
    clients = tuple(
        Client(i, examples(n), examples(0), examples(num_test), meta) for i, n in enumerate(sizes)
    )
    holdout = Client(HOLDOUT, examples(0), examples(0), examples(9), meta)
    return FederatedData(clients, meta, holdout)


@dataclass(frozen=True)
class NormNet(Backbone):
    """A linear layer, batch norm and ReLU."""

    width: int = 4

    @property
    @override
    def num_features(self) -> int:
        return self.width

    @override
    def build(self, meta: Meta) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(meta.input_shape), self.width),
            nn.BatchNorm1d(self.width),
            nn.ReLU(),
        )


class MeanEmbedding(nn.Module):
    """The mean embedding of a row of words."""

    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(10, width)

    def forward(self, x):
        return self.embedding(x).mean(dim=1)


@dataclass(frozen=True)
class Words(Backbone):
    """A backbone for integer inputs below 10."""

    width: int = 4

    @property
    @override
    def num_features(self) -> int:
        return self.width

    @override
    def build(self, meta: Meta) -> nn.Module:
        return MeanEmbedding(self.width)


def with_words(data):
    """The federation with integers below 10 as inputs."""

    def words(split):
        return Examples({**split.tensors, "x": (5 + 2 * split.tensors["x"]).long().clamp(0, 9)})

    def changed(client):
        splits = (words(split) for split in (client.train, client.validation, client.test))
        return Client(client.id, *splits, meta=client.meta)

    return FederatedData(tuple(map(changed, data.clients)), data.meta, changed(data.holdout))


def plain_network(parameters, buffers=None, *, dim=5, width=4, classes=3, norm=False):
    """A hand-written torch module with the given values under the names that the methods use."""
    layers = [nn.Flatten(), nn.Linear(dim, width), *([nn.BatchNorm1d(width)] * norm), nn.ReLU()]
    parts = OrderedDict(body=nn.Sequential(*layers), head=nn.Linear(width, classes))
    network = nn.Sequential(parts).to(next(iter(parameters.values())).dtype)
    network.load_state_dict({**parameters, **(buffers or {})})
    return network.train()


def batches(rng, round, client, *, epochs, batch_size, exchange=0):
    """Batches of a client's exchange: one permutation per epoch from the client's named stream."""
    stream = rng.at("round", round, "exchange", exchange, "client", client.id, "order")
    generator = stream.generator()
    for _ in range(epochs):
        order = torch.randperm(len(client.train), generator=generator)
        for index in order.split(batch_size or len(order)):
            yield client.train.tensors["x"][index], client.train.tensors["y"][index]


def average(trees, weights):
    """The weighted mean of dicts of tensors."""
    return {
        name: sum(w * tree[name] for w, tree in zip(weights, trees, strict=True)) / sum(weights)
        for name in trees[0]
    }


def values(network):
    return {name: value.detach().clone() for name, value in network.named_parameters()}


def train(method, data, rng=RNG, state=None, **settings):
    """Every trainer state of a run, and all its rows."""
    positions, rows = [], []
    for now, new in Trainer(**settings).run(method, data, rng, state):
        positions.append(now)
        rows += new
    return positions, rows


@dataclass(frozen=True)
class Averaged(Method):
    """Every client sends the difference of its noisy mean input and the server's point.

    ``faults`` names the fault of each faulty client by its id; faults start in the second round.
    """

    rounds: int = 3
    faults: dict[int, str] = field(default_factory=dict)
    collect: Literal["mean", "sum", "median"] = "mean"
    grow: float = 1.0

    @property
    @override
    def aggregator(self) -> Aggregator:
        return {"mean": Mean(), "sum": Sum(), "median": Median()}[self.collect]

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return {"x": torch.rand(meta.input_shape, generator=rng.generator()), "round": 0}

    @override
    def template(self, message: Tree) -> Tree:
        return {"delta": {"x": message["x"]}}

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        noise = torch.rand((), generator=rng.generator()).to(message["x"])
        delta = client.train.tensors["x"].mean(0) + noise - message["x"]
        update = Update({"delta": {"x": delta}}, float(client.size), {"noise": float(noise)})
        client_state = {"turns": client_state.get("turns", 0) + 1, "last": delta.clone()}
        fault = self.faults.get(client.id)
        return (
            spoil(fault, update, client_state)
            if fault and message["round"]
            else (update, client_state)
        )

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        x = server_state["x"] + self.grow * total.payload["delta"]["x"]
        return {"x": x, "round": server_state["round"] + 1}

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        gap = client.test.tensors["x"].mean(0) - message["x"]
        return {
            "test/gap": float(gap.norm()),
            "test/examples": float(len(client.test)),
            "test/turns": float(client_state.get("turns", 0)),
        }


@dataclass(frozen=True)
class Relay(Method):
    """A method whose rounds have several exchanges; the server records who delivered in each.

    ``lost`` holds the pairs (exchange, client id) that fail, counted over the whole run.
    """

    rounds: int = 2
    legs: int = 2
    lost: tuple[tuple[int, int], ...] = ()
    first: Literal["sample", "all"] = "sample"

    @property
    @override
    def aggregator(self) -> Aggregator:
        return Sum()

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return {"exchange": 0, "who": torch.zeros(self.legs * self.rounds, meta.num_clients)}

    @override
    def phase(self, server_state: Tree) -> "Leg":
        return Leg(self, server_state["exchange"] % self.legs)

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        raise AssertionError("a phase works in place of the method")

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        raise AssertionError("a phase works in place of the method")

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        return {"test/turns": float(client_state.get("turns", 0))}


@dataclass(frozen=True)
class Leg(Method):
    """One exchange of a relay."""

    relay: Relay
    leg: int

    @property
    @override
    def aggregator(self) -> Aggregator:
        return self.relay.aggregator

    @property
    @override
    def traits(self) -> Traits:
        cohort = "same" if self.leg else self.relay.first
        return Traits(cohort=cohort, evaluates=self.leg == self.relay.legs - 1)

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        raise AssertionError("the method begins, not a phase")

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        if (message["exchange"], client.id) in self.relay.lost:
            raise RuntimeError("out of reach")
        draw = 1 + float(torch.rand((), generator=rng.generator()))
        who = torch.zeros_like(message["who"])
        who[message["exchange"], client.id] = draw
        update = Update({"who": who}, metrics={f"leg{self.leg}": draw})
        return update, {"turns": client_state.get("turns", 0) + 1}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        return {
            "exchange": server_state["exchange"] + 1,
            "who": server_state["who"] + total.payload["who"],
        }

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        raise AssertionError("the method is scored, not a phase")


@dataclass(frozen=True)
class Showing(FedAvg, Reporting):
    """FedAvg with figures, which a test sets."""


SMALL = FedAvg(MLP((4,)), rounds=3, local=LocalTraining(1, 4), lr=0.2)
SIZES = (7, 4, 12, 5)


def point(data, rounds=3, *, without=(), weights=None):
    """The server's point computed by hand: the mean of the clients' mean inputs and noises."""
    x = torch.rand(5, generator=RNG.at("init").generator()).double()
    for r in range(1, rounds + 1):
        stream = RNG.at("round", r, "exchange", 0)
        there = [c for c in data.clients if r == 1 or c.id not in without]
        w = np.array([len(c.train) if weights is None else 1.0 for c in there])
        ends = [
            c.train.tensors["x"].mean(0) - x
            + torch.rand((), generator=stream.at("client", c.id).generator()).double()
            for c in there
        ]  # fmt: skip
        x = x + torch.from_numpy(np.average(np.stack([e.numpy() for e in ends]), 0, w))
    return x


def rows_of(rows, name, round=None, client=None):
    return [
        r.value for r in rows if r.name == name and r.client == client and round in (None, r.round)
    ]
