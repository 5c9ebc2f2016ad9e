"""Comparison of exchanges and runs between two engines."""

import dataclasses

import torch

from fedbolic.core import tree
from fedbolic.data import Examples, FederatedData
from fedbolic.federated import Batched
from fedbolic.federated.batched.buckets import buckets, most_padding, pad_stack
from fedbolic.federated.batched.joint import joint, joint_form
from fedbolic.federated.contract.engine import Exchange
from fedbolic.testing import check_engine
from tests.federated.simple_method import RNG, SMALL

TOLERANCE = 1e-10
UNEQUAL = (9, 1, 12, 3, 1, 20)


def with_(**settings):
    return dataclasses.replace(SMALL, **settings)


def with_client(data, client_id, **splits):
    """The federation with some splits of one client replaced."""
    clients = [dataclasses.replace(c, **splits) if c.id == client_id else c for c in data.clients]
    return FederatedData(tuple(clients), data.meta, data.holdout)


def cut(data, sizes):
    """The first clients, each with its first few training examples, in float64."""
    clients = [
        dataclasses.replace(c, train=Examples(c.train.at(torch.arange(min(n, c.size)))))
        for c, n in zip(data.clients, sizes, strict=False)
    ]
    meta = dataclasses.replace(data.meta, num_clients=len(clients))
    clients = [dataclasses.replace(c, meta=meta) for c in clients]
    return FederatedData(tuple(clients), meta, data.holdout).to("cpu", torch.float64)


def exchange(engine, method, data, rng=RNG):
    """Results of an engine for all clients in the first exchange."""
    messages = {client.id: first_message(method, data, client.id) for client in data.clients}
    return list(engine.run(Exchange(method, messages, data.clients, {}, rng)))


def first_message(method, data, client_id):
    server_state = method.init(data.meta, RNG)
    return method.broadcast(tree.to(server_state, "cpu", torch.float64), client_id)


def assert_engines_agree(method, data, *, fast=None, tolerance=TOLERANCE, **settings):
    """Assert that Sequential and another engine give the same states, client states and rows.

    Args:
        method: Method that is trained.
        data: Federation in float64.
        fast: Engine that is compared; by default ``Batched()``.
        tolerance: Largest allowed difference of a number.
        **settings: Settings of both trainers.
    """
    check_engine(fast or Batched(), method, data, tolerance=tolerance, seed=RNG.seed, **settings)


def replace_alone(monkeypatch, kind, name, function):
    """Replace a function of a class of methods, whose joint form stays."""
    joint(function)(joint_form(object.__new__(kind), name).func)
    monkeypatch.setattr(kind, name, function)


def padded_work(lengths, *, mixes_examples=False):
    """Ratio of computed to real examples of batches; 1 means no padding."""
    table = pad_stack(lengths)
    most = most_padding(table, mixes_examples=mixes_examples)
    calls = (call for step in table.T for call in buckets(step[step > 0], most))
    return sum(length * len(clients) for length, clients in calls) / int(table.sum())
