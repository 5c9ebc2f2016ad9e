"""Buckets and noise of FedGNN, whose algorithm is in ``tests/conformance``."""

import dataclasses

import pytest
import torch
from torch.testing import assert_close

from fedbolic.core.rng import Rng
from fedbolic.federated import Batched, Cohort, Sequential, Trainer
from flatland import ExpandedGCN, FedGnn
from flatland.rivals.fedgnn import EXPANDED
from flatland.rivals.signatures import NEIGHBOUR_TABLE, expanded, signatures
from tests.flatland.cases import ODD, federation, graph_of, path
from tests.flatland.graphs.test_model import dense
from tests.flatland.test_joint import ALIKE, agree

NET = ExpandedGCN((6, 4), dropout=0.0, bits=2)
METHOD = FedGnn(NET, rounds=3, clip=None, noise=0.0, pseudo=0)


@pytest.fixture(scope="module")
def data():
    return federation(ALIKE)


def test_a_signature_is_the_signs_of_projections():
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    planes = torch.randn(5, 3, generator=Rng(4).at("signatures").generator()).double()
    expected = [sum(2**k * int(row @ planes[:, k] > 0) for k in range(3)) for row in x]
    assert signatures(x, 3, 4).tolist() == expected
    assert signatures(x.to_sparse(), 3, 4).tolist() == expected
    assert signatures(5 * x, 3, 4).tolist() == expected


def test_more_alike_nodes_share_more_bits():
    angle = torch.linspace(0, torch.pi / 2, 4)
    x = torch.stack((angle.cos(), angle.sin()), 1)
    counts = torch.zeros(4)
    for seed in range(300):
        first, *others = signatures(x, 1, seed).tolist()
        counts += torch.tensor([True, *(first == other for other in others)])
    assert_close(counts / 300, 1 - angle / torch.pi, atol=0.1, rtol=0)


@pytest.mark.parametrize("sparse", [False, True])
def test_every_bucket_that_occurs_has_a_node_joined_to_its_own(sparse):
    graph = graph_of(path(9), 9, sparse=sparse)
    buckets, whole = expanded(graph, 2, 3)
    assert expanded(graph, 2, 3)[1] is whole
    found = sorted(set(buckets.tolist()))
    joins = {(v, 9 + found.index(b)) for v, b in enumerate(buckets.tolist())}
    edges = {*path(9), *joins}
    assert set(zip(*whole.edges.tolist(), strict=True)) == edges | {(b, a) for a, b in edges}
    _, x = dense(whole)
    assert_close(x[:9, :5], dense(graph)[1])
    assert not x[:9, 5:].any()
    assert not x[9:, :5].any()
    assert_close(x[9:, 5:], torch.eye(4, dtype=x.dtype)[found])


def test_a_delta_is_clipped_and_its_noise_has_the_relative_scale():
    method = dataclasses.replace(METHOD, clip=0.5, noise=0.3)
    delta = torch.tensor([-2.0, 0.25, 0.1, 0.9], dtype=torch.float64).repeat(5000)
    clipped = delta.clamp(-0.5, 0.5)
    found = method.hidden({"w": delta}, [torch.Generator().manual_seed(0)])
    noise = found["w"] - clipped
    scale = 0.3 * float(clipped.abs().mean())
    assert float(noise.mean()) == pytest.approx(0, abs=0.05 * scale)
    assert float(noise.abs().mean()) == pytest.approx(scale, rel=0.05)  # Laplace: scale
    assert float(noise.square().mean()) == pytest.approx(2 * scale**2, rel=0.1)


@pytest.mark.parametrize("graphs", [ALIKE, list(ODD.values())], ids=["alike", "odd"])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_block_of_clients_is_each_of_them_alone(graphs, sparse, caplog):
    network = dataclasses.replace(NET, dropout=0.5)
    method = dataclasses.replace(METHOD, network=network, clip=0.02, noise=0.1, pseudo=3)
    agree(method, federation(graphs, sparse=sparse), caplog, cohort=Cohort(0.6))


@pytest.mark.parametrize("engine", [Sequential(), Batched()])
def test_a_client_without_training_nodes_takes_part_and_sends_no_embeddings(data, engine, caplog):
    first, *others = data.clients
    train = dataclasses.replace(first.train, nodes=first.train.nodes[:0])
    clients = dataclasses.replace(first, train=train), *others
    *_, (end, _) = Trainer(engine).run(METHOD, dataclasses.replace(data, clients=clients), Rng(3))
    assert "left out" not in caplog.text
    kept = [end.client_states[i]["sent"]["own_counts"] for i in range(len(clients))]
    assert [bool(counts.any()) for counts in kept] == [False, True, True, True]
    assert_close(end.server_state["counts"], torch.stack(kept).sum(0))


def test_a_run_is_the_same_twice(data):
    ends = [list(Trainer(Sequential()).run(METHOD, data, Rng(3)))[-1][0] for _ in range(2)]
    assert_close(ends[0].server_state["sums"], ends[1].server_state["sums"], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"clip": 0.0}, "clip"),
        ({"noise": -1.0}, "noise"),
        ({"pseudo": -1}, "pseudo"),
        ({"sharing": {"*": "shared"}}, "must be fixed"),
        ({"sharing": {**EXPANDED, NEIGHBOUR_TABLE: "shared"}}, "got 'shared'"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        FedGnn(**wrong)


@pytest.mark.parametrize("bits", [0, 17])
def test_a_signature_has_some_bits_and_not_too_many(bits):
    with pytest.raises(ValueError, match=f"got bits={bits}"):
        ExpandedGCN(bits=bits)
