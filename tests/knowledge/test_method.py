"""KnowledgeEmbedding against its definition, written out triple by triple with torch's Adam."""

import dataclasses

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import (
    IID,
    ByEntity,
    ByRelation,
    Digits,
    Families,
    Partitioned,
    PartitionedTriples,
)
from fedbolic.federated import LocalTraining
from fedbolic.federated.secure import SecureSum
from fedbolic.knowledge import KnowledgeEmbedding
from fedbolic.knowledge.triple_scores import FORMS
from fedbolic.nn import NegativeSampler
from fedbolic.optim import SGD
from tests.conformance.knowledge import local_training
from tests.federated.agreement import assert_engines_agree
from tests.federated.simple_method import assert_near, train

RNG = Rng(3)
SOURCE = PartitionedTriples(Families(1, 3), ByRelation(3))
METHOD = KnowledgeEmbedding(
    dim=4, rounds=2, local=LocalTraining(1, 8), lr=0.1, negatives=NegativeSampler(5)
)


@pytest.fixture(scope="module")
def data():
    return SOURCE.load(RNG).to("cpu", torch.float64)


def first_message(method, data):
    state = method.init(data.meta, RNG)
    double = {name: x.double() for name, x in state["parameters"].items()}
    return {**state, "parameters": {**double, "entity": 20 * double["entity"]}}


def with_(**settings):
    return dataclasses.replace(METHOD, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        *({"score": name} for name in FORMS),
        {"negatives": None},
        {"n3": 0.1},
        {"bias": "none"},
        {"bias": "both"},
    ],
    ids=str,
)
def test_a_round_of_a_client_is_that_of_its_definition(data, settings):
    method, client = with_(**settings), data.clients[1]
    message = first_message(method, data)
    update, _ = method.local_update(message, client, {}, RNG)
    expected = local_training(method, client, message["parameters"], RNG)
    triples, n = client.train.all()["x"].tolist(), data.meta.input_shape[1]
    ends = [end for h, _, t in triples for end in (h, t)]
    relations = [r + n * way for _, r, _ in triples for way in (0, 1)]
    numbers = {"entity": ends, "relation": relations, "curvature": relations}
    assert update.payload.keys() == expected.keys()
    for name, sent in update.payload.items():
        rows = sorted(set(numbers[name]))
        assert sent["rows"].tolist() == rows
        assert sent["weights"].tolist() == [min(10, numbers[name].count(row)) for row in rows]
        before = message["parameters"][name]
        assert_near(sent["values"], (expected[name] - before)[rows], 1e-9)


def test_the_server_adds_the_mean_of_each_row(data):
    method = with_(server_lr=0.5)
    message = first_message(method, data)
    updates = [method.local_update(message, client, {}, RNG)[0] for client in data.clients]
    total = method.aggregator.aggregate(enumerate(updates))
    new = method.server_update(message, total)
    for name, table in message["parameters"].items():
        expected = table.clone()
        for row in range(len(table)):
            sent = [
                (float(p["weights"][i]), p["values"][i])
                for p in (update.payload[name] for update in updates)
                for i, known in enumerate(p["rows"].tolist())
                if known == row
            ]
            if sent:
                expected[row] += 0.5 * sum(c * x for c, x in sent) / sum(c for c, _ in sent)
        assert_near(new["parameters"][name], expected, 1e-12)
    assert new["round"] == 1


PERSONAL = [
    (),
    ("relation", "curvature"),
    ("entity",),
    ("curvature",),
    ("entity", "relation", "curvature"),
]


@pytest.mark.parametrize("personal", PERSONAL)
def test_personal_tables_stay_and_are_used_again(data, personal):
    method, client = with_(personal=personal), data.clients[0]
    message = first_message(method, data)
    update, state = method.local_update(message, client, {}, RNG)
    assert update.payload.keys() == message["parameters"].keys() - set(personal)
    assert set(state.get("own", {})) == set(personal)
    expected = local_training(method, client, message["parameters"], RNG)
    for name, table in state.get("own", {}).items():
        assert_near(table, expected[name], 1e-9)
    local, _ = method.start(message, client, state)
    for name in personal:
        assert local["parameters"][name] is state["own"][name]
    scores = method.evaluate(message, data.holdout, {}, RNG)
    assert bool(scores) == (not personal) == method.traits.global_model


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"negatives": None, "n3": 0.01},
        {"score": "MuRP", "optimizer": SGD(momentum=0.9), "lr": 0.01},
        {"score": "ComplEx", "optimizer_state": "reset", "max_weight": 1},
        *({"personal": personal} for personal in PERSONAL[1:]),
    ],
    ids=str,
)
def test_engines_agree(data, settings):
    assert_engines_agree(with_(**settings), data)


def test_a_secure_sum_gives_the_same_tables(data):
    single = SOURCE.load(RNG)
    clear, _ = train(METHOD, single, RNG)
    secure, _ = train(SecureSum(METHOD), single, RNG)
    assert_near(
        secure[-1].server_state["inner"]["parameters"],
        clear[-1].server_state["parameters"],
        1e-4,
    )


def test_the_score_of_the_server_is_the_mean_over_clients_that_know_all_answers(data):
    """With one relation a client, nobody else knows further answers to its queries."""
    message = first_message(METHOD, data)
    whole = METHOD.evaluate(message, data.holdout, {}, RNG)
    parts = [METHOD.evaluate(message, client, {}, RNG) for client in data.clients]
    sizes = [part.get("test/examples", 0) for part in parts]
    mean = sum(s * part.get("test/mrr", 0) for s, part in zip(sizes, parts, strict=True))
    assert mean / sum(sizes) == pytest.approx(whole["test/mrr"], abs=1e-12)


def test_training_learns_a_family():
    method = with_(dim=8, rounds=15, local=LocalTraining(2, 16), negatives=NegativeSampler(20))
    source = PartitionedTriples(Families(2, 4), ByEntity(2))
    _, rows = train(method, source.load(RNG), RNG)
    scores = [row.value for row in rows if row.name == "holdout/mrr"]
    assert scores[-1] > 3 * scores[0]


@pytest.mark.parametrize(("part", "value"), [("weights", 11.0), ("values", 1e9)])
def test_a_lie_is_found(data, part, value):
    message = first_message(METHOD, data)
    update, _ = METHOD.local_update(message, data.clients[0], {}, RNG)
    assert METHOD.find_fault(message, update.payload, float("inf")) is None
    update.payload["relation"][part][0] = value
    assert METHOD.find_fault(message, update.payload, float("inf"))


def test_rows_that_do_not_fit_are_found(data):
    update, _ = METHOD.local_update(first_message(METHOD, data), data.clients[0], {}, RNG)
    assert METHOD.aggregator.find_fault(update) is None
    update.payload["relation"]["rows"][0] = 100
    assert "relation: its rows must ascend" in METHOD.aggregator.find_fault(update)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dim": 3}, "even"),
        ({"n3": -1.0}, "n3"),
        ({"negatives": NegativeSampler(5, power=0.75)}, "counts of all"),
        ({"max_weight": 0}, "max_weight"),
        ({"optimizer": SGD(weight_decay=0.1)}, "weight_decay would move"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        with_(**settings)


def test_other_data_are_refused():
    client = Partitioned(Digits(), IID(3), num_train=30).load(RNG).clients[0]
    with pytest.raises(ValueError, match="learns from TripleSplit"):
        METHOD.evaluate({"parameters": {}}, client, {}, RNG)
