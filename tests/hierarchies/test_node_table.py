"""Scores with a bias a node, and products, against loops over single numbers."""

import dataclasses

import pytest
import torch

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.data import BalancedTree, PartitionedHierarchy, Subtrees
from fedbolic.federated import LocalTraining
from fedbolic.federated.rounds.update_filter import find_update_fault
from fedbolic.federated.secure import SecureSum
from fedbolic.hierarchies import HierarchyEmbedding
from fedbolic.hierarchies.node_table import NodeTable
from fedbolic.testing import check_method
from tests.conformance.hierarchies import gap, local_training
from tests.federated.agreement import assert_engines_agree
from tests.federated.simple_method import assert_near, train
from tests.hierarchies.test_method import sent_down

RNG = Rng(3)
METHOD = HierarchyEmbedding(dim=2, rounds=2, local=LocalTraining(epochs=2, batch_size=8))
KINDS = {
    "flat, b_v": {"c": 0.0, "bias": "ancestor"},
    "flat, b_u + b_v": {"c": 0.0, "bias": "both"},
    "curved, b_v": {"c": 0.5, "bias": "ancestor"},
    "dot, b_v": {"c": 0.0, "bias": "ancestor", "score": "dot"},
    "dot": {"c": 0.0, "score": "dot"},
}


@pytest.fixture(scope="module")
def data():
    return PartitionedHierarchy(BalancedTree(2, 3), Subtrees(3)).load(RNG)


def of_kind(kind):
    return dataclasses.replace(METHOD, **KINDS[kind])


def message_of(method, data):
    numbers = method.dim + (method.bias != "none")
    return sent_down(dataclasses.replace(method, dim=numbers, bias="none"), data)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_a_loop(kind, data):
    method = of_kind(kind)
    rows = message_of(method, data)["parameters"]["weight"]
    found = method.table.gaps(method.table.embed(rows), torch.tensor([4, 0]))
    for at, u in enumerate((4, 0)):
        for v in set(range(len(rows))) - {u}:
            assert float(found[at, v]) == pytest.approx(float(gap(method, rows[u], rows[v])))


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_of_a_client_is_that_of_a_loop(kind, data):
    method = of_kind(kind)
    message, client = message_of(method, data), data.clients[1]
    table = message["parameters"]["weight"]
    expected = local_training(method, client, table, RNG, lr=method.lr)
    update, _ = method.local_update(message, client, {}, RNG)
    rows = client.train.all()["x"].unique()
    assert_near(update.payload["weight"]["values"], (expected - table)[rows], 1e-9)
    moved = update.payload["weight"]["values"].abs().amax(0)
    assert (moved > 1e-3).all()  # the bias is trained with the coordinates


def test_the_contract_of_methods_is_kept(data):
    check_method(of_kind("flat, b_v"), data)


@pytest.mark.parametrize("kind", ["flat, b_v", "curved, b_v", "dot, b_v"])
def test_engines_agree(kind, data):
    assert_engines_agree(of_kind(kind), data.to("cpu", torch.float64))


def test_the_bias_of_the_descendant_changes_no_training_and_no_ranking(data):
    (one, rows), (both, of_both) = (
        train(of_kind(kind), data, RNG) for kind in ("flat, b_v", "flat, b_u + b_v")
    )
    tables = [found[-1].server_state["parameters"]["weight"] for found in (one, both)]
    assert_near(*tables, 1e-6)
    ranks = [
        [row.value for row in found if row.name.endswith(("map", "mean_rank"))]
        for found in (rows, of_both)
    ]
    assert ranks[0] == pytest.approx(ranks[1])
    table = of_kind("flat, b_u + b_v").table
    gaps = table.gaps(table.embed(tables[1]), torch.arange(len(tables[1])))
    assert_near(gaps, gaps.T, 1e-5)


def test_predictions_and_scores_know_the_bias(data):
    """Of nodes at one place, the popular one is ranked first."""
    method = HierarchyEmbedding(dim=1, c=0.0, bias="ancestor")
    table = torch.zeros(data.meta.num_classes, 2)
    table[:, 1] = -data.holdout.test.hierarchy.depths.float()
    message = {"parameters": {"weight": table}, "round": 0}
    batch = {"x": torch.tensor([[7, 0]])}
    local, context = method.start(message, data.clients[0], {})
    logits = method.predict(method.model(data.meta), local, batch, context)
    assert_near(logits[0], table[:, 1], 1e-6)
    scores = method.evaluate(message, data.holdout, {}, RNG)
    flat = dataclasses.replace(method, bias="none").evaluate(
        {**message, "parameters": {"weight": table[:, :1]}}, data.holdout, {}, RNG
    )
    assert scores["test/map"] > 2 * flat["test/map"]


def test_a_secure_sum_and_whole_tables_carry_the_bias(data):
    rows = of_kind("flat, b_v")
    clear, _ = train(rows, data, RNG)
    masked, _ = train(SecureSum(rows), data, RNG)
    table = clear[-1].server_state["parameters"]["weight"]
    assert table.shape == (15, 3)
    assert_near(masked[-1].server_state["inner"]["parameters"]["weight"], table, 1e-6)
    whole = dataclasses.replace(rows, sends="table")
    message = whole.init(data.meta, RNG)
    delta = whole.local_update(message, data.clients[0], {}, RNG)[0].payload["delta"]["weight"]
    known = data.clients[0].train.node_counts > 0
    assert (delta[known, -1] != 0).all()
    assert not delta[~known].any()


def test_rows_of_another_width_are_left_out(data):
    method = of_kind("flat, b_v")
    message = method.init(data.meta, RNG)
    update, _ = method.local_update(message, data.clients[0], {}, RNG)
    expected = tree.signature(method.template(message))
    assert find_update_fault(update, {}, expected, method.aggregator) is None
    short = {**update.payload["weight"], "values": update.payload["weight"]["values"][:, :2]}
    lying = dataclasses.replace(update, payload={"weight": short})
    assert find_update_fault(lying, {}, expected, method.aggregator) is not None


def test_points_and_the_figure_leave_the_bias_out(data):
    method = of_kind("curved, b_v")
    message = message_of(method, data)
    plain = dataclasses.replace(method, bias="none")
    table = message["parameters"]["weight"]
    without = {**message, "parameters": {"weight": table[:, :2]}}
    points = [m.table.points(m.table.embed(t)) for m, t in ((method, table), (plain, table[:, :2]))]
    assert_near(*points, 0.0)
    figures = [m.figures(state, data)["tree"] for m, state in ((method, message), (plain, without))]
    assert_near(figures[0].points, figures[1].points, 0.0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"c": 1.0, "score": "dot"}, "need flat space, got c=1.0"),
        ({"bias": "descendant"}, "bias"),
        ({"score": "cosine"}, "score"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(settings, words):
    with pytest.raises((ValueError, TypeError), match=words):
        NodeTable(**{"dim": 2, "c": 0.0, **settings})
    with pytest.raises((ValueError, TypeError), match=words):
        HierarchyEmbedding(**{"c": 0.0, **settings})
