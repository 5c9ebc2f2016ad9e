"""Rows of the benchmark train alike, learn and resume; training follows the written algorithm."""

import math

import pytest
import torch

from benchmarks.hierarchies import peers as hierarchy_peers
from benchmarks.hierarchies.peers import Problem, Trials
from benchmarks.hierarchies.rows import ROWS, Setting, Training, initial, train
from benchmarks.results import Results
from benchmarks.table import spread
from fedbolic.core.rng import Rng
from fedbolic.data import balanced_tree
from fedbolic.nn import rank_and_map

TREE = balanced_tree(2, 3)
OURS = "ours, tangents, torch Adam; cooled"


def transcribed(hierarchy, *, dim, seed, training, setting):
    """Tangents, loss, schedule, Adam and restarts of the page, pair by pair."""
    n, lr, steps, made = len(hierarchy), setting.lr, training.num_steps(hierarchy), 0
    related = set(map(tuple, hierarchy.pairs.tolist()))
    w = initial(n, dim, seed=seed, dtype=torch.float64).requires_grad_()
    mean = square = torch.zeros_like(w)
    order, draws = (Rng(seed).at(name).generator() for name in ("order", "negatives"))
    for _ in range(training.epochs):
        shuffled = hierarchy.pairs[torch.randperm(hierarchy.num_pairs, generator=order)]
        for batch in shuffled.split(training.batch_size):
            drawn = torch.randint(n, (len(batch), training.num_negatives), generator=draws)
            x = torch.tanh(w.norm(dim=1, keepdim=True) / 2) * w / w.norm(dim=1, keepdim=True)
            losses = []
            for (u, v), row in zip(batch.tolist(), drawn.tolist(), strict=True):
                negatives = [k for k in row if k != u and (u, k) not in related]
                d = torch.stack([distance(x[u], x[k]) for k in (v, *negatives)])
                losses.append(-torch.log_softmax(-d, 0)[0])
            (gradient,) = torch.autograd.grad(torch.stack(losses).mean(), w)
            if made % setting.restart == 0:
                mean, square, since = torch.zeros_like(w), torch.zeros_like(w), 0
            since += 1
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.999 * square + 0.001 * gradient**2
            left = (steps - made) / (0.3 * steps)
            multiplier = 0.1 if made < 0.06 * steps else min(1, max(0.02, left))
            root = (square / (1 - 0.999**since)).sqrt() + 1e-8
            step = lr * multiplier * mean / (1 - 0.9**since) / root
            w = (w - step).detach().requires_grad_()
            made += 1
    return torch.tanh(w.norm(dim=1, keepdim=True) / 2) * w / w.norm(dim=1, keepdim=True)


def distance(x, y):
    """Length of the geodesic of the unit ball (Nickel and Kiela 2017, Eq. (1))."""
    gaps = (1 - x.square().sum()) * (1 - y.square().sum())
    return torch.acosh(1 + 2 * (x - y).square().sum() / gaps)


def test_training_is_the_written_algorithm():
    training, setting = Training(epochs=2, batch_size=9, num_negatives=4), Setting(0.2, 3)
    trained = train(
        OURS, TREE, setting=setting, dim=2, seed=1, dtype=torch.float64, training=training
    )
    expected = transcribed(TREE, dim=2, seed=1, training=training, setting=setting)
    torch.testing.assert_close(trained.table.points().detach(), expected, rtol=1e-6, atol=1e-9)


def ranked(points, dist):
    return rank_and_map(
        lambda rows: dist(points[rows].unsqueeze(1), points), TREE.pairs, num_nodes=len(TREE)
    ).mean_average_precision


@pytest.mark.parametrize("row", ROWS)
def test_every_row_learns_a_tree(row):
    training = Training(epochs=25, batch_size=12, num_negatives=8)
    setting = ROWS[row][1].tries[-2]
    trained = train(row, TREE, setting=setting, dim=5, seed=0, dtype=torch.float64,
                    training=training)  # fmt: skip
    start = initial(len(TREE), 5, seed=0, dtype=torch.float64)
    chance = ranked(start, lambda x, y: (x - y).norm(dim=-1))
    assert trained.scores(TREE).mean_average_precision > chance + 0.25
    assert trained.seconds > 0


def test_rows_of_a_seed_start_at_the_same_tangents():
    training = Training(epochs=1, batch_size=TREE.num_pairs, num_negatives=4)
    losses = [
        train(row, TREE, setting=Setting(0.0), dim=3, seed=4, dtype=torch.float64,
              training=training).loss
        for row in ROWS
    ]  # fmt: skip
    # points near the origin are 2e-3 apart at most, so one negative in five has a fifth of the mass
    assert losses == pytest.approx([losses[0]] * len(losses), abs=0.02)


def test_diverged_training_is_scored_as_nan():
    training = Training(epochs=3, batch_size=12, num_negatives=4)
    setting = Setting(math.inf)
    trained = train("Euclidean, torch Adam", TREE, setting=setting, dim=2, seed=0,
                    training=training)  # fmt: skip
    scores = trained.scores(TREE)
    assert math.isnan(scores.mean_rank)
    assert math.isnan(scores.mean_average_precision)


def test_every_row_has_as_many_tries():
    assert {len(set(recipe.tries)) for _, recipe in ROWS.values()} == {4}


@pytest.fixture
def results(tmp_path):
    """Results of a small tree, trained for a moment."""
    training = Training(epochs=1, batch_size=20, num_negatives=2)

    def opened():
        return Trials(Results(tmp_path / "a.csv", quiet=True), {"tree": TREE}, training)

    return opened


PROBLEM = Problem("tree", 2, seeds=2, rows=("Euclidean, torch Adam", OURS))


def test_settings_are_chosen_on_a_seed_that_is_not_reported(results, monkeypatch):
    asked = []

    def run(self, problem, row, setting, seed):
        asked.append((row, setting, seed))
        score = 0.5 if setting.lr == 0.03 else math.nan
        return {"mean rank": 1.0, "MAP": score, "CPU seconds": 2.0}

    monkeypatch.setattr(Trials, "run", run)
    found = hierarchy_peers.report(results(), PROBLEM)
    reported = [(s, seed) for _, s, seed in asked if seed != hierarchy_peers.CHOOSING]
    for row in PROBLEM.rows:
        tried = [s for of, s, seed in asked if of == row and seed == hierarchy_peers.CHOOSING]
        assert tried == list(ROWS[row][1].tries)
        assert len(found[row]) == 2
    assert {setting.lr for setting, _ in reported} == {0.03}
    assert {seed for _, seed in reported} == {0, 1}


def test_an_interrupted_run_resumes_without_training_again(results, monkeypatch, capsys):
    hierarchy_peers.report(results(), PROBLEM)
    first = capsys.readouterr().out
    file = results().results.file
    lines = file.read_text().splitlines()
    assert len(lines) == len(PROBLEM.rows) * (4 + 2) * 4
    file.write_text("\n".join(lines[: -3 * 4]) + "\n")
    done, run = [], Trials.run
    monkeypatch.setattr(Trials, "run", lambda self, *of: (done.append(of), run(self, *of))[1])
    hierarchy_peers.report(results(), PROBLEM)
    assert len(done) == 3
    again = capsys.readouterr().out
    cut = [line.rsplit("|", 2)[0] for text in (first, again) for line in text.splitlines()]
    assert cut[: len(cut) // 2] == cut[len(cut) // 2 :]  # all but the CPU seconds


def test_spreads_leave_out_and_count_diverged_runs():
    assert spread([1.0, 2.0, 3.0], 2) == "2.00 ± 1.00"
    assert spread([1.0, math.nan, 3.0], 1) == "2.0 ± 1.4 (1 of 3 NaN)"
    assert spread([math.nan], 1) == "NaN"


def scored(precision, rank=1.2, seconds=4.0):
    return [{"mean rank": rank, "MAP": precision, "CPU seconds": seconds}] * 2


def test_goals_are_judged_by_the_means():
    met = hierarchy_peers.goals(Problem("mammals", 5), {OURS: scored(0.96)})
    assert [goal.verdict for goal in met] == ["met"] * 3
    missed = hierarchy_peers.goals(Problem("mammals", 5), {OURS: scored(0.94, 1.6, 11.0)})
    assert [goal.verdict for goal in missed] == ["not met"] * 3
    peers = {"geoopt, ball": scored(0.2), "geoopt, ball; cooled": scored(0.3)}
    (twice,) = hierarchy_peers.goals(Problem("mammals", 2), {OURS: scored(0.6), **peers})
    assert (twice.figure, twice.verdict) == (pytest.approx(2.0), "met")  # over the better one
    assert hierarchy_peers.goals(Problem("tree", 5), {OURS: scored(0.6)}) == []
