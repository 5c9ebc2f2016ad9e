"""The benchmark of large hierarchies: all its steps are one step, and every row has a time."""

import torch

from benchmarks.hierarchies import sparse_rows
from fedbolic.core.rng import Rng
from fedbolic.data import random_tree


def test_a_step_of_the_library_is_that_by_hand():
    """Without a Riemannian retraction: both move the rows by about the same small step."""
    made = sparse_rows.rows(30)
    hand, ours = made[sparse_rows.BY_HAND], made[sparse_rows.JUDGED]
    with torch.no_grad():
        ours.table.weight.uniform_(-0.3, 0.3)  # inside the ball
    before = ours.table.weight.detach().clone()
    hand.points = before.clone()
    nodes = torch.tensor([[3, 7, 9, 1], [8, 7, 3, 2]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    hand.step(nodes, mask)
    ours.step(nodes, mask)
    moved = hand.points - before
    assert moved.norm() > 1e-3
    assert (ours.table.weight.detach() - hand.points).norm() < 0.05 * moved.norm()


def test_every_row_has_a_time_and_the_table_prints(tmp_path):
    tree = random_tree(40, Rng(0))
    found = sparse_rows.epochs(tree, 5, rounds=1, least=0)
    assert found.keys() == sparse_rows.rows(40).keys()
    assert all(f["epoch"] == f["ms"] / 1e3 * -(-tree.num_pairs // 5) for f in found.values())
    known = {("epoch", f"{name}, {size}"): f for name, f in found.items() for size in (10, 512)}
    for name, sample in (("sample", 10), ("exact", None)):
        known["scores", name] = sparse_rows.scores(tree, sample) | {"seconds": 1.0}
    known["federation", ""] = {"MiB before": 300.0, "MiB": 400.0, "seconds": 10.0}
    printed = sparse_rows.nouns_table(known)
    assert all(name in printed for name in found)
    assert "| memory | ten clients: MiB | <= 1000 | 400 | met |" in printed
