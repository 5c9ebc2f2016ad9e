"""FlyHash and its counts compared with a vectorised reference: CPU seconds, memory, bits."""

import argparse
import statistics
import subprocess
import sys
import time
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

from benchmarks.validation import fold_accuracies
from fedbolic.data import MNIST
from fedbolic.data.tables.table import Table
from flynn import bloom
from flynn.channels import channel_signs
from flynn.fly_hash import connections, fixed_point, fly_hash, two_phases

GOAL_SECONDS = 8.0  # hash and counts of 60,000 images, one core
GOAL_GIGABYTES = 0.6  # peak resident memory of that process
GOAL_FOLDS = 0.15  # CPU seconds of a 10-fold cross-validation of one setting on digits
BATCH = 256


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
    """Digits and synthetic data; with a data folder, also Letters and MNIST.

    Args:
        root: The data folder, or ``None``.
    """
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
    """Counts as a careful user of numpy and scipy would compute them, in batches of 256.

    Args:
        case: The case; its first ``timed`` examples are counted.
        rows: The lift.
    """
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
    """Counts of the same examples by our hash.

    Args:
        case: The case; its first ``timed`` examples are counted.
        rows: The lift.
        compiled: Use numba instead of torch.
    """
    x, table = torch.from_numpy(case.x[: case.timed]), torch.from_numpy(rows)
    if compiled:
        winners = fly_hash(x, table, case.active)
    else:
        whole = [fixed_point(part, case.fan_in) for part in x.split(2048)]
        winners = torch.cat([two_phases(part, table, case.active) for part in whole])
    labels = torch.from_numpy(case.y[: case.timed])
    return bloom.count(winners, labels, dim=case.dim, num_classes=int(case.y.max()) + 1)


def on_off(case: Case, rows: NDArray[np.int32]) -> torch.Tensor:
    """Hashes of the same examples with ON-OFF channels.

    Args:
        case: The case; its first ``timed`` examples are hashed.
        rows: A lift of twice the features.
    """
    signs = channel_signs("on-off", case.x.shape[1], seed=0)
    x = torch.from_numpy(case.x[: case.timed])
    return fly_hash(x, torch.from_numpy(rows), case.active, signs=signs)


def differing(case: Case, rows: NDArray[np.int32], num: int = 300) -> int:
    """Number of examples whose bits differ from those of sorted int64 sums.

    Args:
        case: The case; its first ``num`` examples are hashed by both code paths.
        rows: The lift.
        num: Number of examples.
    """
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


def cpu_seconds(function: Callable[[], object]) -> float:
    """CPU seconds of one call.

    Args:
        function: Function to call.
    """
    start = time.process_time()
    function()
    return time.process_time() - start


def ratios(found: dict[str, Case], repeats: int) -> None:
    """Print the times of the reference and of both our code paths for each case, interleaved.

    Args:
        found: Cases by name.
        repeats: Calls of each, of which the least time counts.
    """
    print(
        f"{'':<11}{'rows':>6}{'reference':>11}{'numba':>9}{'torch':>9}   CPU s (least of {repeats})"
    )
    for name, case in found.items():
        rows = connections(case.dim, case.x.shape[1], case.fan_in, seed=0).numpy()
        wrong = differing(case, rows)
        ours(case, rows, compiled=True)  # compiles
        times = [
            (
                cpu_seconds(lambda c=case, r=rows: reference(c, r)),
                cpu_seconds(lambda c=case, r=rows: ours(c, r, compiled=True)),
                cpu_seconds(lambda c=case, r=rows: ours(c, r, compiled=False)),
            )
            for _ in range(repeats)
        ]
        slow, fast, plain = (min(column) for column in zip(*times, strict=True))
        spread = sorted(a / b for a, b, _ in times)
        verdict = "met" if slow / fast >= case.goal else "MISSED"
        print(
            f"{name:<11}{case.timed:>6}{slow:>11.3f}{fast:>9.3f}{plain:>9.3f}   numba "
            f"{slow / fast:.0f}x (paired {spread[0]:.0f} to {spread[-1]:.0f}), torch "
            f"{slow / plain:.1f}x; goal {case.goal:.0f}x {verdict}; {wrong} of 300 differ"
        )
        twice = connections(case.dim, 2 * case.x.shape[1], case.fan_in, seed=0).numpy()
        seconds = min(cpu_seconds(lambda c=case, r=twice: on_off(c, r)) for _ in range(repeats))
        again = min(
            cpu_seconds(lambda c=case, r=rows: ours(c, r, compiled=True)) for _ in range(repeats)
        )
        print(f"{'':<11}on-off {seconds:.3f}, plain again {again:.3f}")


def folds(repeats: int) -> None:
    """Print the CPU seconds of a 10-fold cross-validation of one setting, hash included.

    Args:
        repeats: Number of repetitions, of which the least time counts.
    """
    x, y = load_digits(return_X_y=True)
    rows, labels = connections(16_384, 64, 19, seed=0), torch.from_numpy(y)
    splits = list(StratifiedKFold(10, shuffle=True, random_state=0).split(x, y))
    parts = [torch.from_numpy(test) for _, test in splits]

    def run(decays: list[float], rows: torch.Tensor = rows) -> torch.Tensor:
        winners = fly_hash(torch.from_numpy(x), rows, 32)
        return fold_accuracies(winners, labels, parts, dim=16_384, num_classes=10, decays=decays)

    one = min(cpu_seconds(lambda: run([0.5])) for _ in range(repeats))
    ten = min(cpu_seconds(lambda: run([k / 10 for k in range(10)])) for _ in range(repeats))
    verdict = "met" if one <= GOAL_FOLDS else "MISSED"
    print(f"10-fold on digits: {one:.3f} CPU s, goal {GOAL_FOLDS} {verdict}; ten decays {ten:.3f}")
    lifts = [connections(16_384, 64, 19, seed=k) for k in range(5)]
    right = [float(run([0.5], lift).mean()) for lift in lifts]
    nearest = max(
        cross_val_score(KNeighborsClassifier(k), x, y, cv=splits).mean() for k in (1, 2, 4, 8)
    )
    print(
        f"  accuracy at decay 0.5, five lifts: {statistics.fmean(right):.4f} ± "
        f"{statistics.stdev(right):.4f}; of the best kNN {nearest:.4f}"
    )


def whole_mnist(root: Path) -> None:
    """Hash and count all training images; print CPU seconds and peak memory of this process.

    Args:
        root: The data folder.
    """
    x = MNIST().read(root / "torchvision", download=False)
    pixels, labels = x.x_train.flatten(1), x.y_train
    start = time.process_time()
    rows = connections(170_128, 784, 19, seed=0)
    drawn = time.process_time() - start
    fly_hash(pixels[:64], rows, 17)  # loads the compiled code
    start = time.process_time()
    winners = fly_hash(pixels, rows, 17)
    hashed = time.process_time() - start
    counts = bloom.count(winners, labels, dim=170_128, num_classes=10)
    spent = time.process_time() - start
    status = Path("/proc/self/status").read_text()  # ru_maxrss would be that of the parent process
    peak = int(status.partition("VmHWM:")[2].split()[0]) / 1e6
    goals = spent <= GOAL_SECONDS, peak <= GOAL_GIGABYTES
    told = ["met" if goal else "MISSED" for goal in goals]
    print(
        f"MNIST, 60,000 x 170,128: hash {hashed:.2f}, with counts {spent:.2f} CPU s, goal "
        f"{GOAL_SECONDS:.0f} {told[0]}; lift drawn in {drawn:.2f}; largest count "
        f"{int(counts.max())}; peak {peak:.2f} GB, goal {GOAL_GIGABYTES} {told[1]}"
    )


def main() -> None:
    """Print ratios, cross-validation and, if its files are there, the whole of MNIST."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, help="folder with torchvision/MNIST and pmlb/letter")
    parser.add_argument("--repeats", type=int, default=5, help="calls of each, the fastest counts")
    parser.add_argument("--only-mnist", action="store_true", help="MNIST only, in this process")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only_mnist:
        whole_mnist(options.root)
        return
    ratios(cases(options.root), options.repeats)
    folds(options.repeats)
    if options.root is not None:  # in a separate process, for its own peak of memory
        again = [sys.executable, "-m", "benchmarks.hash", "--only-mnist", "--root", options.root]
        subprocess.run(again, check=True)


if __name__ == "__main__":
    main()
