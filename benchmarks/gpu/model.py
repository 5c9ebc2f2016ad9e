"""Times of a step on an H200 by a model: nothing here was measured on a GPU.

The launches are counted, by ``python -m tests.launches --csv FILE.csv``. The rest is assumed:
microseconds of a launch, TFLOP/s of products. ``python -m benchmarks.gpu --parts roofline``
measures the same numbers on a device.
"""

import csv
from pathlib import Path
from typing import NamedTuple

from benchmarks.table import head, line

EAGER, PYTHON, FUNCTORCH = 6.0, 60.0, 16.0
"""Microseconds of the host: for a launch and its views, a step, and a launch under ``vmap``."""

KERNEL, GRAPH, PER_LAUNCH = 2.0, 8.0, 1.25
"""Microseconds of a kernel in a graph and of a graph's launch; kernels of an operator."""

BANDWIDTH = 4.3
"""Megabytes a microsecond."""

CLIENTS = (20, 100)


class Work(NamedTuple):
    """A workload.

    Args:
        counts: Name of its row of launches.
        plain: Launches of a step of a plain loop.
        gigaflop: Operations of a client's step.
        megabytes: Weights and states that a client's step moves.
        rates: TFLOP/s of one client's products, of stacked exact ones, and of stacked ones in TF32.
        alone: Whether clients follow one another, because one fills the device.
    """

    counts: str
    plain: int
    gigaflop: float
    megabytes: float
    rates: tuple[float, float, float]
    alone: bool = False


WORKS = {
    "MLP, batch 32": Work("fedavg mlp", 19, 0.0205, 8.0, (10, 25, 25)),
    "ConvNet 8x8, batch 32": Work("fedavg convnet", 33, 0.048, 2.0, (3, 10, 60)),
    "ConvNet 28x28, batch 32": Work("fedavg convnet", 33, 0.53, 12.0, (8, 10, 60)),
    "HyperFed 28x28, batch 32": Work("hyperfed", 257, 0.53, 12.0, (8, 10, 60)),
    "GCN, 270 nodes": Work("gcn", 60, 0.02, 6.0, (5, 20, 20)),
    "FlatLand, 270 nodes": Work("flatland", 386, 0.02, 10.0, (5, 20, 20)),
    "ResNet-18, batch 64": Work("resnet batch norm", 173, 214.0, 700.0, (35, 35, 70), alone=True),
}

COLUMNS = (
    *("Sequential", "Batched", "Graphed", "Graphed, compiled", "the same, TF32"),
    "JAX, vmap and scan, at best",
)


def milliseconds(work: Work, counts: dict[str, float], num_clients: int) -> list[float | None]:
    """Modelled times of a step of all clients: of the plain loop, then of :data:`COLUMNS`."""
    own, exact, fast = (
        num_clients * max(1e3 * work.gigaflop / rate, work.megabytes / BANDWIDTH)
        for rate in work.rates
    )

    def alone(launches: float) -> float:
        host = num_clients * (EAGER * launches + PYTHON)
        return max(host, num_clients * launches * PER_LAUNCH * KERNEL + own)

    launches = counts["sequential"]
    found: list[float | None] = [alone(work.plain), alone(launches)]
    if work.alone:
        graph = num_clients * (launches * PER_LAUNCH * KERNEL + GRAPH)
        found += [None, graph + exact, None, graph + fast, None]
    else:
        stacked = counts["batched"]
        eager = (EAGER + FUNCTORCH) * stacked + 2 * PYTHON
        captured = counts["captured"] * PER_LAUNCH * KERNEL + GRAPH
        kernels = (counts["kernels"] + counts["libraries"]) * KERNEL
        found.append(max(eager, stacked * PER_LAUNCH * KERNEL + exact))
        found += [captured + exact, kernels + GRAPH + exact, kernels + GRAPH + fast]
        found.append(kernels + exact)  # no less than Inductor's kernels, and nothing for launches
    return [None if x is None else x / 1e3 for x in found]


def read(file: Path) -> dict[str, dict[str, float]]:
    """Counts of launches by name of a method and of a column."""
    with file.open(newline="") as lines:
        rows = [*csv.DictReader(lines)]
    return {row.pop("step"): {n: float(x) for n, x in row.items() if x} for row in rows}


def times(ratio: float) -> str:
    """A ratio with two digits, or all before its point."""
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


def report(file: Path) -> None:
    """Print the table.

    Args:
        file: CSV of the counts of launches.
    """
    counts = read(file)
    print("Modelled, not measured: milliseconds of a step of all clients (times the plain loop)\n")
    print(head("", "clients", "plain loop", *COLUMNS))
    for name, work in WORKS.items():
        for num_clients in CLIENTS:
            plain, *others = milliseconds(work, counts[work.counts], num_clients)
            assert plain is not None
            cells = ["" if x is None else f"{x:.2f} ({times(plain / x)}x)" for x in others]
            print(line(name, num_clients, f"{plain:.2f}", *cells))
