"""Payloads and client states of FlatLand, whose algorithm is in ``tests/conformance``."""

import dataclasses
import logging

import pytest
import torch
from torch.testing import assert_close

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.data import HOLDOUT, IID, BlockModel, Graphs, GraphSplit
from fedbolic.federated import AggregatedUpdate, Batched, LocalTraining, Sequential, Trainer, Update
from fedbolic.federated.rounds.update_filter import UpdateFilter
from fedbolic.manifolds import Curvature
from fedbolic.methods import Majority
from flatland import GCN, Constant, FlatLand, Frame, LorentzGCN, Twin
from flatland.frames import FLAT_FRAMES, FRAMES
from flatland.graphs.ricci import BOUNDS
from flatland.method import CURVATURE, SHARING
from tests.federated.simple_method import assert_same
from tests.federated.simple_method import federation as vectors
from tests.flatland.cases import federation
from tests.flatland.graphs.test_model import by_the_paper

RNG = Rng(5)
NET = LorentzGCN((6, 4), dropout=0.0)
METHOD = FlatLand(NET, rounds=2, proximal=0.02)
WITHOUT_TS = {"*.time": "personal", "curvature.*": "fixed", "*": "shared"}
ROWS = {
    "Local(E)": FlatLand(GCN((6,)), sharing={"*": "personal"}),
    "Local(L)": FlatLand(NET, sharing={"*": "personal"}),
    "FedAvg": FlatLand(GCN((6,)), sharing={"*": "shared"}),
    "FedProx": FlatLand(GCN((6,)), sharing={"*": "shared"}, proximal=0.01),
    "FedPer": FlatLand(GCN((6,)), sharing={"head.*": "personal", "*": "shared"}),
    "FlatLand": FlatLand(NET),
    "without TS": FlatLand(NET, sharing=WITHOUT_TS, curvature=Constant()),
    "without DS": FlatLand(NET, sharing={"*": "shared"}),
}
VARIANTS = {
    "Frame": FlatLand(Frame((6,)), sharing=FRAMES),
    "Twin": FlatLand(Twin((6,)), sharing=FLAT_FRAMES),
    "Shrink": FlatLand(NET, personal_proximal=0.5),
    "LorShare": FlatLand(NET, sharing={"curvature.*": "personal", "*": "shared"}),
}

every_row = pytest.mark.parametrize("method", ROWS.values(), ids=ROWS)


@pytest.fixture(scope="module")
def data():
    return federation()


def begin(method, data):
    return tree.to(method.init(data.meta, RNG), "cpu", torch.float64)


def work(method, clients, server_state, client_states=None, round=1):
    """Updates and client states after one round."""
    return {
        client.id: method.local_update(
            method.broadcast(server_state, client.id),
            client,
            (client_states or {}).get(client.id, {}),
            RNG.at(round, "client", client.id),
        )
        for client in clients
    }


def next_state(method, server_state, results):
    updates = [(i, update) for i, (update, _) in results.items()]
    return method.server_update(server_state, method.aggregator.aggregate(updates))


def start(method, data, server_state, i, client_state=None):
    return method.start(method.broadcast(server_state, i), data.clients[i], client_state or {})


def curvature(raw):
    return float(Curvature(bounds=BOUNDS).c_of(raw))


def test_only_what_is_flat_is_sent_and_the_rest_stays(data):
    for update, client_state in work(METHOD, data.clients, begin(METHOD, data)).values():
        sent, kept = set(update.payload["delta"]), set(client_state["parameters"])
        parts = ("body.0", "body.1", "head")
        assert sent == {f"{part}.{kind}" for part in parts for kind in ("space", "bias")}
        assert kept == {f"{part}.time" for part in parts} | {CURVATURE}
        assert set(update.payload) == {"delta"}


def test_personal_parameters_are_untouched_by_the_server_bit_for_bit(data):
    server_state = begin(METHOD, data)
    results = work(METHOD, data.clients, server_state)
    server_state = next_state(METHOD, server_state, results)
    for i, (_, client_state) in results.items():
        local, _ = start(METHOD, data, server_state, i, client_state)
        for name, value in client_state["parameters"].items():
            assert torch.equal(local["parameters"][name], value)
        for name, value in server_state["parameters"].items():
            assert torch.equal(local["parameters"][name], value)
    assert len({tuple(m["parameters"]["head.time"].tolist()) for _, m in results.values()}) > 1


@pytest.mark.parametrize("extra", ["features", "neighbours"])
def test_features_and_neighbour_lists_are_refused_on_their_way_up(data, extra, caplog):
    server_state = begin(METHOD, data)
    client = data.clients[0]
    graph = client.train.graph
    leak = graph.features if extra == "features" else graph.edges
    (update, client_state) = work(METHOD, data.clients, server_state)[0]
    messages = {0: METHOD.broadcast(server_state, 0)}
    for payload in (
        {**update.payload, extra: leak},
        {"delta": {**update.payload["delta"], extra: leak}},
    ):
        update_filter = UpdateFilter(METHOD, messages, (), RNG)
        assert list(update_filter.usable(iter([(client, Update(payload), client_state)]))) == []
    assert len(
        list(UpdateFilter(METHOD, messages, (), RNG).usable(iter([(client, update, client_state)])))
    )


@every_row
def test_nothing_that_leaves_a_client_holds_its_features(method, data):
    server_state = begin(method, data)
    for i, (update, _) in work(method, data.clients, server_state).items():
        rows = data.clients[i].train.graph.features
        rows = rows[rows.norm(dim=1) > 0]
        assert tree.signature(update.payload) == tree.signature(method.template(server_state))
        for leaf in tree.tensors(update.payload).values():
            if leaf.numel() >= 5:
                assert not (leaf.flatten().unfold(0, 5, 1)[:, None] == rows).all(-1).any()


@pytest.mark.parametrize(("epochs", "inert"), [(1, True), (3, False)])
def test_lambda_is_inert_at_one_local_step(data, epochs, inert, caplog):
    local = LocalTraining(epochs=epochs, batch_size=None)
    plain, proximal = (dataclasses.replace(METHOD, local=local, proximal=mu) for mu in (0.0, 10.0))
    states = [
        next_state(m, s, work(m, data.clients, s))
        for m in (plain, proximal)
        for s in [begin(m, data)]
    ]
    same = [torch.equal(*(s["parameters"][n] for s in states)) for n in states[0]["parameters"]]
    assert all(same) if inert else not all(same)
    assert ("proximal has no effect" in caplog.text) == inert


def test_without_tailored_spaces_every_client_keeps_the_same_curvature(data):
    method = ROWS["without TS"]
    server_state = begin(method, data)
    for i, (update, client_state) in work(method, data.clients, server_state).items():
        local, context = start(method, data, server_state, i, client_state)
        assert CURVATURE not in {*local["parameters"], *update.payload["delta"]}
        assert curvature(context["own"]["fixed"][CURVATURE]) == pytest.approx(1.0)
        assert update.metrics["train/curvature"] == pytest.approx(1.0)


def test_nodes_too_far_from_the_origin_are_counted(data):
    client = data.clients[0]
    graph, lengths = client.train.graph, torch.tensor([9.0, 11.0] * 4 + [9.0])
    directions = graph.features / graph.features.norm(dim=1, keepdim=True)
    far = dataclasses.replace(graph, features=directions * lengths.unsqueeze(1))
    client = dataclasses.replace(client, train=GraphSplit(far, client.train.nodes))
    method = dataclasses.replace(METHOD, curvature=Constant(), curvature_rate=1e-9)
    update, _ = work(method, [client], begin(method, data))[client.id]
    assert update.metrics["train/clamped_fraction"] == pytest.approx(4 / 9)


@every_row
@pytest.mark.parametrize("sparse", [False, True])
def test_odd_clients_are_trained_and_engines_agree(method, sparse, caplog):
    data = federation(sparse=sparse)
    method = dataclasses.replace(method, rounds=2)
    ends = []
    with caplog.at_level(logging.INFO, "fedbolic"):
        for engine in (Sequential(), Batched()):
            *_, (state, rows) = Trainer(engine).run(method, data, RNG)
            ends.append(state)
    values = {row.name: row.value for row in rows if row.client is None}
    assert values["clients/failed"] == 0
    assert values["train/loss"] > 0
    scored = {row.client for row in rows if row.name == "test/accuracy" and row.client is not None}
    assert scored == {c.id for c in data.clients if len(c.test)}  # "one node" has no test node
    assert_close(ends[0].server_state, ends[1].server_state)
    assert_close(ends[0].client_states, ends[1].client_states)
    assert "one by one" not in caplog.text


@every_row
def test_a_client_without_most_classes_is_trained_and_scored(method):
    data = federation()
    labels = data.clients[0].train.graph.labels
    labels.zero_()
    data.clients[2].train.graph.labels.fill_(2)
    method = dataclasses.replace(method, rounds=2)
    *_, (state, rows) = Trainer(Batched()).run(method, data, RNG)
    found = {row.client: row.value for row in rows if row.name == "local/test/accuracy"}
    assert {0, 2} <= set(found)
    assert all(tree.is_finite(client_state) for client_state in state.client_states.values())


def test_the_order_of_clients_changes_nothing(data):
    server_state = begin(METHOD, data)
    results = work(METHOD, data.clients, server_state)
    for i, (update, client_state) in work(METHOD, data.clients[::-1], server_state).items():
        assert_same(update.payload, results[i][0].payload)
        assert_same(client_state, results[i][1])


def test_the_model_after_local_work_is_scored_beside_the_servers(data):
    server_state = begin(METHOD, data)
    client = data.clients[0]
    update, client_state = work(METHOD, data.clients, server_state)[0]
    delta = update.payload["delta"]
    merged = {n: value + delta[n] for n, value in server_state["parameters"].items()}
    scores = METHOD.evaluate({**server_state, "parameters": merged}, client, client_state, RNG)
    local = {n.removeprefix("local/"): v for n, v in update.metrics.items() if "local/" in n}
    assert scores == pytest.approx(local)
    batch = client.test.all()
    c = curvature(client_state["parameters"][CURVATURE])
    logits = by_the_paper(client.train.graph, {**merged, **client_state["parameters"]}, c)
    right = (logits[batch["node"]].argmax(1) == batch["y"]).double().mean()
    assert scores["test/accuracy"] == float(right)


@every_row
def test_the_server_is_scored_only_if_it_has_a_model(method, data):
    server_state = begin(method, data)
    scores = method.evaluate(method.broadcast(server_state, HOLDOUT), data.holdout, {}, RNG)
    assert bool(scores) == ("personal" not in method.sharing.values())


def test_the_majority_is_beaten_where_there_is_something_to_learn():
    data = Graphs(BlockModel(topical=0.4), IID(3)).load(Rng(2))
    learned, guessed = (
        {row.name: row.value for row in rows if row.client is None}["test/accuracy"]
        for method in (FlatLand(LorentzGCN((16,)), rounds=15), Majority())
        for *_, (_, rows) in [Trainer().run(method, data, RNG)]
    )
    assert learned > guessed + 0.3


def test_the_default_table_is_flatlands_own():
    assert FlatLand().sharing == SHARING
    assert FlatLand().sharing is not SHARING


def test_clients_without_a_graph_are_refused():
    data = vectors()
    server_state = begin(METHOD, data)
    with pytest.raises(
        ValueError, match=r"learns from graphs: use the source fedbolic\.data\.Graphs"
    ):
        METHOD.start(METHOD.broadcast(server_state, 0), data.clients[0], {})


@pytest.mark.parametrize("wrong", [{"lr": 0.0}, {"proximal": -1.0}, {"rounds": 0}, {"sharing": {}}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FlatLand(**wrong)


def test_an_empty_total_of_local_training_changes_nothing(data):
    method = ROWS["Local(L)"]
    server_state = begin(method, data)
    assert_same(
        method.server_update(server_state, AggregatedUpdate({"delta": {}}, 1.0, (0,))), server_state
    )
