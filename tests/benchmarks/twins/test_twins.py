"""Twin networks differ in geometry only, and their step size is chosen on validation."""

import pytest
import torch
from torch import nn

from benchmarks.twins import __main__ as twins
from fedbolic.manifolds import Lorentz
from fedbolic.nn import MLR, ToManifold


class Scale(twins.Problem):
    """Fits ``y = 3 x``; within the grid, larger steps are better on validation, worse on test."""

    name, title, grid, weight_decay, constant = "scale", "scale", (1e-3, 0.3, 1e-2), 0.0, 0.0
    networks = ("a", "b")

    def __init__(self):
        self.built = 0

    def build(self, network, dim):
        self.built += 1
        return nn.Linear(1, 1)

    def losses(self, generator):
        for _ in range(30):
            x = torch.randn(8, 1, generator=generator)
            yield lambda model, x=x: (model(x) - 3 * x).square().mean()

    def accuracy(self, model, part):
        error = (model.weight - 3).abs().item()
        return 100 - error if part == "validation" else error


def test_the_step_size_is_chosen_on_validation_and_all_seeds_are_tested(tmp_path):
    problem = Scale()
    lr, test = twins.tuned(problem, "a", 2, twins.Results(tmp_path / "twins.csv"))
    assert lr == 0.3
    assert problem.built == 2 * 3 + 8
    assert len(set(test)) == 10


def test_an_interrupted_run_continues_from_its_file(tmp_path):
    file, problem = tmp_path / "twins.csv", Scale()
    first = twins.tuned(problem, "a", 2, twins.Results(file))
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:-9]) + "\n")
    problem.built = 0
    assert twins.tuned(problem, "a", 2, twins.Results(file)) == first
    assert problem.built == 3
    again = file.read_text().splitlines()
    kept = [[line for line in of if ",seconds," not in line] for of in (again, lines)]
    assert sorted(kept[0]) == sorted(kept[1])


def test_training_depends_on_the_seed_alone():
    torch.manual_seed(5)
    first = twins.train(Scale(), "a", 2, 0.1, seed=3).weight
    torch.manual_seed(6)
    assert torch.equal(first, twins.train(Scale(), "b", 2, 0.1, seed=3).weight)


def test_a_table_gives_means_spreads_and_paired_differences(capsys, monkeypatch, tmp_path):
    scores = {"a": (0.01, [1.0, 2.0, 3.0]), "b": (0.1, [2.0, 4.0, 3.0])}
    monkeypatch.setattr(twins, "tuned", lambda problem, network, dim, results: scores[network])
    twins.report(Scale(), twins.Results(tmp_path / "none.csv"))
    rows = capsys.readouterr().out.splitlines()
    assert "| 2 | a | 2.00 ± 1.00 |  | 0.01 |" in rows
    # differences 1, 2, 0: their deviation is 1, and its standard error 1 / sqrt(3)
    assert "| 2 | b | 3.00 ± 1.00 | +1.00 (0.58) | 0.1 |" in rows
    assert len([row for row in rows if row.startswith("|")]) == 2 + 2 * len(twins.DIMS)


@pytest.mark.parametrize("name", [name for name in twins.HEADS if "clipped" in name])
def test_a_flat_control_has_the_clip_and_no_geometry(name):
    """Beyond the clip the logits do not grow; within it they are those of a linear map."""
    head = nn.Sequential(*twins.HEADS[name](3))
    if name == "MLR, hyperboloid, not clipped":
        assert not torch.allclose(head(torch.full((1, 3), 5.0)), head(torch.full((1, 3), 50.0)))
        return
    near, far = torch.full((1, 3), 0.5), torch.full((1, 3), 5.0)
    torch.testing.assert_close(head(far), head(10 * far))
    torch.testing.assert_close(head(near) - head(0 * near), 2 * (head(near / 2) - head(0 * near)))


@pytest.mark.data
@pytest.mark.parametrize("kind", [twins.Fashion, twins.Cora])
def test_twins_differ_in_geometry_only(kind, data_root, monkeypatch):
    monkeypatch.setenv("FEDBOLIC_DATA", str(data_root))
    problem = kind()
    sizes = {}
    for network in problem.networks:
        model = problem.build(network, 4)
        sizes[network] = sum(value.numel() for value in model.parameters())
        next(problem.losses(torch.Generator()))(model).backward()
        assert all(value.grad is not None for value in model.parameters())
        assert 0 <= problem.accuracy(model, "validation") <= 100
    without_bias = {name for name in sizes if "Prototype" in name}
    reference = sizes.pop(problem.networks[0])
    for name, size in sizes.items():
        time_columns = 2 * 4 if name == "Lorentz GCN" else 0
        assert size - reference == time_columns - 10 * (name in without_bias)


FAMILIAR = torch.tensor([[30.0, 0.0], [0.0, 40.0]])
FOREIGN = torch.tensor([[3.0, 4.0], [8.0, 6.0]])


def network(*head):
    """A trained network, so without gradients, whose features are its inputs."""
    return nn.Sequential(nn.Identity(), *head).requires_grad_(False)


def test_a_hard_clip_hides_how_long_features_were():
    """Lengths 30 and 40 against 5 and 10: all beyond the clip, hence at one distance."""
    model = network(ToManifold(Lorentz()), MLR(Lorentz(), 2, 3))
    assert twins.areas(model, FAMILIAR, FOREIGN)["length"] == 100
    distances = dict(twins.scores(model, torch.cat([FAMILIAR, FOREIGN])))
    torch.testing.assert_close(distances["distance of the point"], torch.full((4,), 2.3))


def test_without_a_bound_the_distance_is_the_length():
    model = network(*twins.HEADS["PrototypeHead"](2))
    areas = twins.areas(model, FAMILIAR, FOREIGN)
    assert areas["distance of the point"] == areas["length"] == 100


def test_the_area_is_the_share_of_pairs_in_order():
    """Of four pairs of lengths, 30 and 4 against 5 and 3, three are in order."""
    model = network(nn.Linear(2, 3))
    familiar, foreign = torch.tensor([[30.0, 0], [4, 0]]), torch.tensor([[5.0, 0], [0, 3]])
    assert twins.areas(model, familiar, foreign)["length"] == 75
