"""The default channels of FlyNNClassifier, chosen by a rule on the tables of the FlyNN paper.

FEDBOLIC_DATA=FOLDER python -m benchmarks.channels --config configs/flynn/channels.yaml

The rule uses the ten folds of Table 2 for every table. In every fold, each kind of channels gets
the best of the same four settings by leaving one out on the nine training folds: raw features or
z-scores of the training folds, rows of a tenth or of three tenths of the values. Its accuracy is
the mean over test folds. The default is the kind with the least mean rank over tables, where equal
accuracies share their ranks; of equal mean ranks, the first of plain, signed, on-off wins.
"""

import csv
import itertools
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from scipy import stats
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from benchmarks.nearest import paired, raw_task
from benchmarks.nearest_rows import Task
from fedbolic.run.configuration import build
from flynn import bloom
from flynn.channels import Channels, channel_signs, width
from flynn.fly_hash import connections, fly_hash

KINDS: tuple[Channels, ...] = get_args(Channels)
SCALINGS = ("none", "standard")
SHARES = (0.1, 0.3)
"""Share of the values that a row adds up; with the two scalings, these are the four settings."""

ROWS_PER_FEATURE, ACTIVE, DECAY = 256, 32, 0.5
"""Other defaults of the estimator, the same length of hashes for every kind."""

Figures = dict[str, float]
Picks = tuple[float, float]
"""Accuracy by leaving one out on the training folds, and accuracy on the test fold."""


def choose(sets: list[str], seed: int = 0, results: Path = Path("channels.csv")) -> None:
    """Print the accuracy of all channels and of kNN on every table, and the choice of the rule.

    Args:
        sets: Names of data sets, as in Table 2.
        seed: Seed of the hash and of its signs.
        results: File of figures; data sets found in it are skipped, and new figures are appended.
    """
    torch.set_num_threads(1)
    done = _read(results)
    print(f"{'':<8}" + "".join(f"{name:>12}" for name in (*KINDS, "kNN", "kNN z")))
    for name in sets:
        if name not in done:
            done[name] = figures(raw_task(name), seed)
            with results.open("a", newline="") as lines:
                csv.writer(lines).writerows([name, *pair] for pair in done[name].items())
        cells = "".join(f"{done[name][key]:>12.3f}" for key in (*KINDS, "kNN", "kNN z"))
        print(f"{name:<8}{cells}{done[name]['seconds']:>8.0f} s", flush=True)
    verdict([done[name] for name in sets])


def figures(task: Task, seed: int) -> Figures:
    """The accuracy of every kind of channels by the rule, and with each scaling alone.

    Args:
        task: The data, with raw features.
        seed: Seed of the hash.
    """
    start = time.process_time()
    found: dict[str, list[float]] = {}
    whole = {
        (kind, share): _winners(task.x, kind, share, seed)
        for kind, share in itertools.product(KINDS, SHARES)
    }
    for train, test in task.splits():
        scaled = StandardScaler().fit(task.x[train]).transform(task.x)
        for kind in KINDS:
            picks = {
                scaling: [
                    _accuracies(
                        task,
                        whole[kind, share]
                        if scaling == "none"
                        else _winners(np.asarray(scaled), kind, share, seed),
                        train,
                        test,
                    )
                    for share in SHARES
                ]
                for scaling in SCALINGS
            }
            found.setdefault(kind, []).append(_best([p for of in picks.values() for p in of]))
            for scaling, of in picks.items():
                found.setdefault(f"{kind} {scaling}", []).append(_best(of))
        for name, x in (("kNN", task.x), ("kNN z", np.asarray(scaled))):
            model = KNeighborsClassifier().fit(x[train], task.y[train])
            right = model.predict(x[test]) == task.y[test]
            found.setdefault(name, []).append(float(right.mean()))
    means = {name: statistics.fmean(values) for name, values in found.items()}
    return {**means, "seconds": time.process_time() - start}


def _winners(x: np.ndarray, kind: Channels, share: float, seed: int) -> torch.Tensor:
    d = x.shape[1]
    values = width(kind, d)
    fan_in = max(1, round(share * values))
    rows = connections(ROWS_PER_FEATURE * d, values, fan_in, seed)
    return fly_hash(torch.from_numpy(x), rows, ACTIVE, signs=channel_signs(kind, d, seed))


def _accuracies(task: Task, winners: torch.Tensor, train: np.ndarray, test: np.ndarray) -> Picks:
    labels = torch.from_numpy(task.y)
    inside, outside = torch.from_numpy(train), torch.from_numpy(test)
    sizes = {"dim": ROWS_PER_FEATURE * task.x.shape[1], "num_classes": task.num_classes}
    own = labels[inside]
    counts = bloom.count(winners[inside], own, **sizes)
    left = bloom.log_scores(counts, winners[inside], DECAY, left_out=own)
    asked = bloom.log_scores(counts, winners[outside], DECAY)
    right = bloom.predictions(left) == own, bloom.predictions(asked) == labels[outside]
    return float(right[0].double().mean()), float(right[1].double().mean())


def _best(picks: Sequence[Picks]) -> float:
    """The test accuracy of the best setting on training folds; the first of equal ones."""
    return max(picks, key=lambda pick: pick[0])[1]


def mean_ranks(found: Sequence[Figures], names: Sequence[str]) -> list[float]:
    """The mean rank of each name over data sets; 1 is the best, and equal accuracies share ranks.

    Args:
        found: Accuracies by name, for every data set.
        names: Names to rank.

    Example:
        >>> mean_ranks([{"a": 0.5, "b": 0.5}, {"a": 0.2, "b": 0.9}], ["a", "b"])
        [1.75, 1.25]
    """
    ranks = [stats.rankdata([-one[name] for name in names]) for one in found]
    return np.mean(ranks, axis=0).tolist()


def verdict(found: Sequence[Figures]) -> None:
    """Print mean ranks and accuracies by the rule, and for information, with each scaling alone.

    Args:
        found: Figures of every data set.
    """
    for end in ("", *(f" {name}" for name in SCALINGS)):
        title = f"scaling{end}" if end else "by the rule"
        names = [kind + end for kind in KINDS]
        ranks = mean_ranks(found, names)
        cells = ", ".join(
            f"{kind} {rank:.2f} ({statistics.fmean(one[name] for one in found):.3f})"
            for kind, name, rank in zip(KINDS, names, ranks, strict=True)
        )
        print(f"{title}: mean rank (mean accuracy): {cells}")
        for kind, name in zip(KINDS[1:], names[1:], strict=True):
            gains = [one[name] - one[names[0]] for one in found]
            wins, ties = sum(g > 0 for g in gains), sum(g == 0 for g in gains)
            record = f"{wins}/{ties}/{len(gains) - wins - ties}"
            print(f"  {kind} over plain: W/T/L {record}; t-test, Wilcoxon {paired(gains)}")
    ranks = mean_ranks(found, KINDS)
    print(f"the default is {KINDS[ranks.index(min(ranks))]}")


def _read(file: Path) -> dict[str, Figures]:
    """Figures of the data sets that have been computed."""
    found: dict[str, Figures] = {}
    if file.exists():
        with file.open(newline="") as lines:
            for name, key, value in csv.reader(lines):
                found.setdefault(name, {})[key] = float(value)
    return found


if __name__ == "__main__":
    choose(**build(choose, sys.argv[1:]))
