"""Lies of one node cost that node its place and affect no other node."""

import dataclasses
import functools
import json
import math
from dataclasses import dataclass

import pytest
import torch
from typing_extensions import override

from fedbolic.core.tree_bytes import WireMessage, decode_message
from fedbolic.federated import Failure, Sequential, SumModulo, Trainer, Update
from fedbolic.federated.aggregators.modular import to_limbs
from fedbolic.remote.nodes import Nodes
from tests.federated.simple_method import (
    RNG,
    SIZES,
    SMALL,
    Averaged,
    assert_near,
    federation,
    train,
)
from tests.remote.transports import Here

LIAR = 0
"""The client of the lying node: the first, for its update must not set the form of the others."""

NAMED = (
    *("holdout/accuracy", "bytes/up", "clients/failed", "ridge_head/accuracy"),
    *("\ud800", "", "a b", "test/accuracy\n1,,holdout/accuracy", "x" * 10**6, "ü"),
    *("/", "test//accuracy", "../x"),
)
"""Names of metrics or scores that a client must not report."""


def tree_of(text, *buffers):
    """Reply that a transport delivers for a message forged by a node."""
    try:
        return decode_message(WireMessage(text, buffers))
    except ValueError as error:
        return {"error": str(error)}


def instead(**parts):
    return lambda told: {**told, **parts}


def without(name):
    return lambda told: {key: part for key, part in told.items() if key != name}


def beside(part, **others):
    return lambda told: {**told, part: {**told[part], **others}}


def named(part, name, value=1.0):
    return lambda told: {**told, part: {**told[part], name: value}}


def of_one(part, leaf):
    """Return a function that replaces every tensor of a payload."""

    def changed(told):
        def replaced(branch):
            return {n: replaced(b) if isinstance(b, dict) else leaf(b) for n, b in branch.items()}

        return {**told, part: replaced(told[part])}

    return changed


UPDATES = {
    "nothing": lambda told: {},
    "an error": lambda told: {"error": "\x1b[2J" + "x" * 10**5},
    "an error that is a tensor": lambda told: {"error": torch.ones(3)},
    "a name with a slash": instead(payload={"delta/x": torch.zeros(5).double()}),
    "no payload": without("payload"),
    "a text for a payload": instead(payload="x"),
    "an empty payload": instead(payload={}),
    "a deep payload": lambda told: tree_of('{"payload": ' * 90 + '{"x": 1}' + "}" * 90),
    "a surrogate in a payload": beside("payload", **{"\ud800": 1.0}),
    "one tensor more": beside("payload", more=torch.zeros(3)),
    "texts for tensors": of_one("payload", lambda x: "x"),
    "numbers for tensors": of_one("payload", lambda x: 1.0),
    "a huge integer for tensors": of_one("payload", lambda x: 10**400),
    "other types": of_one("payload", lambda x: x.half()),
    "bits": of_one("payload", lambda x: x > 0),
    "other shapes": of_one("payload", lambda x: x[None]),
    "empty tensors": of_one("payload", lambda x: x[:0]),
    "NaN": of_one("payload", lambda x: x * math.nan),
    "infinity": of_one("payload", lambda x: x + math.inf),
    "numbers whose sum overflows": of_one("payload", lambda x: x * 0 + 1e308),
    "no weight": without("weight"),
    "a weight of NaN": instead(weight=math.nan),
    "a negative weight": instead(weight=-10.0),
    "an endless weight": instead(weight=math.inf),
    "a weight of 1e300": instead(weight=1e300),
    "a weight of text": instead(weight="7"),
    "an integer weight": instead(weight=10**400),
    "no name": without("name"),
    "a name of another kind": instead(name=7.0),
    "a name that cannot be written": instead(name="\ud800" * 64),
    "a long name": instead(name="a" * 10**6),
    "no metrics": without("metrics"),
    "a tensor for metrics": instead(metrics=torch.ones(2)),
    "a metric of text": named("metrics", "train/loss", "low"),
    "a metric of NaN": named("metrics", "train/loss", math.nan),
    "an endless metric": named("metrics", "train/loss", -math.inf),
    "a huge metric": named("metrics", "train/loss", 1e300),
    "a score for a metric": named("metrics", "test/accuracy"),
    "a tuned score for a metric": named("metrics", "fine_tuned/accuracy"),
    "metrics without number": instead(metrics={f"a{i}": 1.0 for i in range(5000)}),
    "letter: an axis of 2 ** 32 - 1": lambda told: tree_of(
        '{"payload": ["float32", [4294967295], [1]]}'
    ),
    "letter: an empty tensor of axes of 2 ** 32 - 1": lambda told: tree_of(
        json.dumps({"payload": {"x": ["float32", [0, *[4294967295] * 3], [1] * 4]}}), b""
    ),
    "letter: 80 axes": lambda told: tree_of(
        json.dumps({"payload": {"x": ["float32", [1] * 80, [1] * 80]}}), b"1234"
    ),
    "letter: 80 empty axes": lambda told: tree_of(
        json.dumps({"payload": {"x": ["float32", [0] * 80, [1] * 80]}}), b""
    ),
    "letter: numbers that overlap": lambda told: tree_of(
        json.dumps({"payload": {"x": ["float64", [5], [0]]}}), bytes(40)
    ),
    "letter: no JSON": lambda told: tree_of("{"),
    "letter: a huge number": lambda told: tree_of('{"weight": ' + "9" * 10**4 + "}"),
    "letter: nested too deeply": lambda told: tree_of('{"payload": ' * 10**5),
    **{f"a metric named {name!r:.30}": named("metrics", name) for name in NAMED},
}
SCORES = {
    "nothing": lambda told: {},
    "an error": lambda told: {"error": "x"},
    "no scores": instead(scores="high"),
    "a list of scores": lambda told: tree_of('{"scores": [1.0]}'),
    "an integer": named("scores", "test/accuracy", 1),
    "NaN": named("scores", "test/accuracy", math.nan),
    "infinity": named("scores", "test/loss", math.inf),
    "more than all": named("scores", "test/accuracy", 1e9),
    "less than nothing": named("scores", "test/accuracy", -1.0),
    "1e300 examples": named("scores", "test/examples", 1e300),
    "-10 examples": named("scores", "test/examples", -10.0),
    "half an example": named("scores", "test/examples", 0.5),
    "NaN examples": named("scores", "test/examples", math.nan),
    "examples without end": named("scores", "validation/examples", math.inf),
    "a metric for a score": named("scores", "train/loss"),
    "scores after tuning": named("scores", "fine_tuned/accuracy"),
    "scores without number": instead(scores={f"test/a{i}": 1.0 for i in range(5000)}),
    **{f"a score named {name!r:.30}": named("scores", name) for name in NAMED},
}
HANDSHAKES = {
    "no JSON": lambda told: tree_of("{"),
    "an error": lambda told: {"error": "no reply within 600 seconds"},
    "nothing": lambda told: {},
    "no id": without("client"),
    "an id of text": instead(client="0"),
    "an id of 1.0": instead(client=1.0),
    "a negative id": instead(client=-1),
    "an id beyond all": instead(client=4),
    "no size": without("size"),
    "a size of 1e300": instead(size=1e300),
    "a size of 10 ** 300": instead(size=10**300),
    "a negative size": instead(size=-10),
    "a size of true": instead(size=True),
    "no classes": without("num_classes"),
    "10 ** 9 classes": instead(num_classes=10**9),
    "65,000 classes": instead(num_classes=65_000),
    "classes of text": instead(num_classes="3"),
    "no shape": without("input_shape"),
    "a shape of a number": instead(input_shape="5"),
    "a shape that is no JSON": instead(input_shape="[5"),
    "a shape nested without end": instead(input_shape="[" * 10**5),
    "a shape of texts": instead(input_shape='["5"]'),
    "a shape of 2 ** 40": instead(input_shape=f"[{2**40}]"),
    "a shape of 2 ** 30 in three axes": instead(input_shape="[1024, 1024, 1024]"),
    "an empty axis": instead(input_shape="[0]"),
    "90 axes": instead(input_shape=str([1] * 90)),
    "another shape": instead(input_shape="[6]"),
    "a tensor for a shape": instead(input_shape=torch.ones(2)),
}


@dataclass(frozen=True)
class Counted(Averaged):
    """Integers summed with or without a modulus; no template gives their form."""

    modulus: int | None = None

    @property
    @override
    def aggregator(self):
        return super().aggregator if self.modulus is None else SumModulo(self.modulus)

    @override
    def init(self, meta, rng):
        return {"x": torch.zeros(2, dtype=torch.float64), "round": 0}

    @override
    def template(self, message):
        return None

    @override
    def local_update(self, message, client, client_state, rng):
        if self.modulus is not None:
            return Update({"delta": {"x": to_limbs([client.size], self.modulus)}}), {}
        row = torch.tensor([1.0, client.size], dtype=torch.float64)
        return Update({"delta": {"x": row}}, 1.0, {"train/loss": 0.5}), {}

    @override
    def server_update(self, server_state, total):
        return {"x": total.payload["delta"]["x"].double(), "round": server_state["round"] + 1}

    @override
    def evaluate(self, message, client, client_state, rng):
        return {"test/accuracy": client.id / 10, "test/examples": float(client.size)}


METHODS = {
    "template": Averaged(rounds=1),
    "no template": Counted(rounds=1),
    "residues": Counted(rounds=1, modulus=2**61 - 1),
    "averaging": dataclasses.replace(SMALL, rounds=1),
}
FEW = ("template", "no template")
"""Names of the methods whose clients compute next to nothing."""


class Lied(Here):
    """Nodes of which one falsifies its replies to one kind of request."""

    task, lie = "", staticmethod(dict)

    @override
    def reply(self, number, request):
        told = super().reply(number, request)
        return self.lie(told) if (number, request["task"]) == (1000 - LIAR, self.task) else told

    @override
    def exchange(self, kind, requests, *, group, timeout):
        return {n: self.reply(n, request) for n, request in requests.items()}


@dataclass(frozen=True)
class Without(Sequential):
    """Sequential without the liar in the tasks in which it loses its place."""

    tasks: tuple[str, ...]

    @override
    def run(self, exchange):
        for client, update, client_state in super().run(exchange):
            lost = client.id == LIAR and "update" in self.tasks
            yield client, Failure(RuntimeError()) if lost else update, {} if lost else client_state

    @override
    def scores(self, exchange):
        found = super().scores(exchange)
        return {i: s for i, s in found.items() if i != LIAR or "scores" not in self.tasks}


@functools.cache
def without_the_liar(name, tasks):
    return train(METHODS[name], federation(SIZES), engine=Without(tasks))


def assert_it_costs_the_liar_alone(name, task, lie, folder, *, lost):
    data, method = federation(SIZES), METHODS[name]
    post = Lied(method, data, folder)
    post.task, post.lie = task, lie
    nodes = Nodes(post, 4, timeout=1e-3)
    seen = nodes.federation(data.holdout)
    assert seen.meta == data.meta
    (*_, plain), rows = without_the_liar(name, lost)
    (*_, far), new = train(method, seen.to("cpu", torch.float64), engine=nodes)
    assert_near(far.server_state, plain.server_state, 1e-12)
    assert [row[:3] for row in new] == [row[:3] for row in rows]
    assert [row.value for row in new] == pytest.approx([row.value for row in rows], abs=1e-12)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("lie", UPDATES)
def test_a_lie_about_an_update_costs_the_liar_its_place(lie, name, tmp_path):
    assert_it_costs_the_liar_alone(name, "update", UPDATES[lie], tmp_path, lost=("update",))


@pytest.mark.parametrize("lie", SCORES)
def test_a_lie_about_scores_costs_the_liar_its_scores(lie, tmp_path):
    told = SCORES[lie]
    assert_it_costs_the_liar_alone("no template", "scores", told, tmp_path, lost=("scores",))


@pytest.mark.parametrize("lie", HANDSHAKES)
def test_a_lie_about_oneself_costs_the_liar_its_place(lie, tmp_path):
    told, lost = HANDSHAKES[lie], ("update", "scores")
    assert_it_costs_the_liar_alone("averaging", "handshake", told, tmp_path, lost=lost)


def test_numbers_that_are_no_residues_cost_the_liar_its_place(tmp_path):
    lie = of_one("payload", lambda x: x + 2**40)
    assert_it_costs_the_liar_alone("residues", "update", lie, tmp_path, lost=("update",))


def test_who_comes_later_does_not_take_the_place_of_another(tmp_path, caplog):
    data, method = federation(SIZES), dataclasses.replace(SMALL, rounds=2)
    post = Here(method, data, tmp_path)
    nodes = Nodes(post, 4)
    seen = nodes.federation(data.holdout).to("cpu", torch.float64)
    (*_, plain), _ = train(method, data)
    run = Trainer(engine=nodes).run(method, seen, RNG)
    next(run)
    post.nodes[5] = post.nodes[998]
    far, _ = next(run)
    assert_near(far.server_state, plain.server_state, 1e-12)
    assert "node 5 is not accepted as a client: client 2 already has another node" in caplog.text


def test_there_are_many_lies():
    assert len(UPDATES) + len(SCORES) + len(HANDSHAKES) >= 100
