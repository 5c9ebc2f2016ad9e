"""Mean rank and MAP of hierarchies in few dimensions, by this library, geoopt and torch.

    python -m benchmarks.hierarchies --root DATA [--only mammals] [--dims 5] [--rows ...]

Each figure is the mean and the standard deviation over seeds. Every row tries four settings on a
seed that is not reported and keeps the one with the best MAP; all pairs train and all are ranked.
With ``--figure``, WordNet's mammals drawn in the plane; with ``--steps``, milliseconds of a step on
a tall table of embeddings with dense and sparse rows.

Takes 30 minutes; the figure and the steps take 1 minute.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from benchmarks.hierarchy_rows import PLAIN, ROWS, Setting, Training, train
from benchmarks.results import Figures, Results
from benchmarks.script import parser
from benchmarks.sparse_rows import report_steps
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
    Problem("tree", 2, rows=OTHERS),
    Problem("mammals", 10, rows=OTHERS),
)


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


def main() -> None:
    """Train all rows and print the tables."""
    args = parser(__doc__, "hierarchies.csv")
    args.add_argument("--root", type=Path, help="data folder; downloaded without")
    args.add_argument("--only", choices=("mammals", "tree"), nargs="+", help="hierarchies")
    args.add_argument("--dims", type=int, nargs="+", help="dimensions")
    args.add_argument("--dtypes", choices=("float32", "float64"), nargs="+", help="precisions")
    args.add_argument("--rows", choices=ROWS, nargs="+", default=[*ROWS], help="rows")
    args.add_argument("--seeds", type=int, help="seeds of every row, from 0")
    args.add_argument("--steps", action="store_true", help="cost of a step on a tall table instead")
    args.add_argument("--figure", type=Path, help="draw mammals into this file instead")
    given = args.parse_args()
    if given.steps:
        report_steps()
        return
    if given.figure:
        from benchmarks.hierarchy_figure import draw_figure

        draw_figure(Mammals().read(given.root, download=True), given.figure)
        return
    read = {
        "mammals": lambda: Mammals().read(given.root, download=True),
        "tree": lambda: balanced_tree(2, 8),
    }
    problems = [
        replace(
            problem,
            seeds=given.seeds or problem.seeds,
            rows=tuple(row for row in problem.rows if row in given.rows),
        )
        for problem in PROBLEMS
        if (given.only is None or problem.name in given.only)
        and (given.dims is None or problem.dim in given.dims)
        and (given.dtypes is None or problem.dtype in given.dtypes)
    ]
    known = Results(given.results, quiet=True)
    trials = Trials(known, {name: read[name]() for name in {p.name for p in problems}})
    for problem in problems:
        reached = goals(problem, report(trials, problem))
        if reached:
            print(f"\n{goal_table(reached)}", flush=True)


if __name__ == "__main__":
    main()
