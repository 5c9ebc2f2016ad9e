"""CPU seconds, memory and bits of FlyHash and its counts, beside a vectorised reference.

With ``--curves``, accuracy over the sizes of a hash: Appendix D.6 of the FlyNN paper.

Takes 1 minute, 2 with MNIST; the curves of digits take 2 minutes.
"""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.datasets import load_digits, make_classification
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from benchmarks.nearest.curves import draw_curves
from benchmarks.nearest.validation import fold_accuracies
from benchmarks.script import alone, parser
from benchmarks.table import Goal, goal_table, head, line, spread
from benchmarks.timing import held_mebibytes, interleaved, seconds
from fedbolic.data import MNIST
from fedbolic.data.tables.table import Table
from flynn import bloom
from flynn.channels import channel_signs
from flynn.fly_hash import connections, fixed_point, fly_hash, two_phases

GOAL_SECONDS = 8.0  # hash and counts of 60,000 images, one core
GOAL_GIGABYTES = 0.6  # peak resident memory of that process
GOAL_FOLDS = 0.15  # CPU seconds of a 10-fold cross-validation of one setting on digits
BATCH = 256

# the compiled code is timed, from the first call on
importlib.import_module("flynn.fly_hash")._added[0] = math.inf


@dataclass(frozen=True, eq=False)
class Case:
    """One configuration of the paper's Table 6, with its data.

    Args:
        x: Examples.
        y: Labels from 0.
        dim: Length of the hash.
        fan_in: Number of features in a row.
        active: Number of ones in a hash.
        goal: Least ratio of the reference's CPU seconds to ours.
        timed: Number of examples on which the reference is timed.
    """

    x: NDArray[np.floating] | NDArray[np.uint8]
    y: NDArray[np.int64]
    dim: int
    fan_in: int
    active: int
    goal: float
    timed: int


def cases(root: Path | None) -> dict[str, Case]:
    """Digits and synthetic data; with a data folder, also Letters and MNIST."""
    digits, numbers = (np.asarray(a) for a in load_digits(return_X_y=True))
    x, y = make_classification(
        10_000, 50, n_informative=50, n_redundant=0, n_classes=5, n_clusters_per_class=3,
        class_sep=1.2, random_state=0,
    )  # fmt: skip
    found = {
        "Digits": Case(digits, numbers.astype(np.int64), 16_384, 19, 32, 20, 1797),
        "synthetic": Case(np.asarray(x), np.array(y).astype(np.int64), 12_800, 15, 32, 20, 2000),
    }
    if root is not None:
        letters = Table(6).read_all(root, download=False)
        images = MNIST().read(root / "torchvision", download=False)
        pictures = images.x_train.flatten(1).numpy()
        found["Letters"] = Case(letters.x.numpy(), letters.y.numpy(), 23_152, 8, 221, 10, 2000)
        found["MNIST"] = Case(pictures, images.y_train.numpy(), 170_128, 19, 17, 60, 512)
    return found


def reference(case: Case, rows: NDArray[np.int32]) -> NDArray[np.int64]:
    """Counts as a careful user of numpy and scipy would compute them, in batches of 256."""
    x, y = case.x[: case.timed].astype(np.float64), case.y[: case.timed]
    starts = np.arange(len(rows) + 1) * case.fan_in
    shape = (len(rows), x.shape[1])
    matrix = csr_array((np.ones(rows.size), rows.ravel(), starts), shape=shape)
    counts = np.zeros((int(case.y.max()) + 1, len(rows)), dtype=np.int64)
    for start in range(0, len(x), BATCH):
        sums = matrix @ x[start : start + BATCH].T
        cut = len(rows) - case.active
        winners = np.argpartition(sums, cut, axis=0)[cut:].T
        np.add.at(counts, (y[start : start + BATCH, None], winners), 1)
    return counts


def ours(case: Case, rows: NDArray[np.int32], *, compiled: bool) -> torch.Tensor:
    """Counts of the same examples by our hash."""
    x, table = torch.from_numpy(case.x[: case.timed]), torch.from_numpy(rows)
    if compiled:
        winners = fly_hash(x, table, case.active)
    else:
        whole = [fixed_point(part, case.fan_in) for part in x.split(2048)]
        winners = torch.cat([two_phases(part, table, case.active) for part in whole])
    labels = torch.from_numpy(case.y[: case.timed])
    return bloom.count(winners, labels, dim=case.dim, num_classes=int(case.y.max()) + 1)


def on_off(case: Case, rows: NDArray[np.int32]) -> torch.Tensor:
    """Hashes of the same examples with ON-OFF channels."""
    signs = channel_signs("on-off", case.x.shape[1], seed=0)
    x = torch.from_numpy(case.x[: case.timed])
    return fly_hash(x, torch.from_numpy(rows), case.active, signs=signs)


def differing(case: Case, rows: NDArray[np.int32], num: int = 300) -> int:
    """Number of examples whose bits differ from those of sorted int64 sums."""
    whole = fixed_point(torch.from_numpy(case.x[:num]), case.fan_in)
    table, wrong = torch.from_numpy(rows), 0
    paths = (
        fly_hash(torch.from_numpy(case.x[:num]), table, case.active),
        two_phases(whole, table, case.active),
    )
    for i in range(num):
        sums = whole[i].numpy().astype(np.int64)[rows].sum(axis=1)
        expected = np.sort(np.argsort(-sums, kind="stable")[: case.active])
        wrong += any((path[i].numpy() != expected).any() for path in paths)
    return wrong


def ratios(found: dict[str, Case], repeats: int) -> None:
    """Print the times of the reference and of our code paths for each case, interleaved."""
    columns = "numba, times", "torch, times", "differ of 300"
    print(head("", "rows", "reference", "numba", "torch", "on-off", *columns))
    goals = []
    for name, case in found.items():
        rows, twice = (
            connections(case.dim, num * case.x.shape[1], case.fan_in, seed=0).numpy()
            for num in (1, 2)
        )
        ours(case, rows, compiled=True)  # compiles
        calls: dict[str, Callable] = {
            "reference": lambda c=case, r=rows: reference(c, r),
            "numba": lambda c=case, r=rows: ours(c, r, compiled=True),
            "torch": lambda c=case, r=rows: ours(c, r, compiled=False),
            "on-off": lambda c=case, r=twice: on_off(c, r),
        }
        taken = interleaved(calls, "cpu", rounds=repeats, least=0)
        least = {of: min(times) for of, times in taken.items()}
        fast, plain = (least["reference"] / least[of] for of in ("numba", "torch"))
        cells = (f"{seconds:.3f}" for seconds in least.values())
        wrong = differing(case, rows)
        print(line(name, case.timed, *cells, f"{fast:.0f}", f"{plain:.1f}", wrong), flush=True)
        goals.append(Goal("hash", f"{name}: numba, times the reference", ">=", case.goal, fast))
    print(f"\n{goal_table(goals)}")


def folds(repeats: int) -> None:
    """Print the CPU seconds of a 10-fold cross-validation of one setting, hash included."""
    x, y = load_digits(return_X_y=True)
    rows, labels = connections(16_384, 64, 19, seed=0), torch.from_numpy(y)
    splits = list(StratifiedKFold(10, shuffle=True, random_state=0).split(x, y))
    parts = [torch.from_numpy(test) for _, test in splits]

    def run(decays: list[float], rows: torch.Tensor = rows) -> torch.Tensor:
        winners = fly_hash(torch.from_numpy(x), rows, 32)
        return fold_accuracies(winners, labels, parts, dim=16_384, num_classes=10, decays=decays)

    calls = {"one": lambda: run([0.5]), "ten": lambda: run([k / 10 for k in range(10)])}
    taken = interleaved(calls, "cpu", rounds=repeats, least=0)
    one, ten = (min(times) for times in taken.values())
    print(f"\n10-fold on digits: {one:.3f} CPU s, goal {GOAL_FOLDS}; ten decays {ten:.3f}")
    lifts = [connections(16_384, 64, 19, seed=k) for k in range(5)]
    right = [float(run([0.5], lift).mean()) for lift in lifts]
    nearest = max(
        cross_val_score(KNeighborsClassifier(k), x, y, cv=splits).mean() for k in (1, 2, 4, 8)
    )
    print(f"accuracy at decay 0.5, five lifts: {spread(right, 4)}; of the best kNN {nearest:.4f}")


def whole_mnist(root: Path) -> None:
    """Hash and count all training images; print CPU seconds and peak memory of this process."""
    x = MNIST().read(root / "torchvision", download=False)
    pixels, labels, made = x.x_train.flatten(1), x.y_train, {}
    drawn = seconds(lambda: made.update(rows=connections(170_128, 784, 19, seed=0)), "cpu")
    fly_hash(pixels[:64], made["rows"], 17)  # loads the compiled code
    hashed = seconds(lambda: made.update(winners=fly_hash(pixels, made["rows"], 17)), "cpu")
    counted = seconds(
        lambda: bloom.count(made["winners"], labels, dim=170_128, num_classes=10), "cpu"
    )
    print(
        f"MNIST, 60,000 x 170,128: hash {hashed:.2f}, with counts {hashed + counted:.2f} CPU s, "
        f"goal {GOAL_SECONDS:.0f}; lift drawn in {drawn:.2f}; peak "
        f"{held_mebibytes() * 2**20 / 1e9:.2f} GB, goal {GOAL_GIGABYTES}"
    )


def main() -> None:
    """Print ratios, cross-validation and, if its files are there, the whole of MNIST."""
    args = parser(__doc__)
    args.add_argument("--root", type=Path, help="folder with torchvision/MNIST and pmlb/letter")
    args.add_argument("--repeats", type=int, default=5, help="calls of each, the fastest counts")
    args.add_argument("--only-mnist", action="store_true", help="MNIST only, in this process")
    args.add_argument("--curves", nargs="+", metavar="SET", help="digits or numbers of OpenML")
    args.add_argument("--lifts", type=int, default=3, help="number of draws of M of the curves")
    args.add_argument("--plot", type=Path, help="draw the curves into this file")
    options = args.parse_args()
    if options.curves:
        draw_curves(options.curves, options.lifts, options.plot)
        return
    if options.only_mnist:
        whole_mnist(options.root)
        return
    ratios(cases(options.root), options.repeats)
    folds(options.repeats)
    if options.root is not None:  # in a separate process, for its own peak of memory
        print(alone("hash", "--only-mnist", "--root", options.root))


if __name__ == "__main__":
    main()
