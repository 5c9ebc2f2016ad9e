"""HierarchyEmbedding against its definition, written out with arcosh and torch's Adam."""

import dataclasses

import pytest
import torch

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.data import (
    BalancedTree,
    Digits,
    Hierarchy,
    HierarchySplit,
    Partitioned,
    PartitionedHierarchy,
    Pooled,
    RandomPairs,
    Subtrees,
    SubtreesAndAuthority,
)
from fedbolic.federated import Batched, LocalTraining
from fedbolic.federated.aggregators.row_mean import TableMeans
from fedbolic.federated.batched.joint import joint_form
from fedbolic.federated.rounds.update_filter import find_update_fault
from fedbolic.federated.secure import SecureSum
from fedbolic.hierarchies import HierarchyEmbedding
from fedbolic.nn import NegativeSampler
from fedbolic.optim import SGD
from fedbolic.testing.compare import flat
from tests.conformance.hierarchies import gap, local_training
from tests.federated.agreement import assert_engines_agree
from tests.federated.simple_method import assert_near, assert_same, train

RNG = Rng(3)
SOURCE = PartitionedHierarchy(BalancedTree(2, 3), Subtrees(3))
METHOD = HierarchyEmbedding(dim=3, rounds=2, local=LocalTraining(epochs=2, batch_size=8))


@pytest.fixture(scope="module")
def data():
    return SOURCE.load(RNG)


def spread_table(data, *, dim=3):
    """A table with points a few radii apart, as in the middle of training."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(data.meta.num_classes, dim, generator=generator, dtype=torch.float64)


def sent_down(method, data, *, round=1):
    table = spread_table(data, dim=method.dim)
    return {"parameters": {"weight": table}, "round": round}


@pytest.mark.parametrize("curvature", [0.0, 0.5, 2.0])
def test_a_round_of_a_client_is_that_of_its_definition(data, curvature):
    method = dataclasses.replace(METHOD, c=curvature)
    message, client = sent_down(method, data), data.clients[1]
    table = message["parameters"]["weight"]
    update, _ = method.local_update(message, client, {}, RNG)
    expected = local_training(method, client, table, RNG, lr=method.lr)
    pairs = client.train.all()["x"]
    rows = sorted(set(pairs.flatten().tolist()))
    assert update.payload["weight"]["rows"].tolist() == rows
    assert_near(update.payload["weight"]["values"], (expected - table)[rows], 1e-9)
    counts = [min(10, sum(node in pair for pair in pairs.tolist())) for node in rows]
    assert update.payload["weight"]["weights"].tolist() == counts
    assert update.payload["weight"]["num_rows"] == len(table)


def test_the_server_adds_the_mean_of_each_row(data):
    message = sent_down(METHOD, data)
    updates = [METHOD.local_update(message, client, {}, RNG)[0] for client in data.clients]
    total = METHOD.aggregator.aggregate(enumerate(updates))
    new = METHOD.server_update(message, total)
    for row, (old, found) in enumerate(
        zip(message["parameters"]["weight"], new["parameters"]["weight"], strict=True)
    ):
        sent = [
            (float(p["weights"][i]), p["values"][i])
            for p in (update.payload["weight"] for update in updates)
            for i, known in enumerate(p["rows"].tolist())
            if known == row
        ]
        mean = sum(c * x for c, x in sent) / sum(c for c, _ in sent)
        assert_near(found, old + mean, 1e-12)
    assert new["round"] == message["round"] + 1


def test_the_step_size_follows_the_schedule(data):
    method = dataclasses.replace(METHOD, rounds=100)
    for round, multiplier in ((0, 0.1), (50, 1.0), (90, 1 / 3)):
        message, client = sent_down(method, data, round=round), data.clients[0]
        table = message["parameters"]["weight"]
        update, _ = method.local_update(message, client, {}, RNG)
        expected = local_training(method, client, table, RNG, lr=method.lr * multiplier)
        rows = update.payload["weight"]["rows"].long()
        assert_near(update.payload["weight"]["values"], (expected - table)[rows], 1e-9)


@pytest.mark.parametrize("kept", ["personal", "reset"])
def test_the_optimizer_is_kept_or_begins_again(data, kept):
    method = dataclasses.replace(METHOD, optimizer_state=kept)
    _, state = method.local_update(sent_down(method, data), data.clients[0], {}, RNG)
    steps = len(method.plan(method.model(data.meta), data.clients[0], RNG).lengths)
    assert state.keys() == ({"optimizer"} if kept == "personal" else set())
    if kept == "personal":
        _, again = method.local_update(sent_down(method, data), data.clients[0], state, RNG)
        assert int(again["optimizer"]["step"]) == 2 * steps


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_clients_take_equally_many_steps(data, steps):
    method = dataclasses.replace(METHOD, steps=steps)
    for client in data.clients:
        plan = method.plan(method.model(data.meta), client, RNG)
        assert len(plan.lengths) == len(plan.positions) == steps
        assert {len(draw) for draw in plan.draws.values()} == {steps}
        assert set(plan.lengths.tolist()) <= {min(8, client.size), client.size % 8}


def test_equal_steps_are_those_of_enough_epochs(data):
    client = max(data.clients, key=lambda client: client.size)
    batches = -(-client.size // 8)
    plans = [
        dataclasses.replace(METHOD, **settings).plan(METHOD.model(data.meta), client, RNG)
        for settings in ({"steps": 2 * batches}, {"local": LocalTraining(2, 8)})
    ]
    assert_same(*(vars(plan) for plan in plans))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"personal": True},
        {"c": 0.0, "bias": "ancestor"},
        {"c": 0.0, "score": "dot", "sends": "table"},
    ],
    ids=str,
)
@pytest.mark.parametrize("num_clients", [1, 3])
def test_engines_agree_by_the_joint_form_of_the_loss(settings, num_clients):
    source = PartitionedHierarchy(BalancedTree(2, 3), Subtrees(num_clients))
    method = dataclasses.replace(METHOD, **settings)
    assert joint_form(method, "loss")
    assert_engines_agree(method, source.load(RNG).to("cpu", torch.float64))


@pytest.fixture
def with_short_tables(monkeypatch):
    """Clients that keep the rows of their own nodes alone, as they do of large hierarchies."""
    monkeypatch.setattr("fedbolic.hierarchies.method.FEWEST_ROWS", 1)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sends": "table"},
        {"optimizer": SGD(momentum=0.9), "lr": 0.01},
        {"c": 0.0, "bias": "ancestor", "steps": 5},
        {"c": 0.0, "score": "dot", "max_weight": 1},
    ],
    ids=str,
)
def test_steps_on_own_rows_are_those_on_all_rows(data, request, settings):
    method = dataclasses.replace(METHOD, **settings)
    numbers = method.init(data.meta, RNG)["parameters"]["weight"].shape[1]
    message = {"parameters": {"weight": spread_table(data, dim=numbers)}, "round": 1}
    whole = [method.local_update(message, client, {}, RNG) for client in data.clients]
    request.getfixturevalue("with_short_tables")
    heights = [len(method.start(message, c, {})[0]["parameters"]["weight"]) for c in data.clients]
    assert max(heights) < data.meta.num_classes
    for client, (update, _) in zip(data.clients, whole, strict=True):
        short, _ = method.local_update(message, client, {}, RNG)
        assert_near(short.payload, update.payload, 1e-12)
        assert_near(short.metrics, update.metrics, 1e-12)


@pytest.mark.parametrize("kept", [{"optimizer_state": "personal"}, {"personal": True}], ids=str)
def test_a_client_that_keeps_rows_keeps_those_of_all_nodes(data, with_short_tables, kept):
    method = dataclasses.replace(METHOD, **kept)
    _, state = method.local_update(sent_down(method, data), data.clients[0], {}, RNG)
    tables = [x for x in flat(state).values() if isinstance(x, torch.Tensor) and x.ndim == 2]
    assert tables
    assert {len(x) for x in tables} == {data.meta.num_classes}


def test_engines_agree_on_short_tables(with_short_tables):
    """Three clients have tables of one height, the fourth has another."""
    source = PartitionedHierarchy(BalancedTree(2, 4), SubtreesAndAuthority(4))
    data = source.load(RNG).to("cpu", torch.float64)
    message = METHOD.init(data.meta, RNG)
    heights = [len(METHOD.start(message, c, {})[0]["parameters"]["weight"]) for c in data.clients]
    assert sorted(heights) == [8, 8, 8, 16]
    assert_engines_agree(METHOD, data)


def test_predictions_on_short_tables_are_those_on_whole_ones(data, request):
    message, batch = sent_down(METHOD, data), {"x": torch.tensor([[3, 1], [5, 2]])}

    def logits():
        local, context = METHOD.start(message, data.clients[1], {})
        return METHOD.predict(METHOD.model(data.meta), local, batch, context)

    whole = logits()
    request.getfixturevalue("with_short_tables")
    assert torch.equal(logits(), whole)


@pytest.mark.parametrize("partition", [Subtrees(3), RandomPairs(3)])
def test_a_secure_sum_gives_the_same_table_and_hides_the_rows(partition):
    data = dataclasses.replace(SOURCE, partition=partition).load(RNG)
    clear, _ = train(METHOD, data, RNG)
    masked, _ = train(SecureSum(METHOD), data, RNG)
    found = masked[-1].server_state["inner"]["parameters"]["weight"]
    assert_near(found, clear[-1].server_state["parameters"]["weight"], 1e-6)
    whole = [
        TableMeans().to_summand(METHOD.local_update(sent_down(METHOD, data), c, {}, RNG)[0])
        for c in data.clients
    ]
    assert len({tuple((n, x.shape) for n, x in each["weight"].items()) for each in whole}) == 1


def test_local_training_sends_nothing_and_keeps_its_table(data):
    method = dataclasses.replace(METHOD, personal=True)
    states, _ = train(method, data, RNG)
    update, kept = method.local_update(sent_down(method, data), data.clients[0], {}, RNG)
    assert not len(update.payload["weight"]["rows"])
    assert method.aggregator.find_fault(update) is None
    start = method.init(data.meta, RNG.at("init"))
    assert_same(states[-1].server_state["parameters"], start["parameters"])
    assert not torch.equal(kept["parameters"]["weight"], spread_table(data))
    assert not method.evaluate(sent_down(method, data), data.holdout, {}, RNG)


def test_local_training_draws_nodes_of_its_own(data):
    method = dataclasses.replace(METHOD, personal=True)
    for client in data.clients:
        drawn = method.plan(method.model(data.meta), client, RNG).draws["negatives"]
        assert set(drawn.unique().tolist()) <= set(client.train.all()["x"].unique().tolist())


@pytest.mark.parametrize("pooled", [False, True])
def test_what_nobody_knows_is_no_negative(pooled):
    hierarchy, partition = BalancedTree(2, 4), SubtreesAndAuthority(4)
    data = PartitionedHierarchy(hierarchy, Pooled(partition) if pooled else partition).load(RNG)
    whole = data.holdout.test
    unknown = {tuple(pair) for pair in whole.hierarchy.pairs[~whole.held].tolist()}
    for client in data.clients:
        plan = METHOD.plan(METHOD.model(data.meta), client, RNG)
        nodes = client.train.hierarchy.pairs[plan.positions, 0]
        drawn, unrelated = plan.draws["negatives"], plan.draws["unrelated"]
        pairs = torch.stack((nodes.unsqueeze(-1).expand_as(drawn), drawn), -1)[unrelated]
        assert not {tuple(pair) for pair in pairs.tolist()} & unknown


def test_scores_of_inferred_pairs_leave_out_what_clients_hold():
    """A line 0 - 1 - 2 - 3 at equal steps, whose pairs (3, 0) and (2, 0) nobody holds."""
    pairs = torch.tensor([[1, 0], [2, 1], [3, 2], [3, 1], [2, 0], [3, 0]])
    held = torch.tensor([True, True, True, True, False, False])
    line = Hierarchy(("a", "b", "c", "d"), pairs)
    data = PartitionedHierarchy(BalancedTree(2, 1), Subtrees(1)).load(RNG)
    meta = dataclasses.replace(data.meta, num_classes=4)
    holdout = dataclasses.replace(data.holdout, test=HierarchySplit(line, held=held), meta=meta)
    method = HierarchyEmbedding(dim=1, c=0.0)
    table = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    scores = method.evaluate({"parameters": {"weight": table}, "round": 0}, holdout, {}, RNG)
    # of 2, the ancestor 0 is behind the unrelated 3 and beside the held 1; of 3, all are related
    assert scores["test/inferred/mean_rank"] == pytest.approx((2 + 1) / 2)
    assert scores["test/inferred/map"] == pytest.approx((1 / 2 + 1) / 2)
    assert scores["test/inferred/examples"] == 2


def test_a_client_ranks_its_own_nodes_alone(data):
    """Nodes at 0, 1, 2 and 3, of which a client knows all but 1: what lies there does not count."""
    tree = Hierarchy(("a", "b", "c", "d"), torch.tensor([[3, 0], [2, 0]]))
    client = dataclasses.replace(data.clients[0], train=HierarchySplit(tree))
    method = HierarchyEmbedding(dim=1, c=0.0)
    table = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    scores = method.evaluate({"parameters": {"weight": table}, "round": 0}, client, {}, RNG)
    # the ancestor of 3 is behind 2; that of 2 is behind 3, which is nearer
    assert scores["test/own/mean_rank"] == 2
    assert scores["test/own/map"] == pytest.approx(1 / 2)


def test_predictions_are_minus_distances(data):
    message = sent_down(METHOD, data)
    table = message["parameters"]["weight"]
    batch = {"x": torch.tensor([[3, 1], [5, 2]])}
    local, context = METHOD.start(message, data.clients[0], {})
    logits = METHOD.predict(METHOD.model(data.meta), local, batch, context)
    for row, u in zip(logits, (3, 5), strict=True):
        others = [v for v in range(len(table)) if v != u]
        expected = torch.stack([gap(METHOD, table[u], table[v]) for v in others])
        assert_near(-row[others], expected, 1e-9)


def test_a_disc_shows_every_node_and_its_way_up(data):
    method = HierarchyEmbedding(dim=2)
    figure = method.figures(sent_down(method, data), data)["tree"]
    assert len(figure.points) == data.meta.num_classes
    assert len(figure.curve_labels) == data.meta.num_classes - 1
    first = figure.curves[figure.curve_ids == 0]
    assert_near(first[0], figure.points[1], 1e-9)
    assert_near(first[-1], figure.points[0], 1e-9)
    assert not METHOD.figures(sent_down(METHOD, data), data)


def test_a_tree_is_learnt(data):
    method = dataclasses.replace(METHOD, rounds=20, lr=0.2)
    _, rows = train(method, data, RNG, engine=Batched())
    found = [row.value for row in rows if row.name == "holdout/map"]
    assert found[-1] > 1.3 * found[0]


def test_other_data_are_refused():
    images = Partitioned(Digits()).load(RNG)
    with pytest.raises(ValueError, match="learns from HierarchySplit"):
        METHOD.local_update(METHOD.init(images.meta, RNG), images.clients[0], {}, RNG)


@pytest.mark.parametrize(
    "settings",
    [
        {"dim": 0},
        {"rounds": 0},
        {"max_weight": 0},
        {"steps": 0},
        {"lr": 0.0},
        {"c": -1.0},
        {"negatives": NegativeSampler(power=0.75)},
    ],
)
def test_a_setting_out_of_range_is_refused(settings):
    with pytest.raises(ValueError, match=rf"\b{next(iter(settings))}\b"):
        HierarchyEmbedding(**settings)


def test_a_client_that_lies_about_the_number_of_rows_is_left_out(data):
    message = sent_down(METHOD, data)
    update, _ = METHOD.local_update(message, data.clients[0], {}, RNG)
    expected = tree.signature(METHOD.template(message))
    assert find_update_fault(update, {}, expected, METHOD.aggregator) is None
    for lie in (10**12, 3, -1, 2.5, "all"):
        lying = dataclasses.replace(
            update, payload={"weight": {**update.payload["weight"], "num_rows": lie}}
        )
        assert find_update_fault(lying, {}, expected, METHOD.aggregator) is not None
