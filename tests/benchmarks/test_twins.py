"""Twin networks differ in geometry only, and their step size is chosen on validation."""

import pytest
import torch
from torch import nn

from benchmarks import twins


class Scale(twins.Problem):
    """Fits ``y = 3 x``; within the grid, larger steps give better networks."""

    title, grid, weight_decay, twins, constant = "scale", (1e-3, 0.3, 1e-2), 0.0, ("a", "b"), 0.0

    def __init__(self):
        self.asked = []

    def build(self, twin, dim):
        return nn.Linear(1, 1)

    def losses(self, generator):
        for _ in range(30):
            x = torch.randn(8, 1, generator=generator)
            yield lambda model, x=x: (model(x) - 3 * x).square().mean()

    def accuracy(self, model, part):
        self.asked.append(part)
        return 100 - (model.weight - 3).abs().item()


def test_the_step_size_is_chosen_on_validation_and_all_seeds_are_tested():
    problem = Scale()
    lr, test = twins.tuned(problem, "a", 2)
    assert lr == 0.3
    assert problem.asked == ["validation"] * 6 + ["test"] * 5
    assert len(set(test)) == 5


def test_training_depends_on_the_seed_alone():
    torch.manual_seed(5)
    first = twins.train(Scale(), "a", 2, 0.1, seed=3).weight
    torch.manual_seed(6)
    assert torch.equal(first, twins.train(Scale(), "b", 2, 0.1, seed=3).weight)


def test_a_table_gives_means_spreads_and_paired_differences(capsys, monkeypatch):
    scores = {"a": (0.01, [1.0, 2.0, 3.0]), "b": (0.1, [2.0, 3.0, 4.0])}
    monkeypatch.setattr(twins, "tuned", lambda problem, twin, dim: scores[twin])
    twins.report(Scale())
    rows = capsys.readouterr().out.splitlines()
    assert "| 2 | 2.00 ± 1.00 | 3.00 ± 1.00 | 1.00 ± 0.00 | 0.01, 0.1 |" in rows
    assert len([row for row in rows if row.startswith("|")]) == 2 + len(twins.DIMS)


@pytest.mark.data
@pytest.mark.parametrize("kind", [twins.Fashion, twins.Cora])
def test_twins_differ_in_geometry_only(kind, data_root, monkeypatch):
    monkeypatch.setenv("FEDBOLIC_DATA", str(data_root))
    problem = kind()
    sizes = []
    for twin in problem.twins:
        model = problem.build(twin, 4)
        sizes.append(sum(value.numel() for value in model.parameters()))
        next(problem.losses(torch.Generator()))(model).backward()
        assert all(value.grad is not None for value in model.parameters())
        assert 0 <= problem.accuracy(model, "validation") <= 100
    time_columns = 2 * 4 if kind is twins.Cora else 0
    assert sizes[1] - sizes[0] == time_columns
