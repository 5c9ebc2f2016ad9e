"""Clients that are created on request equal those of a tuple of clients."""

import contextlib
import gc
import pickle
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data import Client, ClientSlices, Examples, FederatedData
from fedbolic.data.contract import client as client_module
from fedbolic.federated import Cohort, Evaluation, LocalTraining, Sequential, Trainer, Workers
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import MLP


def examples(num):
    return Examples({"x": torch.arange(3.0 * num).reshape(num, 3), "y": torch.arange(num) % 2})


def dealt(sizes):
    """Slices, and the indices dealt to each client, by split."""
    total = sum(map(sum, sizes))
    order = torch.randperm(total, generator=torch.Generator().manual_seed(0))
    parts = [
        part.split(list(size))
        for part, size in zip(order.split([sum(size) for size in sizes]), sizes, strict=True)
    ]
    meta = Meta(2, (3,), len(sizes))
    return ClientSlices.dealt(examples(total), parts, meta), parts


SIZES = st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=6)


@given(SIZES)
def test_every_client_has_the_examples_of_its_indices(sizes):
    clients, parts = dealt(sizes)
    everything = examples(sum(map(sum, sizes)))
    assert len(clients) == len(sizes)
    for i, (client, indices) in enumerate(zip(clients, parts, strict=True)):
        assert client.id == i
        assert client.meta is clients.meta
        for split, index in zip(
            (client.train, client.validation, client.test), indices, strict=True
        ):
            assert len(split) == len(index)
            for name, tensor in split.all().items():
                assert torch.equal(tensor, everything.tensors[name][index])


FEW = [(2, 0, 1), (3, 1, 0), (1, 0, 2)]


def test_a_client_is_the_same_object_as_long_as_it_is_held(monkeypatch):
    monkeypatch.setattr(client_module, "HELD", 1)
    clients, _ = dealt(FEW)
    first = clients[0]
    assert clients[1] is clients[1]
    assert [clients[i] is first for i in (0, -3)] == [True, True]
    gone = weakref.ref(clients[1])
    for i in (0, 2):
        clients[i]
    gc.collect()
    assert gone() is None
    assert clients[0] is first


def test_they_are_a_sequence():
    clients, _ = dealt(FEW)
    assert clients[1:] == (clients[1], clients[2])
    assert clients[::-1] == (clients[2], clients[1], clients[0])
    assert list(reversed(clients)) == [clients[2], clients[1], clients[0]]
    assert clients[2] in clients
    for outside in (3, -4):
        with pytest.raises(IndexError):
            clients[outside]


def test_all_lie_in_one_storage_on_the_device_and_in_the_dtype_asked_for():
    clients, _ = dealt(FEW)
    data = FederatedData(clients, clients.meta).to("cpu", torch.float64)
    inputs = [client.train.all()["x"] for client in data.clients]
    assert {x.dtype for x in inputs} == {torch.float64}
    assert {client.train.all()["y"].dtype for client in data.clients} == {torch.int64}
    assert len({x.untyped_storage().data_ptr() for x in inputs}) == 1
    for client, x in zip(clients, inputs, strict=True):
        assert torch.equal(client.train.all()["x"].double(), x)


def test_the_sizes_are_those_of_the_clients():
    clients, _ = dealt(FEW)
    data = FederatedData(clients, clients.meta)
    assert data.sizes == tuple(client.size for client in clients) == (2, 3, 1)


def test_pickled_clients_are_the_same():
    clients, _ = dealt(FEW)
    again = pickle.loads(pickle.dumps(clients))
    assert all(
        torch.equal(x, again[client.id].test.all()[name])
        for client in clients
        for name, x in client.test.all().items()
    )


def test_lengths_must_add_up_to_those_of_the_splits():
    with pytest.raises(ValueError, match="add up to those of the splits"):
        ClientSlices((examples(2), examples(0), examples(0)), torch.tensor([[3], [0], [0]]), META)


META = Meta(2, (3,), 500)


@pytest.fixture
def many():
    clients, _ = dealt([(2, 0, 1)] * 500)
    return FederatedData(clients, clients.meta)


METHOD = FedAvg(MLP((2,)), rounds=2, local=LocalTraining(1, 2))


def plain(data):
    """The same federation with all its clients in a tuple."""
    clients = tuple(Client(c.id, c.train, c.validation, c.test, c.meta) for c in data.clients)
    return FederatedData(clients, data.meta)


@pytest.mark.parametrize("engine", [Sequential(), Workers(1)], ids=repr)
def test_a_run_over_slices_is_that_over_a_tuple_of_clients(engine, many):
    *_, (one, rows) = Trainer(engine, Cohort(0.01)).run(METHOD, many, Rng(0))
    *_, (other, expected) = Trainer(Sequential(), Cohort(0.01)).run(METHOD, plain(many), Rng(0))
    assert rows == expected
    for name, value in one.server_state["parameters"].items():
        assert torch.equal(value, other.server_state["parameters"][name])


@pytest.mark.parametrize("engine", [Sequential(), Workers(1)], ids=repr)
def test_an_exchange_makes_the_clients_of_its_cohort_only(engine, many, monkeypatch):
    made = []
    make = ClientSlices._make
    monkeypatch.setattr(ClientSlices, "_make", lambda self, i: made.append(i) or make(self, i))
    evaluation = Evaluation(every=1, clients=7)
    trainer = Trainer(engine, Cohort(0.01), evaluation=evaluation)
    with contextlib.closing(trainer.run(METHOD, many.to("cpu", torch.float64), Rng(0))) as run:
        _, rows = next(run)
    asked = {row.client for row in rows if row.client is not None}
    assert 7 < len(asked) <= 5 + 7
    assert asked <= set(made)
    assert len(set(made)) < 50  # a type checker looks at one more, at random, in each call
