"""Reconstruction of hierarchies in few dimensions by this library, geoopt and torch.

python -m benchmarks.hierarchies --root DATA [--only mammals] [--dims 5] [--rows ...]

Each figure is the mean and the standard deviation over seeds. Every row tries four settings on a
seed that is not reported and keeps the one with the best MAP; all pairs train and all are ranked.
"""

import csv
import math
import statistics
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

import torch

from benchmarks.hierarchy_rows import PLAIN, ROWS, Setting, Training, train
from benchmarks.script import parser
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

GOALS = {"MAP": 0.95, "mean rank": 1.5, "CPU seconds": 10.0}
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
class Trial:
    """A training run, as a line of the file of results."""

    name: str
    dim: int
    dtype: str
    row: str
    lr: float
    restart: int
    seed: int


@dataclass(frozen=True)
class TrialScores:
    """Scores of a trial, as the rest of its line."""

    mean_rank: float
    mean_average_precision: float
    loss: float
    seconds: float


class Results:
    """Scores of trials, kept in a file so that an interrupted run resumes.

    Args:
        file: CSV file; lines in it are not computed again, new ones are appended.
        hierarchies: Hierarchies by the name of their problem.
        training: Settings of the training.
    """

    def __init__(
        self,
        file: Path,
        hierarchies: dict[str, Hierarchy],
        *,
        training: Training = Training(),  # noqa: B008  (frozen)
    ) -> None:
        self.file, self.hierarchies, self.training = file, hierarchies, training
        self.known = read_results(file)

    def __getitem__(self, trial: Trial) -> TrialScores:
        """Scores of a trial, computed now if the file lacks them."""
        if trial not in self.known:
            self.known[trial] = self._run(trial)
            is_new = not self.file.exists()
            with self.file.open("a", newline="") as lines:
                writer = csv.writer(lines)
                if is_new:
                    writer.writerow(f.name for kind in (Trial, TrialScores) for f in fields(kind))
                writer.writerow((*astuple(trial), *astuple(self.known[trial])))
        return self.known[trial]

    def _run(self, trial: Trial) -> TrialScores:
        hierarchy = self.hierarchies[trial.name]
        trained = train(
            trial.row,
            hierarchy,
            dim=trial.dim,
            setting=Setting(trial.lr, trial.restart),
            seed=trial.seed,
            dtype=getattr(torch, trial.dtype),
            training=self.training,
        )
        scores = trained.scores(hierarchy)
        found = scores.mean_rank, scores.mean_average_precision
        return TrialScores(*found, trained.loss, trained.seconds)


def read_results(file: Path) -> dict[Trial, TrialScores]:
    """Scores in a file of results; an empty dict if there is no file."""
    if not file.exists():
        return {}
    with file.open(newline="") as lines:
        found = {}
        for name, dim, dtype, row, lr, restart, seed, *scores in list(csv.reader(lines))[1:]:
            trial = Trial(name, int(dim), dtype, row, float(lr), int(restart), int(seed))
            found[trial] = TrialScores(*map(float, scores))
    return found


def chosen(results: Results, problem: Problem, row: str) -> Setting:
    """Settings with the best MAP on the seed ``CHOOSING``; diverged runs come last."""

    def precision(setting: Setting) -> float:
        score = results[trial_of(problem, row, setting, CHOOSING)].mean_average_precision
        return -1.0 if math.isnan(score) else score

    return max(ROWS[row][1].tries, key=precision)


def trial_of(problem: Problem, row: str, setting: Setting, seed: int) -> Trial:
    """A training run of a problem."""
    of = problem.name, problem.dim, problem.dtype
    return Trial(*of, row, setting.lr, setting.restart, seed)


def spread(values: Iterable[float], digits: int) -> str:
    """Mean and standard deviation, and the number of runs that diverged."""
    listed = [*values]
    finite = [value for value in listed if math.isfinite(value)]
    lost = f" ({len(listed) - len(finite)} of {len(listed)} NaN)" if finite != listed else ""
    if not finite:
        return "NaN"
    deviation = f" ± {statistics.stdev(finite):.{digits}f}" if len(finite) > 1 else ""
    return f"{statistics.mean(finite):.{digits}f}{deviation}{lost}"


def report(results: Results, problem: Problem) -> dict[str, list[TrialScores]]:
    """Print the table of a problem, each row as soon as it is computed; return its scores."""
    print(f"\n{problem.title}\n\n| row | step size | restart | mean rank | MAP | CPU s |")
    print("|---|---|---|---|---|---|", flush=True)
    found = {}
    for row in problem.rows:
        setting = chosen(results, problem, row)
        scores = [results[trial_of(problem, row, setting, seed)] for seed in range(problem.seeds)]
        rank = spread((s.mean_rank for s in scores), 2)
        precision = spread((s.mean_average_precision for s in scores), 3)
        seconds = spread((s.seconds for s in scores), 1)
        figures = f"{setting.lr} | {setting.restart or ''} | {rank} | {precision} | {seconds}"
        print(f"| {row} | {figures} |", flush=True)
        found[row] = scores
    return found


def verdict(problem: Problem, found: dict[str, list[TrialScores]]) -> list[str]:
    """Goals of a problem, and whether they are met; none for most problems."""
    if problem.name != "mammals" or problem.dtype != "float32" or OURS not in found:
        return []

    def mean(row: str, name: str) -> float:
        return statistics.mean(getattr(scores, name) for scores in found[row])

    precision = mean(OURS, "mean_average_precision")
    if problem.dim == 5:
        rank, seconds = mean(OURS, "mean_rank"), mean(OURS, "seconds")
        return [
            _goal("MAP", precision, GOALS["MAP"], met=precision >= GOALS["MAP"]),
            _goal("mean rank", rank, GOALS["mean rank"], met=rank <= GOALS["mean rank"]),
            _goal(
                "CPU seconds", seconds, GOALS["CPU seconds"], met=seconds <= GOALS["CPU seconds"]
            ),
        ]
    if problem.dim == 2:
        peers = [mean(row, "mean_average_precision") for row in found if row.startswith("geoopt")]
        ratios = [precision / peer for peer in peers if math.isfinite(peer)]
        if ratios:
            times = min(ratios)
            met = times >= TIMES_GEOOPT
            return [_goal("MAP over the best of geoopt", times, TIMES_GEOOPT, met=met)]
    return []


def _goal(name: str, value: float, goal: float, *, met: bool) -> str:
    return f"E2 {name} of {OURS}: {value:.3f}, goal {goal}: {'met' if met else 'MISSED'}"


def main() -> None:
    """Train all rows and print the tables."""
    args = parser(__doc__, "hierarchies.csv")
    args.add_argument("--root", type=Path, help="data folder; downloaded without")
    args.add_argument("--only", choices=("mammals", "tree"), nargs="+", help="hierarchies")
    args.add_argument("--dims", type=int, nargs="+", help="dimensions")
    args.add_argument("--dtypes", choices=("float32", "float64"), nargs="+", help="precisions")
    args.add_argument("--rows", choices=ROWS, nargs="+", default=[*ROWS], help="rows")
    args.add_argument("--seeds", type=int, help="seeds of every row, from 0")
    given = args.parse_args()
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
    results = Results(given.results, {name: read[name]() for name in {p.name for p in problems}})
    for problem in problems:
        for line in verdict(problem, report(results, problem)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
