"""FedHGCN's network compared with loops over nodes: distances, key nodes, convolutions."""

import dataclasses
import math

import geoopt
import pytest
import torch
from torch.testing import assert_close

from fedbolic.core.rng import Rng
from fedbolic.data import IID, GraphClassification, TreesAndRings
from fedbolic.federated import Trainer
from flatland import Constant, FlatLand, GraphReadout, KeyNodeGCN, LorentzGCN
from flatland.graphs.blocks import GraphBlock, graph_block
from flatland.key_nodes import ONE_SPACE, key_nodes, novelties, thinned
from tests.flatland.cases import ODD, complete, federation, graph_of, path, star
from tests.flatland.graphs.test_model import dense, logits_of, values
from tests.flatland.test_joint import ALIKE, agree
from tests.flatland.test_joint import dense as full

NET = KeyNodeGCN((6, 4), dropout=0.0, share=0.4)
METHOD = FlatLand(NET, rounds=3, sharing=ONE_SPACE, curvature=Constant())
GRAPHS = [(path(9), 9), (star(6), 8), (complete(6), 6), ([], 4)]

every_graph = pytest.mark.parametrize(("pairs", "n"), GRAPHS)
every_kind = pytest.mark.parametrize("sparse", [False, True])


def centroid(points):
    total = points.sum(0)
    return total / (total[0] ** 2 - total[1:].square().sum()).sqrt()


def distances(graph):
    """Distance of every node from the centroid of its closed neighbourhood, by geoopt."""
    a, x = dense(graph)
    space = geoopt.Lorentz()
    points = space.expmap0(torch.cat((torch.zeros(len(x), 1), x.double()), 1))
    centres = torch.stack([centroid(points[row > 0]) for row in a])
    return space.dist(points, centres)


@every_graph
@every_kind
def test_a_score_is_the_distance_from_the_centroid_of_the_neighbours(pairs, n, sparse):
    graph = graph_of(pairs, n, sparse=sparse)
    found = novelties(graph_block((graph,)))[0]
    assert_close(found, distances(graph), atol=1e-6, rtol=1e-6)  # geoopt's acosh is inexact near 0


@every_graph
@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_key_nodes_are_the_first_ones_by_score(pairs, n, share):
    block = graph_block((graph_of(pairs, n),))
    scores = novelties(block)[0].tolist()
    first = sorted(range(n), key=lambda i: (-round(scores[i], 9), i))[: math.ceil(share * n)]
    assert key_nodes(block, share)[0].nonzero().flatten().tolist() == sorted(first)


@every_graph
@every_kind
def test_a_node_gathers_from_itself_and_from_key_nodes(pairs, n, sparse):
    graph = graph_of(pairs, n, sparse=sparse)
    block = graph_block((graph,))
    keys = key_nodes(block, 0.4)[0]
    a, _ = dense(graph)
    expected = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        sources = [j for j in range(n) if a[i, j] and (keys[j] or i == j)]
        expected[i, sources] = 1 / len(sources)
    found = thinned(block, 0.4)
    assert_close(full(found.neighbours), expected)
    assert found is thinned(block, 0.4)
    assert found.features is block.features


@every_graph
def test_with_all_nodes_it_is_the_lorentz_network(pairs, n):
    graph = graph_of(pairs, n)
    model, p, buffers = values(dataclasses.replace(NET, share=1.0))
    other = values(LorentzGCN((6, 4), dropout=0.0))[0]
    assert_close(logits_of(model, p, buffers, graph), logits_of(other, p, buffers, graph))


def test_fewer_sources_change_the_logits_but_every_node_has_some():
    graph = graph_of(path(9), 9)
    model, p, buffers = values(NET)
    other = values(dataclasses.replace(NET, share=1.0))[0]
    found = logits_of(model, p, buffers, graph)
    assert found.shape == (9, 3)
    assert not torch.allclose(found, logits_of(other, p, buffers, graph))


def test_key_nodes_of_a_block_are_those_of_each_client():
    graphs = tuple(graph_of(pairs, n, seed=n) for pairs, n in GRAPHS)
    together = key_nodes(graph_block(graphs), 0.4)
    for graph, keys in zip(graphs, together, strict=True):
        assert keys[: len(graph)].tolist() == key_nodes(graph_block((graph,)), 0.4)[0].tolist()
        assert not keys[len(graph) :].any()


def test_one_space_is_for_all():
    data = federation(ALIKE)
    *_, (state, rows) = Trainer().run(METHOD, data, Rng(0))
    assert "curvature.raw" not in state.server_state["parameters"]
    found = [row.value for row in rows if row.name == "train/curvature"]
    assert found == pytest.approx([1.0] * len(found))


@pytest.mark.parametrize("graphs", [ALIKE, list(ODD.values())], ids=["alike", "odd"])
@every_kind
def test_a_block_of_clients_is_each_of_them_alone(graphs, sparse, caplog):
    method = dataclasses.replace(METHOD, network=dataclasses.replace(NET, dropout=0.5))
    agree(method, federation(graphs, sparse=sparse), caplog)


def test_whole_graphs_are_classified_too():
    family = TreesAndRings(num_graphs=18, least=3, most=7)
    data = GraphClassification((family,), IID(3)).load(Rng(0))
    method = dataclasses.replace(METHOD, network=GraphReadout(NET, pooling="centroid"), rounds=1)
    *_, (_, rows) = Trainer().run(method, data, Rng(0))
    assert any(row.name == "test/accuracy" for row in rows)


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_lies_between_0_and_1(share):
    with pytest.raises(ValueError, match="share"):
        KeyNodeGCN(share=share)


def test_a_block_that_takes_other_graphs_gathers_from_their_key_nodes():
    first = graph_of(path(9), 9), graph_of(star(6), 8)
    block = GraphBlock.with_room(first, 3, None)
    kept = thinned(block, 0.4).neighbours
    kept.transposed  # noqa: B018  computed, so renewed, too
    others = graph_of(star(5), 7), graph_of(path(4), 5)
    block.load(others)
    fresh = thinned(graph_block(others), 0.4).neighbours
    found = full(kept).unflatten(0, (3, 9)).unflatten(2, (3, 9))
    expected = full(fresh).unflatten(0, (2, 7)).unflatten(2, (2, 7))
    assert_close(found[:2, :7, :2, :7], expected)
    assert_close(full(kept.transposed), full(kept).T)
    assert not found[2:].any()
    assert not found[:, 7:].any()
