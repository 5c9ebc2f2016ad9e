"""Mean rank and MAP of hierarchies in few dimensions, by this library, geoopt and torch."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from benchmarks.hierarchies.rows import PLAIN, ROWS, Setting, Training, train
from benchmarks.results import Figures, Results
from benchmarks.table import Goal, goal_table, head, line, spread
from fedbolic.data import Hierarchy, Mammals, balanced_tree

CHOOSING = 100
"""The seed that chooses the settings of a row."""

OURS = "ours, tangents, torch Adam; cooled"
OTHERS = tuple(row for row in ROWS if "points of" not in row and row != "geoopt, hyperboloid")
"""Rows of all problems but the first, which is the whole comparison."""

CURVED = tuple(
    row for row, (_, recipe) in ROWS.items() if recipe is PLAIN and "Euclidean" not in row
)
"""Rows in float64."""

GOALS: dict[str, tuple[Literal[">=", "<="], float]] = {
    "MAP": (">=", 0.95),
    "mean rank": ("<=", 1.5),
    "CPU seconds": ("<=", 10.0),
}
"""Goals of ``OURS`` for mammals in 5 dimensions and float32."""

TIMES_GEOOPT = 1.5
"""Goal of the MAP of ``OURS`` over the best of geoopt for mammals in 2 dimensions."""


@dataclass(frozen=True)
class Problem:
    """A table: a hierarchy, its number of dimensions and the precision."""

    name: str
    dim: int
    dtype: str = "float32"
    seeds: int = 3
    rows: tuple[str, ...] = tuple(ROWS)

    @property
    def title(self) -> str:
        """The problem in words."""
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{self.name}, {self.dim} dimensions, {self.dtype}, {seeds}"


PROBLEMS = (
    Problem("mammals", 5, seeds=5),
    Problem("mammals", 2, rows=OTHERS),
    Problem("tree", 5, rows=OTHERS),
    Problem("mammals", 5, "float64", seeds=1, rows=CURVED),
)


SHORT = tuple(replace(each, rows=OTHERS, seeds=3) for each in PROBLEMS[:1])
"""Problems and rows that a short run has."""


@dataclass(frozen=True)
class Trials:
    """Training runs, whose figures are kept in a file."""

    results: Results
    hierarchies: Mapping[str, Hierarchy]
    training: Training = Training()  # noqa: RUF009  (frozen)

    def figures(self, problem: Problem, row: str, setting: Setting, seed: int) -> Figures:
        """Figures of a run, which is trained unless the file has it."""
        of = problem.name, str(problem.dim), problem.dtype
        key = (*of, row, str(setting.lr), str(setting.restart), str(seed))
        return self.results.add(key, self.run, problem, row, setting, seed)

    def run(self, problem: Problem, row: str, setting: Setting, seed: int) -> Figures:
        """Train a row and score it."""
        hierarchy, dtype = self.hierarchies[problem.name], getattr(torch, problem.dtype)
        settings = {"setting": setting, "seed": seed, "dtype": dtype, "training": self.training}
        trained = train(row, hierarchy, dim=problem.dim, **settings)
        scores = trained.scores(hierarchy)
        found = {"mean rank": scores.mean_rank, "MAP": scores.mean_average_precision}
        return {**found, "CPU seconds": trained.seconds}

    def chosen(self, problem: Problem, row: str) -> Setting:
        """Settings with the best MAP on the seed ``CHOOSING``; diverged runs come last."""

        def precision(setting: Setting) -> float:
            score = self.figures(problem, row, setting, CHOOSING)["MAP"]
            return -1.0 if math.isnan(score) else score

        return max(ROWS[row][1].tries, key=precision)


def report(trials: Trials, problem: Problem) -> dict[str, list[Figures]]:
    """Print the table of a problem, each row as soon as it is computed; return its figures."""
    columns = "row", "step size", "restart", "mean rank", "MAP", "CPU s"
    print(f"\n{problem.title}\n\n{head(*columns)}", flush=True)
    found = {}
    for row in problem.rows:
        setting = trials.chosen(problem, row)
        found[row] = [trials.figures(problem, row, setting, i) for i in range(problem.seeds)]
        cells = [
            spread((of[name] for of in found[row]), digits)
            for name, digits in (("mean rank", 2), ("MAP", 3), ("CPU seconds", 1))
        ]
        print(line(row, setting.lr, setting.restart or "", *cells), flush=True)
    return found


def goals(problem: Problem, found: Mapping[str, list[Figures]]) -> list[Goal]:
    """Goals of a problem; none for most problems."""
    if problem.name != "mammals" or problem.dtype != "float32" or OURS not in found:
        return []

    def mean(row: str, name: str = "MAP") -> float:
        return statistics.mean(of[name] for of in found[row])

    if problem.dim == 5:
        return [
            Goal("E2", f"{name} of {OURS}", sense, bound, mean(OURS, name))
            for name, (sense, bound) in GOALS.items()
        ]
    peers = [mean(row) for row in found if row.startswith("geoopt")]
    ratios = [mean(OURS) / peer for peer in peers if math.isfinite(peer)]
    if problem.dim == 2 and ratios:
        return [Goal("E2", "MAP over the best of geoopt", ">=", TIMES_GEOOPT, min(ratios))]
    return []


def report_all(problems: Sequence[Problem], results: Results, root: Path | None) -> None:
    """Print the tables of some problems, with goals.

    Args:
        problems: The problems.
        results: File of the figures.
        root: Folder of the data; downloaded without.
    """
    trees = {
        "mammals": lambda: Mammals().read(root, download=True),
        "tree": lambda: balanced_tree(2, 8),
    }
    trials = Trials(results, {name: trees[name]() for name in {p.name for p in problems}})
    for problem in problems:
        reached = goals(problem, report(trials, problem))
        if reached:
            print(f"\n{goal_table(reached)}", flush=True)
