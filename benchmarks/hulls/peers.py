"""CPU time of hulls over scipy's, and of HyperbolicSVC over that of scikit-learn's machines."""

import statistics
from collections.abc import Callable

import numpy as np
import torch
from scipy.spatial import ConvexHull
from sklearn.svm import SVC, LinearSVC

from benchmarks.results import Figures, Results
from benchmarks.table import head, line
from benchmarks.timing import interleaved, ratio
from fedbolic.core.rng import Rng
from fedbolic.data import uniform_points
from fedbolic.manifolds import Poincare
from fedhull import HyperbolicSVC, hull
from fedhull.geometry.hull import klein

ROUNDS, LEAST = 15, 0.05
"""Rounds in which both are called one after the other, and seconds of each in a round."""


def hull_times(number: int, seed: int = 0) -> Figures:
    """Times of the exact hull of points, and of Qhull on their Klein coordinates."""
    x = uniform_points(number, radius=0.95, rng=Rng(seed)).numpy()
    return _compared(lambda: hull(x), lambda: ConvexHull(klein(x)).vertices)


def classifier_times(number: int, seed: int = 0) -> Figures:
    """Times of HyperbolicSVC on two overlapping classes, and of a linear machine on their maps.

    That is LIBSVM's for a few points and LIBLINEAR's above a thousand.
    """
    x = uniform_points(number, radius=0.95, rng=Rng(seed)).numpy()
    noise = np.random.default_rng(seed).normal(size=number) / 10
    y = x @ [1.0, 0.5] + noise > 0.1
    maps = Poincare().logmap0(torch.from_numpy(x)).numpy()
    theirs = SVC(kernel="linear") if number <= 1000 else LinearSVC()
    return _compared(lambda: HyperbolicSVC(C=1.0).fit(x, y), lambda: theirs.fit(maps, y))


CASES: dict[str, Callable[[], Figures]] = {
    "hull, 1,000 points": lambda: hull_times(1000),
    "hull, 100,000 points": lambda: hull_times(100_000),
    "HyperbolicSVC, 300 points, over SVC": lambda: classifier_times(300),
    "HyperbolicSVC, 30,000 points, over LinearSVC": lambda: classifier_times(30_000),
}


def _compared(ours: Callable, theirs: Callable) -> Figures:
    """Least milliseconds of both, and the median ratio over rounds."""
    taken = interleaved({"ours": ours, "theirs": theirs}, "cpu", rounds=ROUNDS, least=LEAST)
    least = {name: 1000 * min(times) for name, times in taken.items()}
    return {**least, "ratio": ratio(taken["ours"], taken["theirs"])}


def peers_table(results: Results, seeds: int) -> None:
    """Every case, measured anew for every seed; the least times and the median ratio."""
    lines = []
    for name, measure in CASES.items():
        found = [results.add(("peers", name, str(seed)), measure) for seed in range(seeds)]
        ours, theirs = (min(of[column] for of in found) for column in ("ours", "theirs"))
        middle = statistics.median(of["ratio"] for of in found)
        lines.append(line(name, f"{ours:.2f}", f"{theirs:.2f}", f"{middle:.2f}"))
    print("\n**peers**\n", head("", "ours, ms", "theirs, ms", "ratio"), *lines, sep="\n")
