"""Private knowledge graphs: changes of whole tables, clipped as one tangent."""

import dataclasses

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import ByEntity, Families, PartitionedTriples
from fedbolic.federated import ClientPrivacy, DistributedNoise, LocalTraining, SumPrivacy, Trainer
from fedbolic.federated.secure import SecureSum
from fedbolic.knowledge import KnowledgeEmbedding
from fedbolic.nn import NegativeSampler
from tests.federated.agreement import assert_engines_agree
from tests.federated.simple_method import assert_near, train
from tests.seeded import SeededKeys

RNG = Rng(3)
ROWS = KnowledgeEmbedding(
    dim=2, rounds=1, local=LocalTraining(1, 8), lr=0.1, negatives=NegativeSampler(4)
)
TABLE = dataclasses.replace(ROWS, sends="table", server_lr=3.0)
QUIET = ClientPrivacy(dp_delta=1e-2, noise_multiplier=1e-9, clip_norm=0.004, noise=SeededKeys())


@pytest.fixture(scope="module")
def data():
    return PartitionedTriples(Families(1, 3), ByEntity(4)).load(RNG).to("cpu", torch.float64)


def updates(method, data):
    state = Trainer().begin(method, data, RNG).server_state
    streams = [RNG.at("round", 1, "exchange", 0, "client", c.id) for c in data.clients]
    found = [
        method.local_update(method.broadcast(state, c.id), c, {}, rng)[0]
        for c, rng in zip(data.clients, streams, strict=True)
    ]
    return state["parameters"], found


def test_tables_have_the_changes_of_the_rows_and_zeros_elsewhere(data):
    before, sent = updates(TABLE, data)
    for row, table in zip(updates(ROWS, data)[1], sent, strict=True):
        for name, whole in before.items():
            expected = torch.zeros_like(whole)
            expected[row.payload[name]["rows"].long()] = row.payload[name]["values"]
            assert torch.equal(table.payload["delta"][name], expected)


def test_under_privacy_all_tables_of_a_client_are_clipped_as_one_vector(data):
    before, sent = updates(TABLE, data)
    flat = [torch.cat([x.flatten() for x in u.payload["delta"].values()]).double() for u in sent]
    shares = [QUIET.clip_norm / x.norm() for x in flat]
    assert max(shares) < 1  # all are clipped, so the bound decides
    after = train(TABLE, data, privacy=QUIET)[0][-1].server_state["parameters"]
    for name, table in before.items():
        deltas = (s * u.payload["delta"][name].double() for s, u in zip(shares, sent, strict=True))
        assert_near(after[name].double(), table.double() + 3.0 * sum(deltas) / 4, 1e-6)


def test_rows_are_refused_with_the_setting_that_helps(data):
    with pytest.raises(ValueError, match=r"rows that KnowledgeEmbedding sends .* sends='table'"):
        train(ROWS, data, privacy=QUIET)


@pytest.mark.parametrize("personal", [(), ("curvature",)])
def test_engines_agree_on_tables(data, personal):
    assert_engines_agree(dataclasses.replace(TABLE, personal=personal), data)


def test_the_noise_of_the_clients_gives_the_same_mean_under_a_secure_sum(data):
    privacy = SumPrivacy(4, 1e-2, noise_multiplier=0.01, clip_norm=1.0, bits=28)
    noisy = SecureSum(DistributedNoise(TABLE, privacy, noise=SeededKeys()), threshold=4)
    after = train(noisy, data)[0][-1].server_state["inner"]["inner"]["parameters"]
    plain = dataclasses.replace(QUIET, clip_norm=1.0)
    expected = train(TABLE, data, privacy=plain)[0][-1].server_state["parameters"]
    for name, table in expected.items():
        assert 0 < float((after[name] - table).abs().max()) < 3.0 * 0.01 * 6  # six deviations
