"""The FlyNN paper's comparison: Tables 1, 2 and 9, from a preset of data sets, and small tables.

    FEDBOLIC_DATA=FOLDER python -m benchmarks.nearest --config configs/flynn/table2.yaml
    FEDBOLIC_DATA=FOLDER python -m benchmarks.nearest --small [--choice FILE]

The figures of every data set of a preset are appended to a file and not computed again.

With ``--small``, FlyNNClassifier and kNN on small tables. With ``--choice FILE``, the classifier as
it comes, which chooses its scaling and channels on the training folds, beside the best of its nine
settings on the test folds and a kNN that chooses among twelve by leaving one out, too.

Takes 6 to 31 minutes for a preset, 1 for small tables, 10 with ``--choice``.
"""

import itertools
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from scipy import stats

from benchmarks.nearest import small_tables
from benchmarks.nearest.rows import ROW_OF, SYNTHETIC, row, synthetic, task
from benchmarks.results import Figures, Results
from benchmarks.script import parser
from benchmarks.table import head, line
from fedbolic.core.published import PublishedNumber, read_published
from fedbolic.run.configuration import build
from flynn.channels import Channels

ROWS = ("kNN", "1NN", "SBFC", "FlyNN", "FlyNN others")
GRADIENTS = ("LR", "MLP")


def compare(
    sets: list[str],
    draws: int = 1,
    most: int = 2048,
    lifts: int = 5,
    channels: tuple[Channels, ...] = ("plain",),
    features: Literal["unit rows", "z-scores"] = "unit rows",
    planes: bool = True,
    gradients: bool = False,
    published: Path | None = None,
    results: Path = Path("nearest.csv"),
) -> None:
    """Print the tuned rows on each of some data sets, and the paper's summary of them.

    Args:
        sets: Names of data sets: "digits", a number of OpenML, or synthetic ones such as
            "real 1000 x 50" and "binary 1000 x 50".
        draws: Number of data sets of each synthetic kind.
        most: Largest ratio m / d of FlyNN.
        lifts: Number of other lifts for FlyNN's best setting.
        channels: Channels of FlyNN, each with its own search.
        features: Preprocessing of published tables: every example has length one, or every feature
            has mean 0 and standard deviation 1, over all examples and without their labels.
        planes: Include a row of SimHash.
        gradients: Include rows of one epoch of gradient descent.
        published: File of published figures to print next to ours.
        results: File of figures; data sets found in it are skipped, and new figures are appended.
    """
    torch.set_num_threads(1)
    done = Results(results, quiet=True)
    theirs = [] if published is None else read_published(published)
    search = {"most": most, "lifts": lifts, "channels": channels}
    settings = {**search, "planes": planes, "gradients": gradients, "seed": 0}
    made = [name for name in sets if SYNTHETIC.fullmatch(name)]
    for name in made:
        found = [
            done.add((name, str(draw)), lambda d=draw, n=name: row(synthetic(n, d), **settings))
            for draw in range(draws)
        ]
        summarise(name, found, theirs)
    others = [name for name in sets if name not in made]
    for name in others:
        done.add((name, "0"), lambda name=name: row(task(name, features), **settings))
        print(described(name, done.known[name, "0"]), flush=True)
    if others:
        comparison([done.known[name, "0"] for name in others], theirs)


def summarise(name: str, found: Sequence[Figures], theirs: Sequence[PublishedNumber]) -> None:
    """Print normalised accuracy on draws of one kind: mean and standard error, and paired tests."""
    seconds = statistics.fmean(one["seconds"] for one in found)
    accuracy = mean([one["kNN"] for one in found])
    print(
        f"\n{name}, {len(found)} data sets, {seconds:.0f} CPU s each; accuracy of kNN {accuracy}\n"
    )
    print(head("", "1 - a / a(kNN)", "published", "over kNN: t-test, Wilcoxon"))
    known = {one.row: one.value for one in theirs if one.setting == name}
    for key in ROWS[1:]:
        losses = [1 - one[key] / one["kNN"] for one in found]
        print(line(key, mean(losses), known.get(key, ""), paired(losses)), flush=True)


def mean(values: Sequence[float]) -> str:
    """Mean and standard error."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{statistics.fmean(values):.3f} ± {error:.3f}"


def paired(differences: Sequence[float]) -> str:
    """Two-sided p-values for a mean of zero, by the t-test and by Wilcoxon's test."""
    if len(set(differences)) < 2:  # no spread can be estimated
        return "-"
    # index 0 is the statistic, index 1 the p-value
    tests = stats.ttest_1samp(differences, 0), stats.wilcoxon(differences)
    t, wilcoxon = (float(np.asarray(test)[1]) for test in tests)
    return f"{t:.2g}, {wilcoxon:.2g}"


def described(name: str, one: Figures) -> str:
    """Figures of one data set: accuracies, and those of FlyNN's setting with other lifts."""
    cells = "".join(f"  {key} {one[key]:.4f}" for key in (*ours(one), *baselines(one)))
    others = "".join(
        f"  {key} other lifts {one[f'{key} others']:.4f} ± {one[f'{key} spread']:.4f}"
        for key in ours(one)
    )
    return f"{name:<8}{cells}{others}  {one['seconds']:.0f} s"


def ours(one: Figures) -> list[str]:
    """Names of FlyNN's rows, one per kind of channels."""
    return [name for name in ROW_OF.values() if name in one]


def baselines(one: Figures) -> list[str]:
    """Names of the baselines' rows."""
    return [name for name in ("kNN", "1NN", "SBFC", *GRADIENTS, "majority") if name in one]


def comparison(found: Sequence[Figures], theirs: Sequence[PublishedNumber]) -> None:
    """Print the paper's Table 2: wins, median gain and paired tests over data sets."""
    print(f"\n{head('', 'over', 'fraction', 'W/T/L', 'median %', 't-test, Wilcoxon')}")
    endings, rows = ("", " others"), ours(found[0])
    tried = [name + end for name in rows for end in endings]
    pairs = list(itertools.product(tried, baselines(found[0])))
    pairs += [(name + end, f"FlyNN{end}") for name in rows if name != "FlyNN" for end in endings]
    for mine, name in pairs:
        gains = [(one[mine] - one[name]) / one["kNN"] for one in found]
        wins, ties = sum(g > 0 for g in gains), sum(g == 0 for g in gains)
        record = f"{wins}/{ties}/{len(gains) - wins - ties}"
        median = 100 * statistics.median(gains)
        share = f"{wins / len(gains):.2f}"
        print(line(mine, name, share, record, f"{median:.2f}", paired(gains)))
    for name in dict.fromkeys(one.row for one in theirs):
        cells = [f"{one.column} {one.value}" for one in theirs if one.row == name]
        print(f"published, FlyNN over {name}: {', '.join(cells)}")


def main() -> None:
    """Compare a preset, or show small tables."""
    if "--small" not in sys.argv:
        compare(**build(compare, sys.argv[1:]))
        return
    args = parser(__doc__)
    args.add_argument("--small", action="store_true", help="small tables instead of a preset")
    args.add_argument("--lifts", type=int, default=5, help="draws of the lift and the signs")
    args.add_argument("--choice", type=Path, help="CSV file of the choice among nine settings")
    given = args.parse_args()
    if given.choice:
        small_tables.choice(given.choice)
    else:
        small_tables.by_scaling(given.lifts)


if __name__ == "__main__":
    main()
