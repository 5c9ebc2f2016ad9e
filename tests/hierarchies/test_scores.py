"""Scores from a sample of nodes against those of all nodes."""

import dataclasses

import numpy as np
import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import (
    BalancedTree,
    PartitionedHierarchy,
    Subtrees,
    SubtreesAndAuthority,
    random_tree,
)
from fedbolic.hierarchies import Embedding, HierarchyEmbedding, Popularity, SlotLayout
from fedbolic.hierarchies.scores import ranking_scores
from fedbolic.nn import rank_and_map
from fedbolic.report.text_report import compose
from fedbolic.run import run

NUM_NODES, DRAWS = 150, 250


@pytest.fixture(scope="module")
def pairs():
    return random_tree(NUM_NODES, Rng(4)).pairs


@pytest.fixture(scope="module")
def distances():
    generator = torch.Generator().manual_seed(2)
    table = torch.rand(NUM_NODES, NUM_NODES, generator=generator)
    return lambda nodes: table[nodes]


@pytest.mark.parametrize("sample", [60, 120])
def test_estimates_are_right_on_average_and_their_intervals_hold_19_of_20(pairs, distances, sample):
    exact = rank_and_map(distances, pairs, num_nodes=NUM_NODES)
    of = {"map": exact.mean_average_precision, "mean_rank": exact.mean_rank}
    found = [
        ranking_scores(distances, pairs, NUM_NODES, sample=sample, rng=Rng(seed))
        for seed in range(DRAWS)
    ]
    for score, value in of.items():
        missed = np.array([each[f"sampled/{score}"] - value for each in found])
        errors = np.array([each[f"sampled/{score}_error"] for each in found])
        assert abs(missed.mean()) < 4 * missed.std() / DRAWS**0.5
        # 95 % of 250 draws less four standard errors, and an interval no wider than it must be
        assert (np.abs(missed) <= errors).mean() > 0.9
        assert errors.mean() < 2.6 * missed.std()


@pytest.mark.parametrize(
    "method",
    [HierarchyEmbedding(dim=2, c=0.0, bias="ancestor"), Popularity()],
    ids=lambda m: type(m).__name__,
)
def test_a_method_says_which_scores_are_estimates(method):
    data = PartitionedHierarchy(BalancedTree(2, 4), SubtreesAndAuthority(3)).load(Rng(0))
    state = method.init(data.meta, Rng(1))
    whole, some, most = (
        dataclasses.replace(method, sample=sample).evaluate(state, data.holdout, {}, Rng(2))
        for sample in (None, 5, 1000)
    )
    assert whole == most
    assert {"test/map", "test/inferred/map"} <= whole.keys()
    parts = ("map", "map_error", "mean_rank", "mean_rank_error", "examples")
    expected = {f"test/{of}sampled/{part}" for of in ("", "inferred/") for part in parts}
    assert some.keys() == expected
    own = dataclasses.replace(method, sample=2).evaluate(state, data.clients[0], {}, Rng(2))
    scores = ("map", "mean_rank", "examples")
    assert own.keys() == {f"test/own/sampled/{score}" for score in scores}


def test_two_of_three_nodes_are_ranked_by_hand():
    """A line at equal steps, of whose pairs those with the root are ranked and the others known."""
    line = torch.arange(5.0)
    found = ranking_scores(
        lambda rows: (line[rows, None] - line).abs(),
        torch.tensor([[2, 0], [3, 0], [4, 0]]),
        5,
        known=torch.tensor([[2, 1], [3, 1], [3, 2], [4, 1], [4, 2], [4, 3]]),
        sample=2,
        rng=Rng(0),
    )
    # the unrelated 3 and 4 precede the root at 2, a tie included; 4 precedes it at 3; none at 4
    ranks = [(a, b) for a, b in ((3, 2), (3, 1), (2, 1)) if a + b == 2 * found["sampled/mean_rank"]]
    ((a, b),) = ranks
    assert found["sampled/map"] == pytest.approx((1 / a + 1 / b) / 2)
    for score, apart in (("mean_rank", a - b), ("map", 1 / b - 1 / a)):
        # Student's t with one degree of freedom, the standard error of two values, a third left
        error = 12.7062 * apart / 2 * (1 / 3) ** 0.5
        assert found[f"sampled/{score}_error"] == pytest.approx(error, rel=1e-4)
    assert found["sampled/examples"] == 2


def test_an_embedding_has_the_scores_of_its_run():
    data = (
        PartitionedHierarchy(BalancedTree(2, 4), Subtrees(3)).load(Rng(0)).to("cpu", torch.float64)
    )
    method = HierarchyEmbedding(dim=2, c=0.0, bias="ancestor")
    table = torch.randn(
        data.meta.num_classes, 3, generator=torch.Generator().manual_seed(0)
    ).double()
    message = {"parameters": {"weight": table}, "round": 0}
    scores = method.evaluate(message, data.holdout, {}, Rng(0))
    nodes, places = method.node_places(message, data.holdout, {})
    found = Embedding.of(data.holdout.test.hierarchy, places, nodes).scores()
    assert {f"test/{name}": value for name, value in found.items()} == scores


@pytest.mark.parametrize(
    ("sample", "column"), [(None, "| MAP % |"), (20, "| sampled MAP % | ± MAP % |")]
)
def test_a_report_says_which_scores_are_estimates(sample, column, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = PartitionedHierarchy(BalancedTree(2, 4), Subtrees(3))
    folder = run(HierarchyEmbedding(dim=2, rounds=1, sample=sample), data, name="a")
    head = compose([folder]).text.splitlines()
    assert any(column in line for line in head)


@pytest.mark.parametrize("kind", [HierarchyEmbedding, Popularity, SlotLayout])
def test_one_node_is_no_sample(kind):
    with pytest.raises(ValueError, match="sample must be at least 2, got 1"):
        kind(sample=1)
