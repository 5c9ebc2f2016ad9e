"""Table and figure of ``benchmarks.hulls``: hulls of Olsson's cells over the width of the bins."""

import itertools
import statistics
from pathlib import Path

import numpy as np

from benchmarks.hulls.tables import GRID, joined, majority, olsson, parts, run
from benchmarks.results import Figures, Results
from fedbolic.data import FederatedData
from fedhull import EuclideanBoundary, FedHull, HyperbolicBoundary, PolarGrid, hull
from fedhull.figure import outline
from fedhull.geometry.distance import poincare_distance
from fedhull.leakage import quantised_hull

EPSILONS = (0.01, 0.03, 0.1, 0.3, 1.0)
DRAWN = (0.1, 0.3, 1.0)
"""Widths of the figure."""


def grid_of(epsilon: float) -> PolarGrid:
    """Bins of this width in the disc of the paper."""
    return PolarGrid(epsilon, GRID.radius)


def corners_of(x: np.ndarray, grid: PolarGrid) -> tuple[np.ndarray, np.ndarray]:
    """Corners of the hull of some points, and of their quantised hull."""
    return x[hull(x)], grid.decode(quantised_hull(x, grid))


def largest_gap(x: np.ndarray, y: np.ndarray) -> float:
    """Hausdorff distance of two sets of points of the disc."""
    gaps = poincare_distance(x[:, None], y[None])
    return float(max(gaps.min(axis=1).max(), gaps.min(axis=0).max()))


def distorted(data: FederatedData, grid: PolarGrid, seed: int) -> Figures:
    """Corners of all clients' classes, how far they are moved, and what is learned from them."""
    classes = [x[y == k] for x, y in parts(data) for k in np.unique(y)]
    pairs = [corners_of(x, grid) for x in classes]
    sizes = [len(quantised) for _, quantised in pairs]
    shares = [100 * n / len(x) for n, x in zip(sizes, classes, strict=True)]
    return {
        "corners": statistics.fmean(sizes),
        "most corners": float(max(sizes)),
        "% of the class": statistics.fmean(shares),
        "moved": statistics.fmean(largest_gap(*pair) for pair in pairs),
        "majority": majority(data)["accuracy"],
        "FLP": run(FedHull(grid, boundary=HyperbolicBoundary(0.1)), data, seed)[0]["accuracy"],
        "FLE": run(FedHull(grid, boundary=EuclideanBoundary(0.1)), data, seed)[0]["accuracy"],
    }


def distortion_table(results: Results, seeds: int, plot: Path | None = None) -> None:
    """Complexity, distortion and accuracy on the paper's split, over partitions and widths."""
    for seed, epsilon in itertools.product(range(seeds), EPSILONS):
        data, key = olsson(3, legacy=3, seed=seed), ("distortion", f"epsilon {epsilon}", str(seed))
        results.add(key, distorted, data, grid_of(epsilon), seed)
    columns = ("corners", "most corners", "% of the class", "moved", "majority", "FLP", "FLE")
    results.show("distortion", columns)
    if plot is not None:
        draw(olsson(3, legacy=3, seed=0), plot)


def draw(data: FederatedData, file: Path) -> None:
    """Draw the embedding, and exact and quantised hulls of its two largest classes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    x, y = joined(parts(data))
    canvas = Figure(figsize=(3.4 * (1 + len(DRAWN)), 3.6), layout="constrained")
    FigureCanvasAgg(canvas)
    first, *others = canvas.subplots(1, 1 + len(DRAWN))
    angle = np.linspace(0, 2 * np.pi, 200)
    for axes in (first, *others):
        axes.plot(np.cos(angle), np.sin(angle), color="0.6", linewidth=0.8)
        axes.set(aspect="equal", xticks=[], yticks=[])
    first.scatter(*x.T, color=[f"C{k}" for k in y], s=6)
    first.set_title(f"{len(x)} training cells, {len(np.unique(y))} classes")
    large = np.bincount(y).argsort()[::-1][:2]
    for axes, epsilon in zip(others, DRAWN, strict=True):
        for k in large:
            of_class, colour = x[y == k], f"C{k}"
            exact, quantised = corners_of(of_class, grid_of(epsilon))
            axes.scatter(*of_class.T, color=colour, s=4, alpha=0.5)
            axes.plot(*outline(exact).T, ":", color=colour)
            axes.plot(*outline(quantised[hull(quantised)]).T, color=colour, linewidth=1)
        axes.set_title(f"epsilon {epsilon}")
    canvas.savefig(file, dpi=80)
    print(file)
