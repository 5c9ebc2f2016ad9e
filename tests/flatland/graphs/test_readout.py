"""Readouts of whole graphs, against PyG, geoopt and loops over nodes."""

import dataclasses

import geoopt
import pytest
import torch
from torch_geometric.nn import global_add_pool, global_mean_pool

from fedbolic.core.rng import Rng
from fedbolic.data import IID, GraphClassification, TreesAndRings, WholeGraphs, pick_graphs
from fedbolic.federated import LocalTraining, Sequential, Trainer, Workers
from fedbolic.manifolds import Lorentz
from flatland import GCN, Constant, FlatLand, Frame, GraphReadout, LorentzGCN, Twin
from flatland.graphs.blocks import graph_block
from flatland.graphs.readout import (
    centroid_of_graphs,
    mean_of_vectors,
    sum_of_vectors,
    tangent_mean,
    tangent_sum,
)
from flatland.method import SHARING
from tests.federated.simple_method import assert_near
from tests.flatland.cases import federation
from tests.flatland.test_joint import agree

POOLINGS = ["mean", "sum", "centroid"]


def data_of(num_clients=3, *, num_graphs=18):
    family = TreesAndRings(num_graphs=num_graphs, least=3, most=7)
    return GraphClassification((family,), IID(num_clients)).load(Rng(2)).to("cpu", torch.float64)


def block_of(num_clients=1, num_graphs=12):
    clients = data_of(num_clients, num_graphs=num_graphs).clients
    graphs = tuple(client.train.graph for client in clients)
    return graphs, graph_block(graphs)


def points(block, width=3, *, c=0.7, seed=0):
    """Space coordinates of points up to a few radii from the origin."""
    made = torch.randn(*block.shape, width, generator=Rng(seed).generator(), dtype=torch.float64)
    return 2 * made, Lorentz(torch.full((block.shape[0], 1, 1), c, dtype=torch.float64))


def test_vectors_are_pooled_as_in_pyg():
    graphs, block = block_of(2)
    x, _ = points(block)
    for i, graph in enumerate(graphs):
        num_graphs = int(graph.batch[-1]) + 1
        for ours, theirs in (
            (mean_of_vectors, global_mean_pool),
            (sum_of_vectors, global_add_pool),
        ):
            expected = theirs(x[i, : len(graph)], graph.batch)
            torch.testing.assert_close(ours(x, block)[i, :num_graphs], expected)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(tangent_mean, global_mean_pool), (tangent_sum, global_add_pool)]
)
def test_points_are_pooled_in_the_tangent_space_of_geoopt(ours, theirs):
    (graph,), block = block_of()
    s, space = points(block)
    s = s / 10  # a sum of far points would reach the clamp
    other = geoopt.Lorentz(k=torch.tensor(1 / 0.7, dtype=torch.float64))
    whole = torch.cat((((1 / 0.7) + s.square().sum(-1, keepdim=True)).sqrt(), s), dim=-1)[0]
    pooled = other.expmap0(theirs(other.logmap0(whole), graph.batch))
    torch.testing.assert_close(ours(s, block, space)[0], pooled[:, 1:])


def test_a_centroid_is_the_normalised_sum_of_points():
    (graph,), block = block_of()
    s, space = points(block)
    found = centroid_of_graphs(s, block, space)[0]
    for i in range(len(found)):
        own = s[0, graph.batch == i]
        times = (1 / 0.7 + own.square().sum(1)).sqrt()
        total, time = own.sum(0), times.sum()
        expected = total / (0.7 * (time**2 - total @ total)).sqrt()
        torch.testing.assert_close(found[i], expected)


@pytest.mark.parametrize("readout", [tangent_mean, tangent_sum, centroid_of_graphs])
def test_the_readout_of_one_node_is_its_point_and_of_the_origin_the_origin(readout):
    union = data_of().clients[0].train.graph
    alone = dataclasses.replace(union, edges=union.edges[:, :0], batch=torch.arange(len(union)))
    block = graph_block((alone,))
    s, space = points(block)
    torch.testing.assert_close(readout(s, block, space), s)
    assert (readout(torch.zeros_like(s), block, space) == 0).all()


@pytest.mark.parametrize("readout", [tangent_mean, tangent_sum, centroid_of_graphs])
def test_readouts_have_the_gradient_of_finite_differences(readout):
    _, block = block_of(num_graphs=4)
    s, space = points(block, 2, seed=1)
    s, c = (s / 4).requires_grad_(), torch.as_tensor(space.c).clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda s, c: readout(s, block, Lorentz(c)), (s, c))
    zero = torch.zeros_like(s, requires_grad=True)
    readout(zero, block, space).sum().backward()
    assert zero.grad.isfinite().all()


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("network", [GCN, LorentzGCN, Frame, Twin])
def test_the_logits_of_a_graph_do_not_depend_on_other_graphs(network, pooling):
    data = data_of(1)
    union = data.clients[0].train.graph
    readout = GraphReadout(network((4,), dropout=0.0), pooling)
    model = FlatLand(readout).model(data.meta)
    parameters, buffers = model.init(0)
    parameters = {name: value.double() for name, value in parameters.items()}
    together, _ = model(parameters, buffers, graph_block((union,)))
    for i in range(together.shape[1]):
        own = pick_graphs(union, torch.tensor([i]))
        alone, _ = model(parameters, buffers, graph_block((own,)))
        torch.testing.assert_close(alone[0, 0], together[0, i])


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize(
    ("network", "settings"),
    [
        (LorentzGCN, {"proximal": 0.01}),
        (GCN, {"sharing": {"*": "shared"}}),
    ],
)
def test_a_block_of_clients_is_each_of_them_alone(network, settings, pooling, caplog):
    method = FlatLand(
        GraphReadout(network((4, 4)), pooling),
        rounds=2,
        local=LocalTraining(epochs=2, batch_size=None),
        **settings,
    )
    agree(method, data_of(4, num_graphs=30), caplog)


@pytest.mark.processes
def test_workers_train_as_the_reference_does():
    method = FlatLand(GraphReadout(LorentzGCN((4,))), rounds=2)
    ends = [
        list(Trainer(engine).run(method, data_of(), Rng(0)))[-1][0].server_state
        for engine in (Sequential(), Workers(num=1))
    ]
    assert_near(*ends, 1e-10)


def test_training_beats_the_majority():
    family = TreesAndRings(num_graphs=80, rewired=0.0)
    data = GraphClassification((family,), IID(2)).load(Rng(0))
    for network, sharing in ((LorentzGCN((8, 8)), SHARING), (GCN((8, 8)), {"*": "shared"})):
        method = FlatLand(
            GraphReadout(network), rounds=20, curvature=Constant(), sharing=dict(sharing)
        )
        *_, (_, rows) = Trainer().run(method, data, Rng(0))
        found = {row.name: row.value for row in rows if row.client is None}
        assert found["test/accuracy"] > 0.8  # the majority has a half


def test_networks_and_examples_of_other_kinds_are_refused():
    whole, nodes = data_of(), federation()
    for network, data in ((LorentzGCN((4,)), whole), (GraphReadout(LorentzGCN((4,))), nodes)):
        method = FlatLand(network)
        message = method.init(data.meta, Rng(0))
        with pytest.raises(ValueError, match="cannot learn from"):
            method.received(message, data.clients[0], {})
    _, block = graph_block_of_nodes(nodes)
    with pytest.raises(ValueError, match="a readout needs graphs as examples"):
        block.pool(torch.zeros(*block.shape, 1))


def graph_block_of_nodes(data):
    graph = data.clients[0].train.graph
    return graph, graph_block((graph,))


def test_examples_of_other_methods_are_mean_features():
    split = data_of().clients[0].train
    assert isinstance(split, WholeGraphs)
    assert split.all()["x"].shape == (len(split), 16)
