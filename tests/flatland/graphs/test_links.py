"""Link prediction with graph networks, against geoopt and a transcription of a step."""

import dataclasses

import geoopt
import networkx as nx
import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import IID, BlockModel, Client, FederatedLinks, LinkExamples
from fedbolic.federated import Evaluation, LocalTraining, Sequential, Trainer, Workers
from fedbolic.federated.contract.method import refuse_other_data
from fedbolic.optim import SGD
from flatland import GCN, Constant, FlatLand, Frame, GraphReadout, LinkNetwork, LorentzGCN
from flatland.graphs.blocks import graph_block
from flatland.graphs.links import DRAWS, draw_negatives, link_losses, pair_logits
from flatland.method import SHARING
from tests.federated.simple_method import assert_near
from tests.flatland.cases import complete, graph_of
from tests.flatland.test_joint import agree


def data_of(num_clients=3):
    source = FederatedLinks(BlockModel(num_nodes=120, within=0.15), IID(num_clients))
    return source.load(Rng(4)).to("cpu", torch.float64)


def test_a_logit_is_that_of_geoopts_distance():
    network = LinkNetwork(LorentzGCN((4,), dropout=0.0), dim=3, radius=1.5, temperature=0.7)
    data = data_of()
    client = data.clients[0]
    model = FlatLand(network).model(data.meta)
    parameters, buffers = model.init(0)
    parameters = {n: v.double() for n, v in parameters.items()}
    outputs = model(parameters, buffers, graph_block((client.test.graph,)))[0][0]
    c, time, s = outputs.split((1, 1, 3), dim=1)
    torch.testing.assert_close(c, torch.ones_like(c), rtol=1e-6, atol=0)
    points = torch.cat((time, s), dim=1) / c.sqrt()
    space = geoopt.Lorentz(k=1 / c[0])
    i, j = client.test.places.T
    expected = (1.5 - space.dist(points[i], points[j]) ** 2) / 0.7
    found = pair_logits(network, outputs, client.test.places)
    torch.testing.assert_close(found[:, 1], expected)
    assert (found[:, 0] == 0).all()


@pytest.mark.parametrize("c", [0.3, 4.0])
def test_distances_scale_with_the_curvature(c):
    network = LinkNetwork(LorentzGCN((4,)), dim=2)
    space = geoopt.Lorentz(k=torch.tensor(1 / c, dtype=torch.float64))
    generator = Rng(0).generator()
    s = torch.randn(2, 9, 2, generator=generator, dtype=torch.float64)
    time = (1 / c + s.square().sum(-1, keepdim=True)).sqrt()
    rows = torch.cat((torch.full_like(time, c), c**0.5 * time, c**0.5 * s), dim=-1)
    points = torch.cat((time, s), dim=-1)
    expected = 2 - space.dist(points[0], points[1]) ** 2
    torch.testing.assert_close(network.decode(rows[0], rows[1]), expected)


def test_near_points_have_exact_distances_and_gradients():
    network = LinkNetwork(LorentzGCN((4,)), dim=1)
    a = torch.tensor(0.3, dtype=torch.float64)

    def point(r):
        return torch.stack((torch.ones_like(r), r.cosh(), r.sinh()))

    found = 2 - network.decode(point(a), point(a + 1e-6))
    assert float(found) == pytest.approx(1e-12, rel=1e-6)
    same = point(a).requires_grad_()
    network.decode(same, same).backward()
    assert same.grad.isfinite().all()


def test_a_flat_logit_is_that_of_the_euclidean_distance():
    network = LinkNetwork(GCN((4,)), dim=2)
    x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, 6.0]])
    assert network.decode(x, y).tolist() == [2 - 25]


@pytest.mark.parametrize("network", [GCN, LorentzGCN])
def test_a_loss_is_the_cross_entropy_of_an_edge_and_a_listed_non_edge(network):
    link = LinkNetwork(network((4,), dropout=0.0), dim=3)
    data = data_of()
    split = data.clients[0].train
    model = FlatLand(link).model(data.meta)
    parameters, buffers = model.init(0)
    parameters = {n: v.double() for n, v in parameters.items()}
    outputs = model(parameters, buffers, graph_block((split.graph,)))[0]
    drawn = draw_negatives(1, len(split) + 2, Rng(0).generator())[0]
    assert int(drawn.min()) >= 0
    assert int(drawn.max()) < DRAWS
    batch = {"node": split.places[None], "negative": drawn[None]}
    (found,) = link_losses(link, outputs, batch, (split.graph,))
    # non-edges by brute force, in the order of their larger and then their smaller node
    graph = nx.empty_graph(len(split.graph))
    graph.add_edges_from(split.graph.edges.T.tolist())
    non_edges = sorted(tuple(sorted(pair, reverse=True)) for pair in nx.non_edges(graph))
    for k, (i, j) in enumerate(split.places.tolist()):
        a, b = non_edges[int(drawn[k]) % len(non_edges)]
        edge, other = link.decode(outputs[0, [i, a]], outputs[0, [j, b]]).sigmoid()
        expected = -(edge.log() + (1 - other).log()) / 2
        assert float(found[k]) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize(
    ("network", "settings"),
    [
        (LorentzGCN((4,)), {"proximal": 0.01}),
        (GCN((4,)), {"sharing": {"*": "shared"}}),
        (GCN((4,), neighbours="mean"), {"sharing": {"*.bias": "personal", "*": "shared"}}),
    ],
)
@pytest.mark.parametrize("batch_size", [None, 16])
def test_a_block_of_clients_is_each_of_them_alone(network, settings, batch_size, caplog):
    method = FlatLand(
        LinkNetwork(network, dim=3),
        rounds=2,
        local=LocalTraining(epochs=2, batch_size=batch_size),
        **settings,
    )
    agree(method, data_of(4), caplog, evaluation=Evaluation(metrics=("auroc",)))


@pytest.mark.processes
def test_workers_train_as_the_reference_does():
    method = FlatLand(LinkNetwork(LorentzGCN((4,)), dim=3), rounds=2)
    ends = [
        list(Trainer(engine).run(method, data_of(), Rng(0)))[-1][0].server_state
        for engine in (Sequential(), Workers(num=1))
    ]
    assert_near(*ends, 1e-10)


def test_a_step_is_gradient_descent_on_the_mean_loss():
    link = LinkNetwork(GCN((4,), dropout=0.0), dim=3)
    method = FlatLand(
        link,
        sharing={"*": "shared"},
        optimizer=SGD(),
        weight_decay=0.0,
        lr=0.1,
        local=LocalTraining(epochs=1, batch_size=None),
    )
    data = data_of()
    client = data.clients[1]
    message = method.init(data.meta, Rng(0))
    message["parameters"] = {n: v.double() for n, v in message["parameters"].items()}
    update, _ = method.local_update(message, client, {}, Rng(5))
    plan = method.plan(method.model(data.meta), client, Rng(5))
    drawn, order = plan.draws["negative"][0], plan.positions[0]
    p = {n: v.clone().requires_grad_() for n, v in message["parameters"].items()}
    # the convolution of Kipf and Welling with dense matrices
    graph = client.train.graph
    a = torch.eye(len(graph), dtype=torch.float64)
    a[graph.edges[0], graph.edges[1]] = 1
    scale = a.sum(1).rsqrt()
    a = scale[:, None] * a * scale
    x = graph.features.to_dense() if graph.features.is_sparse else graph.features
    hidden = (a @ x @ p["body.0.space"] + p["body.0.bias"]).relu()
    z = hidden @ p["head.space"] + p["head.bias"]
    batch = {"node": client.train.places[order][None], "negative": drawn[None]}
    link_losses(link, z[None], batch, (graph,)).mean().backward()
    expected = {n: -0.1 * v.grad for n, v in p.items()}
    assert_near(update.payload["delta"], expected, 1e-12)


def test_training_ranks_held_out_edges_above_chance():
    data = FederatedLinks(BlockModel(num_nodes=160, within=0.3, across=0.002), IID(2)).load(Rng(0))
    for network, sharing in ((LorentzGCN((16,)), SHARING), (GCN((16,)), {"*": "shared"})):
        method = FlatLand(
            LinkNetwork(network, dim=8), rounds=30, sharing=dict(sharing), curvature=Constant()
        )
        evaluation = Evaluation(every=30, metrics=("auroc",))
        *_, (_, rows) = Trainer(evaluation=evaluation).run(method, data, Rng(0))
        found = {row.name: row.value for row in rows if row.client is None}
        assert found["local/test/auroc_client_mean"] > 0.65
        assert found["test/auroc_client_mean"] > 0.65


def test_an_encoder_without_coordinates_of_nodes_is_refused():
    for other in (Frame(), GraphReadout()):
        with pytest.raises(ValueError, match="nodes of a GCN or LorentzGCN"):
            LinkNetwork(other)


def test_pairs_need_a_decoder_and_a_decoder_needs_pairs():
    data = data_of()
    method = FlatLand(LorentzGCN((4,)))
    with pytest.raises(ValueError, match="LorentzGCN cannot learn from LinkExamples"):
        method.received(method.init(data.meta, Rng(0)), data.clients[0], {})


def test_a_client_with_one_training_edge_takes_part():
    data = data_of()
    client = data.clients[0]
    one = dataclasses.replace(client, train=client.train.part(torch.tensor([0])))
    assert isinstance(one, Client)
    assert isinstance(one.train, LinkExamples)
    method = FlatLand(LinkNetwork(LorentzGCN((4,)), dim=3))
    message = method.init(data.meta, Rng(0))
    message["parameters"] = {n: v.double() for n, v in message["parameters"].items()}
    update, _ = method.local_update(message, one, {}, Rng(0))
    assert update.weight == 1


def test_a_client_without_a_possible_negative_is_refused_before_the_run():
    """Unless it has no training edge: it draws no negative."""
    data, method = data_of(), FlatLand(LinkNetwork(LorentzGCN((4,)), dim=3), rounds=1)
    graph, pairs = graph_of(complete(4), 4), torch.tensor(complete(4))
    train = LinkExamples(graph, pairs, torch.ones(6, dtype=torch.int64))
    client = dataclasses.replace(data.clients[0], train=train)
    refuse_other_data(method, dataclasses.replace(client, train=train.part(torch.arange(0))))
    data = dataclasses.replace(data, clients=(client, *data.clients[1:]))
    with pytest.raises(ValueError, match="cannot use client 0: every pair of its nodes"):
        next(Trainer().run(method, data, Rng(0)))
