"""Buckets of batches, the share of padding, and storage shared by the examples."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core.types import Meta
from fedbolic.data import Client, Dirichlet, Examples
from fedbolic.federated import LocalTraining
from fedbolic.federated.batched.batch_loader import BatchLoader
from fedbolic.federated.batched.buckets import buckets
from fedbolic.federated.batched.client_task import ClientTask
from tests.federated.agreement import padded_work
from tests.federated.simple_method import RNG, SMALL

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=12).map(torch.tensor)


@given(lengths, st.sampled_from([1.0, 1.25, math.inf]))
def test_every_client_is_in_one_call_that_is_long_enough(lengths, most):
    calls = buckets(lengths, most)
    rows = torch.cat([rows for _, rows in calls])
    assert rows.sort().values.tolist() == list(range(len(lengths)))
    assert all(length == lengths[rows].max() for length, rows in calls)
    assert sum(length * len(rows) for length, rows in calls) <= most * lengths.sum()
    assert len(calls) == 1 or most < math.inf


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
@pytest.mark.parametrize(("num_examples", "batch_size"), [(6000, 128), (6000, None), (20000, 128)])
def test_padding_is_at_most_a_quarter_of_the_work(alpha, num_examples, batch_size):
    labels = torch.randint(10, (num_examples,), generator=RNG.generator())
    split = Dirichlet(20, alpha, cap=False, min_size=1).split(labels, RNG)
    local = LocalTraining(2, batch_size)
    lengths = [local.order(len(index), RNG)[1] for index in split]
    assert 1 <= padded_work(lengths) <= 1.25
    assert padded_work(lengths, mixes_examples=True) == 1


def tasks_of(splits):
    """Tasks of clients with these examples, sorted by their number of steps, largest first."""
    meta = Meta(3, (2,), len(splits))
    clients = [Client(i, split, split, split, meta) for i, split in enumerate(splits)]
    method = dataclasses.replace(SMALL, local=LocalTraining(2, 5))
    state = method.init(meta, RNG)
    message = method.broadcast(state, 0)
    return [ClientTask.begin(method, message, c, {}, RNG.at("client", c.id)) for c in clients]


whole = Examples({"x": torch.arange(40.0).reshape(20, 2), "y": torch.arange(20) % 3})
indices = torch.arange(20).flip(0).split([6, 6, 8])


def rows(start, stop, step=1, labels=0):
    """Views of some rows; ``labels`` shifts the start of the labels."""
    x, y = whole.tensors["x"][start:stop:step], whole.tensors["y"][start + labels :]
    return Examples({"x": x, "y": y[: len(x)]})


def shifted(by):
    """Six rows that start in the middle of a row of the storage."""
    x = whole.tensors["x"].flatten()[by : by + 12].reshape(6, 2)
    return Examples({"x": x, "y": whole.tensors["y"][by : by + 6]})


def test_examples_of_one_storage_are_not_copied():
    splits = whole.cut(indices)
    for name, values in BatchLoader(tasks_of(splits), 1).examples.items():
        assert values.untyped_storage().data_ptr() == splits[0].tensors[name].data_ptr()


@pytest.mark.parametrize(
    "splits",
    [
        pytest.param(whole.cut(indices), id="in order"),
        pytest.param(whole.cut(indices)[::-1], id="in another order"),
        pytest.param(whole.cut(indices)[1:], id="not from the beginning"),
        pytest.param([whole, *whole.cut(indices)], id="in two storages"),
        pytest.param([rows(0, 6), rows(3, 9)], id="overlapping"),
        pytest.param([rows(0, 6, labels=6), rows(6, 12, labels=-6)], id="labels elsewhere"),
        pytest.param([rows(0, 12, 2), rows(1, 12, 2)], id="every other row"),
        pytest.param([shifted(1), shifted(4)], id="between rows"),
    ],
)
def test_every_client_is_fed_its_own_examples(splits):
    tasks = tasks_of(splits)
    fed = BatchLoader(tasks, 1)
    for step, num_active in enumerate(fed.num_active):
        seen = set()
        for rows, batch, _ in fed.batches(step):
            clients = range(num_active)[rows] if isinstance(rows, slice) else rows.tolist()
            seen |= set(clients)
            for row, i in enumerate(clients):
                plan = tasks[i].plan
                own = plan.positions[step, : plan.lengths[step]]
                for name, values in splits[i].tensors.items():
                    assert torch.equal(batch[name][row][batch["mask"][row]], values[own])
        assert seen == set(range(num_active))
