"""Accuracy curves over the sizes of a FlyHash: Appendix D.6 of the FlyNN paper."""

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.nearest.rows import Task, task
from benchmarks.nearest.validation import fold_accuracies
from flynn.fly_hash import connections, fly_hash

TURNED: dict[str, list[float]] = {
    "m / d": [round(v) for v in np.geomspace(4, 4096, 10)],
    "s / d": np.geomspace(0.1, 0.8, 10).round(3).tolist(),
    "rho": [round(v) for v in np.geomspace(4, 256, 10)],
    "gamma": [0.0, *np.geomspace(0.1, 0.8, 10).round(3).tolist()],
}
FIXED: dict[str, list[float]] = {
    "m / d": [256, 1024],
    "s / d": [0.1, 0.3],
    "rho": [8, 32],
    "gamma": [0.0, 0.5],
}
"""Values of the three other sizes while one size varies."""

Curve = dict[float, list[float]]


def curves(data: Task, turned: str, lifts: int) -> dict[str, Curve]:
    """Ten-fold accuracies of all lifts by the value of one size, for every setting of the others.

    Hashes in which more than half of the bits are ones are left out, as in the paper.
    """
    found: dict[str, Curve] = {}
    ranges = {name: TURNED[name] if name == turned else FIXED[name] for name in TURNED}
    decays = ranges.pop("gamma")
    for sizes, seed in itertools.product(itertools.product(*ranges.values()), range(lifts)):
        dim, active = round(sizes[0] * data.x.shape[1]), int(sizes[2])
        if dim < 2 * active:
            continue
        for decay, accuracy in zip(
            decays, accuracies(data, dim, sizes[1], active, decays, seed), strict=True
        ):
            setting = dict(zip(TURNED, (*sizes, decay), strict=True))
            value = setting.pop(turned)
            label = ", ".join(f"{name} {v:g}" for name, v in setting.items())
            found.setdefault(label, {}).setdefault(value, []).append(accuracy)
    return found


def accuracies(
    data: Task, dim: int, density: float, active: int, decays: list[float], seed: int
) -> list[float]:
    """Mean accuracy over folds of one hash, for every decay."""
    x, d = torch.from_numpy(data.x), data.x.shape[1]
    winners = fly_hash(x, connections(dim, d, max(1, round(density * d)), seed), active)
    labels, sizes = torch.from_numpy(data.y), {"dim": dim, "num_classes": data.num_classes}
    return fold_accuracies(winners, labels, data.folds(), **sizes, decays=decays).mean(1).tolist()


def draw_curves(sets: Sequence[str], lifts: int, plot: Path | None) -> None:
    """Print and draw the curves, one row of panels per data set."""
    from matplotlib.figure import Figure

    canvas = Figure((4.5 * len(TURNED), 3.6 * len(sets)), layout="constrained")
    grid = canvas.subplots(len(sets), len(TURNED), squeeze=False)
    for (row, name), (column, turned) in itertools.product(enumerate(sets), enumerate(TURNED)):
        panel = grid[row, column]
        print(f"\n{name}: ten-fold accuracy over {turned}, mean of {lifts} lifts")
        for label, curve in curves(task(name), turned, lifts).items():
            means = [statistics.fmean(values) for values in curve.values()]
            cells = "  ".join(f"{at:g}: {mean:.3f}" for at, mean in zip(curve, means, strict=True))
            print(f"  {label:<40}{cells}", flush=True)
            (drawn,) = panel.plot(list(curve), means, marker=".", label=label)
            low, high = [min(v) for v in curve.values()], [max(v) for v in curve.values()]
            panel.fill_between(list(curve), low, high, color=drawn.get_color(), alpha=0.2)
        panel.set(title=name, xlabel=turned, ylabel="ten-fold accuracy")
        panel.set_xscale("linear" if turned == "gamma" else "log")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=5)
    if plot:
        canvas.savefig(plot, dpi=90)
