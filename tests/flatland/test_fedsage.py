"""FedSage+ compared with literal loops over nodes: losses, gradients, mended graphs, training."""

import dataclasses
import logging

import pytest
import torch
from torch.nn.functional import cross_entropy, smooth_l1_loss
from torch.testing import assert_close

from fedbolic import tree
from fedbolic.data import Client
from fedbolic.federated import Batched, Cohort, Sequential, Trainer
from fedbolic.optim import SGD, Adam
from fedbolic.rng import Rng
from flatland import GCN, FedSagePlus, FlatLand, NeighbourGenerator
from flatland.mending import count_loss, feature_loss, impair, mend, nearest_loss, neighbours_of
from flatland.neighbour_exchanges import CrossGradients, GeneratorTraining
from flatland.neighbours import LAYER
from tests.federated.simple_method import assert_near
from tests.federated.simple_method import federation as vectors
from tests.flatland.cases import ODD, federation, graph_of
from tests.flatland.test_joint import ALIKE, TOLERANCE
from tests.flatland.test_model import dense

NET = GCN((6, 4), dropout=0.0)
GENERATOR = NeighbourGenerator(4, most=2, rounds=3, num_codes=5, hidden_share=0.4, epochs=1, lr=0.1)
METHOD = FedSagePlus(NET, rounds=3, generator=GENERATOR)
LONGER = dataclasses.replace(
    METHOD, generator=dataclasses.replace(GENERATOR, rounds=2, epochs=15, class_weight=0.0)
)
"""A method whose clients are sure to generate neighbours."""

RNG = Rng(7)
RING = [(i, (i + k) % 12) for i in range(12) for k in (1, 2, 5)]


@pytest.fixture(scope="module")
def impaired():
    return impair(ring(), torch.arange(0, 12, 2), 0.4, RNG.generator())


def ring():
    return graph_of(RING, 12, dim=5)


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def convolved(graph, p, prefix):
    """Two convolutions, on dense matrices."""
    a, h = dense(graph)
    share = a.sum(1).rsqrt()
    a = share[:, None] * a * share
    for layer in ("body.0", "body.1"):
        h = (a @ h @ p[f"{prefix}{layer}.space"] + p[f"{prefix}{layer}.bias"]).relu()
    return h


def test_hidden_nodes_are_those_that_visible_ones_miss(impaired):
    whole = ring()
    order = torch.randperm(12, generator=RNG.generator()).tolist()
    hidden, visible = set(order[:5]), sorted(order[5:])
    assert_close(impaired.graph.features, whole.features[visible])
    edges = set(zip(*whole.edges.tolist(), strict=True))
    cut = [(v, u) for v, u in sorted(edges) if v not in hidden and u in hidden]
    assert impaired.place.tolist() == [visible.index(v) for v, _ in cut]
    assert_close(impaired.hidden, whole.features[[u for _, u in cut]])
    assert impaired.missing.tolist() == [sum(a == v for a, _ in cut) for v in visible]
    assert impaired.train.tolist() == [i for i, v in enumerate(visible) if v % 2 == 0]
    assert len(impaired.graph.edges[0]) == sum(
        v not in hidden and u not in hidden for v, u in edges
    )


def test_losses_are_those_of_loops_over_nodes(impaired):
    n, most = len(impaired.graph), 2
    generated, counts = random(n, most, 5).requires_grad_(), random(n, seed=1)
    expected = torch.zeros((), dtype=torch.float64)
    for v in range(n):
        hidden = impaired.hidden[impaired.place == v]
        for p in range(min(len(hidden), most)):
            expected = expected + min((generated[v, p] - x).square().sum() for x in hidden) / n
    found = feature_loss(generated, impaired)
    assert_close(found, expected)
    ways = [torch.autograd.grad(loss, generated)[0] for loss in (found, expected)]
    assert_close(*ways)
    truth = impaired.missing.double()
    assert_close(count_loss(counts, impaired.missing), smooth_l1_loss(counts, truth))


def test_the_nearest_loss_is_that_of_loops_over_nodes():
    graph, generated = ring(), random(4, 2, 5)
    rows = generated.reshape(-1, 5)
    expected = sum(min((row - x).square().sum() for x in graph.features) for row in rows) / 4
    assert_close(nearest_loss(generated, graph), expected)


def test_a_graph_is_mended_with_the_rounded_number_of_neighbours():
    counts = torch.tensor([0.4, 0.6, 9.0], dtype=torch.float64)
    generated = random(3, 2, 5)
    features, owner = neighbours_of(counts, generated)
    assert owner.tolist() == [1, 2, 2]
    assert_close(features, generated[[1, 2, 2], [0, 0, 1]])
    graph = graph_of([(0, 1)], 3, sparse=True)
    found = mend(graph, features, owner)
    assert_close(found.features, torch.cat((graph.features.to_dense(), features)))
    edges = {(0, 1), (1, 3), (2, 4), (2, 5)}
    assert set(zip(*found.edges.tolist(), strict=True)) == edges | {(b, a) for a, b in edges}


def test_the_local_loss_is_the_papers(impaired):
    settings = dataclasses.replace(
        GENERATOR, count_weight=0.3, feature_weight=0.5, class_weight=0.7
    )
    meta = federation().meta
    p = settings.begin(NET, meta, 3, torch.zeros(0, dtype=torch.float64))
    noise = random(len(impaired.graph), 4)
    z = convolved(impaired.graph, p, "encoder.")
    counts = (z @ p["count.space"] + p["count.bias"]).relu().squeeze(-1)
    generated = torch.tanh((z + noise) @ p["features.weight"] + p["features.bias"])
    generated = generated.reshape(len(z), 2, 5)
    whole = mend(impaired.graph, *neighbours_of(counts, generated))
    logits = convolved(whole, p, "classifier.") @ p["classifier.head.space"]
    logits = logits + p["classifier.head.bias"]
    expected = (
        0.3 * smooth_l1_loss(counts, impaired.missing.double())
        + 0.5 * feature_loss(generated, impaired)
        + 0.7 * cross_entropy(logits[impaired.train], whole.labels[impaired.train])
    )
    assert_close(settings.loss(p, impaired, noise, NET, meta), expected)


def test_gradients_of_others_are_those_of_one_joint_loss():
    """The exchanged sum equals autograd through all clients' features at once."""
    settings, data = dataclasses.replace(GENERATOR, cross_weight=0.6), federation(ALIKE)
    layers = {
        str(i): {
            "weight": random(4, 10, seed=i),
            "bias": random(10, seed=10 + i),
            "codes": random(5, 4, seed=20 + i),
        }
        for i in range(len(data.clients))
    }
    phase = CrossGradients(settings, NET, Adam())
    message = {"generators": layers}
    updates = [
        (client.id, phase.local_update(message, client, {}, RNG)[0]) for client in data.clients
    ]
    total = phase.aggregator.aggregate(updates).payload["gradients"]
    for i, layer in layers.items():
        weight = layer["weight"].clone().requires_grad_()
        bias = layer["bias"].clone().requires_grad_()
        vectors_of = torch.tanh(layer["codes"] @ weight + bias).reshape(-1, 5)
        loss = sum(
            0.6 * min((x - y).square().sum() for y in other.train.graph.features) / 5
            for other in data.clients
            if str(other.id) != i
            for x in vectors_of
        )
        expected = torch.autograd.grad(loss, (weight, bias))
        assert_close((total[i]["weight"], total[i]["bias"]), expected)


def stages(method, data):
    """Server states, phases and results of the exchanges before the first round."""
    server_state = tree.to(method.init(data.meta, RNG), "cpu", torch.float64)
    states, log = {}, []
    while (phase := method.phase(server_state)) is not method:
        results = {}
        for client in data.clients:
            message = phase.broadcast(server_state, client.id)
            stream = RNG.at(server_state["stage"], client.id)
            results[client.id] = phase.local_update(
                message, client, states.get(client.id, {}), stream
            )
        log.append((server_state, phase, dict(states), results))
        states = {i: kept for i, (_, kept) in results.items()}
        total = phase.aggregator.aggregate([(i, update) for i, (update, _) in results.items()])
        server_state = phase.server_update(server_state, total)
    return log, server_state, states


def test_a_generator_learns_from_its_own_loss_and_the_gradients_of_others():
    """One step of gradient descent, against autograd on the sum of both parts."""
    data = federation(ALIKE)
    short = dataclasses.replace(GENERATOR, rounds=2)
    method = dataclasses.replace(METHOD, optimizer=SGD(), generator=short)
    log, _, _ = stages(method, data)
    server_state, phase, before, results = log[2]
    assert isinstance(phase, GeneratorTraining)
    previous = log[0][3]
    for client in data.clients:
        p = {
            n: x.clone().requires_grad_()
            for n, x in before[client.id]["generator"]["parameters"].items()
        }
        stream = Rng(server_state["seed"]).at("hidden", client.id).generator()
        graph = client.train.graph
        impaired = impair(graph, client.train.nodes, GENERATOR.hidden_share, stream)
        draws = RNG.at(2, client.id).at("noise").generator()
        noise = torch.randn(len(impaired.graph), 4, generator=draws).double()
        loss = GENERATOR.loss(p, impaired, noise, NET, client.meta)
        codes = previous[client.id][0].payload["codes"]
        sent = GENERATOR.features(tree.part(p, LAYER), codes)
        others = [other for other in data.clients if other.id != client.id]
        loss = loss + sum(nearest_loss(sent, other.train.graph) for other in others)
        gradients = torch.autograd.grad(loss, list(p.values()), materialize_grads=True)
        after = {n: x.detach() - 0.1 * g for (n, x), g in zip(p.items(), gradients, strict=True)}
        z, counts = GENERATOR.embed(after, graph, client.meta)
        codes = z + torch.randn(len(graph), 4, generator=draws).double()
        features, owner = neighbours_of(counts, GENERATOR.features(tree.part(after, LAYER), codes))
        assert_close(results[client.id][1]["neighbours"]["features"], features)
        assert torch.equal(results[client.id][1]["neighbours"]["owner"], owner)


def test_exchanges_alternate_and_what_they_send_is_declared():
    data = federation(ALIKE)
    log, end, states = stages(METHOD, data)
    assert [type(phase) for _, phase, _, _ in log] == [
        *(GeneratorTraining, CrossGradients) * 2,
        GeneratorTraining,
    ]
    assert METHOD.num_stages == len(log) == end["stage"]
    assert all(set(kept) == {"neighbours"} for kept in states.values())
    for server_state, phase, _, results in log:
        template = phase.template(phase.broadcast(server_state, 0))
        for update, _ in results.values():
            if template is not None:
                assert tree.signature(update.payload) == tree.signature(template)
    assert all(update.payload == {} for update, _ in log[-1][3].values())


def test_alone_a_generator_sends_nothing():
    method = dataclasses.replace(METHOD, generator=dataclasses.replace(GENERATOR, cross_weight=0.0))
    log, _, _ = stages(method, federation(ALIKE))
    assert len(log) == 3
    assert all(update.payload == {} for *_, results in log for update, _ in results.values())


def test_without_generator_rounds_it_is_fedavg():
    data = federation(ALIKE)
    ours = dataclasses.replace(METHOD, generator=dataclasses.replace(GENERATOR, rounds=0))
    theirs = FlatLand(NET, rounds=3, sharing={"*": "shared"})
    ends = [
        list(Trainer(Sequential()).run(m, data, Rng(3)))[-1][0].server_state for m in (ours, theirs)
    ]
    assert_close(ends[0]["parameters"], ends[1]["parameters"])


def test_a_classifier_is_trained_on_the_mended_graph():
    data = federation(ALIKE)
    _, server_state, states = stages(LONGER, data)
    assert any(len(kept["neighbours"]["owner"]) for kept in states.values())
    for client in data.clients:
        local, context = METHOD.start(
            METHOD.broadcast(server_state, client.id), client, states[client.id]
        )
        kept = states[client.id]["neighbours"]
        graph = mend(client.train.graph, kept["features"], kept["owner"])
        p = local["parameters"]
        logits = convolved(graph, p, "") @ p["head.space"] + p["head.bias"]
        batch = client.train.all()
        losses, _ = METHOD.loss(METHOD.model(client.meta), p, {}, batch, context)
        assert_close(losses, cross_entropy(logits[batch["node"]], batch["y"], reduction="none"))


@pytest.mark.parametrize("graphs", [ALIKE, list(ODD.values())], ids=["alike", "odd"])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_block_of_clients_is_each_of_them_alone(graphs, sparse, caplog):
    method = dataclasses.replace(LONGER, network=dataclasses.replace(NET, dropout=0.5))
    data, ends = federation(graphs, sparse=sparse), []
    with caplog.at_level(logging.INFO, "fedbolic"):
        for engine in (Sequential(), Batched()):
            trainer = Trainer(engine, cohort=Cohort(0.6))
            exchanges = list(trainer.run(method, data, Rng(3)))
            ends.append((exchanges[-1][0], [row for _, new in exchanges for row in new]))
    assert "FedSagePlus are run one by one" not in caplog.text
    (plain, rows), (fast, new) = ends
    assert_near(fast.server_state, plain.server_state, TOLERANCE)
    for i, kept in plain.client_states.items():
        assert_near(fast.client_states[i], kept, TOLERANCE)
    assert [row[:3] for row in new] == [row[:3] for row in rows]
    assert [row.value for row in new] == pytest.approx([row.value for row in rows], abs=TOLERANCE)


def test_examples_without_a_graph_are_refused():
    client = vectors().clients[0]
    assert isinstance(client, Client)
    phase = GeneratorTraining(GENERATOR, NET, Adam(), is_last=False)
    with pytest.raises(ValueError, match=r"nodes of a graph.*use the source"):
        phase.local_update({"seed": 0, "gradients": {}}, client, {}, RNG)


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            {"width": 0},
            {"most": 0},
            {"rounds": -1},
            {"epochs": 0},
            {"lr": 0.0},
            {"hidden_share": 1.0},
        ),
        *({"count_weight": -1.0}, {"cross_weight": -1.0}, {"num_codes": 0}),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        NeighbourGenerator(**wrong)
