"""FedGNN compared with loops over nodes: buckets, anonymous neighbours, pseudo nodes, noise."""

import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedbolic.data import HOLDOUT
from fedbolic.federated import Cohort, Sequential, Trainer
from fedbolic.rng import Rng
from flatland import ExpandedGCN, FedGnn, FlatLand
from flatland.fedgnn import EXPANDED
from flatland.model import GCN
from flatland.signatures import NEIGHBOUR_TABLE, expanded, signatures
from tests.flatland.cases import ODD, federation, graph_of, path
from tests.flatland.test_joint import ALIKE, agree
from tests.flatland.test_method import RNG, begin, next_state, work
from tests.flatland.test_model import dense

NET = ExpandedGCN((6, 4), dropout=0.0, bits=2)
METHOD = FedGnn(NET, rounds=3, clip=None, noise=0.0, pseudo=0)


@pytest.fixture(scope="module")
def data():
    return federation(ALIKE)


def buckets_of(client, seed):
    return signatures(client.train.graph.features, 2, seed).tolist()


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


def by_loops(method, data, server_state, states, client):
    """Logits of a client's nodes, with anonymous neighbours as explicit extra nodes."""
    graph, buckets = client.train.graph, buckets_of(client, server_state["seed"])
    p = server_state["parameters"]
    sums = {b: torch.zeros(6, dtype=torch.float64) for b in range(4)}
    counts = dict.fromkeys(sums, 0)
    for other in data.clients:
        if other.id == client.id or other.id not in states:
            continue
        space = states[other.id]
        for b, x in zip(
            buckets_of(other, server_state["seed"]), dense(other.train.graph)[1], strict=True
        ):
            sums[b] = sums[b] + x @ space
            counts[b] += 1
    a, x = dense(graph)
    found, n = sorted(set(buckets)), len(graph)
    whole = torch.eye(n + len(found), dtype=torch.float64)
    whole[:n, :n] = a
    for v, b in enumerate(buckets):
        whole[v, n + found.index(b)] = whole[n + found.index(b), v] = 1
    rows = [sums[b] / counts[b] if counts[b] else sums[b] for b in found]
    share = whole.sum(1).rsqrt()
    whole = share[:, None] * whole * share
    y = torch.cat((x @ p["body.0.space"], torch.stack(rows)))
    h = (whole @ y + p["body.0.bias"]).relu()
    h = (whole @ h @ p["body.1.space"] + p["body.1.bias"]).relu()
    return (h @ p["head.space"] + p["head.bias"])[:n]


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_a_client_sees_the_mean_embeddings_of_other_clients(data, weights):
    method = dataclasses.replace(METHOD, weights=weights)
    server_state, states, trained = begin(method, data), {}, {}
    for present in (data.clients, data.clients[:3], data.clients):
        for client in data.clients:
            local, context = method.start(
                method.broadcast(server_state, client.id), client, states.get(client.id, {})
            )
            batch = client.train.all()
            losses, _ = method.loss(
                method.model(client.meta), local["parameters"], {}, batch, context
            )
            logits = by_loops(method, data, server_state, trained, client)[batch["node"]]
            assert_close(losses, cross_entropy(logits, batch["y"], reduction="none"))
        results = work(method, present, server_state, states)
        trained = {
            i: server_state["parameters"]["body.0.space"] + u.payload["delta"]["body.0.space"]
            for i, (u, _) in results.items()
        }
        states = states | {i: kept for i, (_, kept) in results.items()}
        server_state = next_state(method, server_state, results)
    assert server_state["counts"].round().tolist() == [
        sum(buckets_of(c, server_state["seed"]).count(b) for c in data.clients) for b in range(4)
    ]


def test_pseudo_nodes_are_counted_and_resemble_the_clients_own():
    client = federation([(path(200), 200)]).clients[0]
    method = dataclasses.replace(METHOD, pseudo=4000)
    server_state = begin(method, federation([(path(200), 200)]))
    update, _ = work(method, [client], server_state)[0]
    size = update.weight
    counts = update.payload["counts"] * size
    assert counts.sum().round() == 4200
    plain, _ = work(METHOD, [client], server_state)[0]
    extra = (update.payload["sums"] - plain.payload["sums"]).sum(0) * size / 4000
    own = plain.payload["sums"].sum(0) * size / 200
    assert_close(extra, own, atol=0.1, rtol=0.1)


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


def test_noise_follows_the_clients_stream_alone(data):
    method = dataclasses.replace(METHOD, noise=0.2, pseudo=3)
    server_state = begin(method, data)
    first, again = (work(method, data.clients, server_state) for _ in range(2))
    for i, (update, _) in first.items():
        assert torch.equal(update.payload["sums"], again[i][0].payload["sums"])
    stream = RNG.at(1, "client", 0)
    draws = Rng(stream.at("noise").number()).at("delta").generator()
    plain = work(METHOD, data.clients, server_state)[0][0].payload["delta"]
    assert_close(first[0][0].payload["delta"], method.hidden(plain, [draws]))


def test_the_servers_test_set_is_scored_with_all_anonymous_neighbours(data):
    server_state = begin(METHOD, data)
    server_state = next_state(METHOD, server_state, work(METHOD, data.clients, server_state))
    found = METHOD.evaluate(METHOD.broadcast(server_state, HOLDOUT), data.holdout, {}, Rng(0))
    assert 0 <= found["test/accuracy"] <= 1


def test_without_anonymous_neighbours_the_first_round_is_fedavg_on_the_expanded_graph(data):
    server_state = begin(METHOD, data)
    assert not METHOD.start(METHOD.broadcast(server_state, 0), data.clients[0], {})[1]["own"][
        "fixed"
    ][NEIGHBOUR_TABLE].any()
    parameters = begin(FlatLand(GCN((6, 4)), sharing={"*": "shared"}), data)["parameters"]
    assert server_state["parameters"].keys() == parameters.keys()


@pytest.mark.parametrize("graphs", [ALIKE, list(ODD.values())], ids=["alike", "odd"])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_block_of_clients_is_each_of_them_alone(graphs, sparse, caplog):
    network = dataclasses.replace(NET, dropout=0.5)
    method = dataclasses.replace(METHOD, network=network, clip=0.02, noise=0.1, pseudo=3)
    agree(method, federation(graphs, sparse=sparse), caplog, cohort=Cohort(0.6))


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
