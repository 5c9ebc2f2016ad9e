"""Partitions of a hierarchy's pairs: who holds what, and what follows from it."""

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import (
    HOLDOUT,
    BalancedTree,
    Hierarchy,
    HierarchyFile,
    HierarchySplit,
    PartitionedHierarchy,
    Pooled,
    RandomPairs,
    Subtrees,
    SubtreesAndAuthority,
)
from fedbolic.data.hierarchies.hierarchy_split import ABOVE, BELOW
from fedbolic.data.hierarchies.trees import balanced_tree, random_tree

TREES = [balanced_tree(3, 4), random_tree(300, Rng(5))]
DIAMOND = Hierarchy(
    ("a", "b", "c", "d", "e", "f"),
    torch.tensor([[1, 0], [2, 0], [3, 1], [3, 2], [4, 1], [5, 2]]),
).closure()


def ancestors(hierarchy, node):
    return {v for u, v in hierarchy.pairs.tolist() if u == node}


@pytest.mark.parametrize("hierarchy", [*TREES, DIAMOND])
@pytest.mark.parametrize("partition", [RandomPairs(3), Subtrees(3)])
def test_every_pair_is_held_by_one_client(hierarchy, partition):
    parts = partition.split(hierarchy, Rng(0))
    assert len(parts) == 3
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(hierarchy.num_pairs))
    assert all(len(part) and torch.equal(part, part.sort().values) for part in parts)


@pytest.mark.parametrize("hierarchy", [*TREES, DIAMOND])
def test_a_client_of_subtrees_holds_all_ancestors_of_its_nodes(hierarchy):
    for part in Subtrees(3).split(hierarchy, Rng(0)):
        held = hierarchy.pairs[part].tolist()
        for node in {u for u, _ in held}:
            assert {v for u, v in held if u == node} == ancestors(hierarchy, node)


def test_equal_branches_are_not_split():
    tree = balanced_tree(3, 4)
    for part in Subtrees(3).split(tree, Rng(0)):
        nodes = set(tree.pairs[part].flatten().tolist()) - {0}
        assert len(nodes & {1, 2, 3}) == 1  # one child of the root, and all that is below it


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("num_clients", [2, 5, 20])
def test_shares_of_subtrees_differ_by_less_than_a_fair_share(tree, num_clients):
    sizes = [len(part) for part in Subtrees(num_clients).split(tree, Rng(0))]
    assert max(sizes) - min(sizes) <= tree.num_pairs / num_clients


@pytest.mark.parametrize("tree", TREES)
def test_what_nobody_holds_follows_from_what_clients_hold(tree):
    parts = SubtreesAndAuthority(6).split(tree, Rng(0))
    held = tree.pairs[torch.cat(parts).sort().values]
    assert len(held.unique(dim=0)) == len(held) < tree.num_pairs
    assert torch.equal(Hierarchy(tree.names, held).closure().pairs, tree.pairs)


@pytest.mark.parametrize("tree", TREES)
def test_branch_clients_know_nothing_above_their_heads(tree):
    partition = SubtreesAndAuthority(6)
    tiers = partition.tiers(tree)
    *branches, authority = partition.split(tree, Rng(0))
    for part in branches:
        assert (tiers[tree.pairs[part]] > ABOVE).all()
        assert (tiers[tree.pairs[part][:, 0]] == BELOW).all()
    assert (tiers[tree.pairs[authority][:, 0]] < BELOW).all()
    assert (tiers[tree.pairs[authority][:, 1]] == ABOVE).all()


@pytest.mark.parametrize("tree", TREES)
def test_pairs_that_nobody_holds_are_the_unknown_ones(tree):
    partition = SubtreesAndAuthority(6)
    split = HierarchySplit(tree, partition.tiers(tree))
    held = torch.zeros(tree.num_pairs, dtype=torch.bool)
    held[torch.cat(partition.split(tree, Rng(0)))] = True
    unknown = split.is_unknown(tree.pairs[:, 0], tree.pairs[:, 1:]).squeeze(-1)
    assert torch.equal(unknown, ~held)
    assert not HierarchySplit(tree).is_unknown(tree.pairs[:, 0], tree.pairs[:, 1:]).any()


def test_a_pooled_client_holds_what_all_clients_held():
    partition = SubtreesAndAuthority(6)
    (pooled,) = Pooled(partition).split(TREES[1], Rng(0))
    assert torch.equal(pooled, torch.cat(partition.split(TREES[1], Rng(0))).sort().values)
    assert torch.equal(Pooled(partition).tiers(TREES[1]), partition.tiers(TREES[1]))
    assert Pooled(Subtrees(3)).tiers(TREES[1]) is None


def test_a_source_says_which_pairs_are_held():
    source = PartitionedHierarchy(BalancedTree(2, 5), SubtreesAndAuthority(5))
    data = source.load(Rng(0))
    held = torch.cat([client.train.all()["x"] for client in data.clients])
    test = data.holdout.test
    assert data.holdout.id == HOLDOUT
    assert data.sizes == tuple(len(client.train) for client in data.clients)
    assert int(test.held.sum()) == len(held) < len(test)
    expected = {tuple(pair) for pair in held.tolist()}
    assert {tuple(p) for p in test.hierarchy.pairs[test.held].tolist()} == expected


def test_a_split_counts_the_pairs_of_each_node():
    split = HierarchySplit(Hierarchy(("a", "b", "c", "d"), torch.tensor([[0, 1], [0, 2]])))
    assert split.node_counts.tolist() == [2, 1, 1, 0]
    double = split.to("cpu", torch.float64)
    assert double.at(torch.tensor([1]))["x"].tolist() == [[0, 2]]
    assert (split.no_inputs.dtype, double.no_inputs.dtype) == (torch.float32, torch.float64)


def test_a_file_is_closed(tmp_path):
    path = tmp_path / "cats.tsv"
    path.write_text("lion\tcat\ncat\tmammal\n")
    assert HierarchyFile(path).read(None, download=False).num_pairs == 3


@pytest.mark.parametrize(
    ("partition", "reason"),
    [
        (lambda: Subtrees(0), "num_clients"),
        (lambda: RandomPairs(0), "num_clients"),
        (lambda: SubtreesAndAuthority(1), "num_clients"),
        (lambda: RandomPairs(99).split(DIAMOND, Rng(0)), "fewer clients"),
        (lambda: Subtrees(9).split(DIAMOND, Rng(0)), "fewer clients"),
        (lambda: HierarchySplit(DIAMOND, torch.empty(0).long()), "tiers"),
        (lambda: HierarchySplit(DIAMOND, held=torch.ones(2, dtype=torch.bool)), "entries"),
    ],
)
def test_what_cannot_be_split_is_refused(partition, reason):
    with pytest.raises(ValueError, match=reason):
        partition()
