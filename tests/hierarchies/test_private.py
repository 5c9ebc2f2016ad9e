"""Private hierarchies: whole tables, clipped as one tangent, at the server and in secure sums."""

import dataclasses

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import BalancedTree, PartitionedHierarchy, RandomPairs
from fedbolic.federated import (
    ClientPrivacy,
    DistributedNoise,
    LocalTraining,
    Mean,
    SumPrivacy,
    Trainer,
)
from fedbolic.federated.aggregators.row_mean import TableMeans
from fedbolic.hierarchies import HierarchyEmbedding
from tests.federated.agreement import assert_engines_agree
from tests.federated.simple_method import assert_near, train
from tests.seeded import SeededKeys

RNG = Rng(3)
ROWS = HierarchyEmbedding(dim=2, rounds=1, local=LocalTraining(epochs=2, batch_size=8))
TABLE = dataclasses.replace(ROWS, sends="table", server_lr=3.0)
QUIET = ClientPrivacy(dp_delta=1e-2, noise_multiplier=1e-9, clip_norm=0.004, noise=SeededKeys())


@pytest.fixture(scope="module")
def data():
    source = PartitionedHierarchy(BalancedTree(2, 3), RandomPairs(4))
    return source.load(RNG).to("cpu", torch.float64)


def updates(method, data):
    state = Trainer().begin(method, data, RNG).server_state
    found = [
        method.local_update(
            method.broadcast(state, c.id),
            c,
            {},
            RNG.at("round", 1, "exchange", 0, "client", c.id),
        )[0]
        for c in data.clients
    ]
    return state["parameters"]["weight"], found


def test_a_table_has_the_changes_of_the_rows_and_zeros_elsewhere(data):
    for row, table in zip(updates(ROWS, data)[1], updates(TABLE, data)[1], strict=True):
        whole = torch.zeros(len(table.payload["delta"]["weight"]), 2).double()
        whole[row.payload["weight"]["rows"].long()] = row.payload["weight"]["values"].double()
        assert_near(table.payload["delta"]["weight"].double(), whole, 0.0)
        assert table.weight == 1


def test_under_privacy_the_server_adds_the_mean_of_tables_that_are_clipped_as_one_vector(data):
    before, sent = updates(TABLE, data)
    flat = torch.stack([update.payload["delta"]["weight"].double() for update in sent])
    norms = flat.flatten(1).norm(dim=1)
    assert (norms > QUIET.clip_norm).all()  # all are clipped, so the bound decides
    mean = (flat * (QUIET.clip_norm / norms)[:, None, None]).sum(0) / 4
    after = train(TABLE, data, privacy=QUIET)[0][-1].server_state["parameters"]["weight"]
    assert_near(after.double(), before.double() + 3.0 * mean, 1e-6)


def test_without_privacy_the_server_adds_the_mean_of_the_tables(data):
    before, sent = updates(TABLE, data)
    mean = torch.stack([update.payload["delta"]["weight"] for update in sent]).mean(0)
    after = train(TABLE, data)[0][-1].server_state["parameters"]["weight"]
    assert_near(after, before + 3.0 * mean, 1e-6)


def test_the_noise_of_the_clients_gives_the_same_mean(data):
    privacy = SumPrivacy(4, 1e-2, noise_multiplier=0.01, clip_norm=1.0, bits=28)
    noisy = DistributedNoise(TABLE, privacy, noise=SeededKeys())
    after = train(noisy, data)[0][-1].server_state["inner"]["parameters"]["weight"]
    plain = dataclasses.replace(QUIET, clip_norm=1.0)
    expected = train(TABLE, data, privacy=plain)[0][-1].server_state["parameters"]["weight"]
    assert 0 < float((after - expected).abs().max()) < 3.0 * 0.01 * 6  # six deviations


@pytest.mark.parametrize(
    ("trainer", "method"),
    [
        (Trainer(privacy=QUIET), ROWS),
        (Trainer(), DistributedNoise(ROWS, SumPrivacy(4, 1e-2, epsilon=8.0))),
    ],
)
def test_rows_are_refused_with_the_setting_that_helps(data, trainer, method):
    with pytest.raises(ValueError, match=r"rows that HierarchyEmbedding sends .* sends='table'"):
        trainer.begin(method, data, RNG)


def test_nothing_that_clients_measure_is_recorded(data):
    _, rows = train(TABLE, data, privacy=QUIET)
    assert all(row.client is None for row in rows)
    assert not [row for row in rows if row.name.startswith("train/")]


def test_engines_agree_on_tables(data):
    assert_engines_agree(TABLE, data)


def test_settings_that_do_not_fit_are_refused():
    assert isinstance(ROWS.aggregator, TableMeans)
    assert isinstance(TABLE.aggregator, Mean)
    for wrong, words in (
        ({"personal": True}, "personal clients send nothing"),
        ({"server_lr": 0.0}, "server_lr must be"),
    ):
        with pytest.raises(ValueError, match=words):
            dataclasses.replace(TABLE, **wrong)
