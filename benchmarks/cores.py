"""Hulls of cores where classes overlap: ``FEDBOLIC_DATA=DATA python -m benchmarks.cores``.

Four tables. *hulls*: corners without quantiser or protocol, one hull for each class and one for
each class at each client. *protocol*: every row through the whole protocol, with the errors of the
grouping and what the hulls reveal. *leakage*: cores together with a least count of points in a bin.
*peeling*: CPU seconds for a million points. Every number is appended to a CSV as it is computed; a
run that was interrupted goes on from there.
"""

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.fedhull import GRID, OLSSON
from benchmarks.olsson import majority
from benchmarks.pairs import FASHION, fashion
from benchmarks.results import Figures, Results
from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data import ClassRuns, FederatedData, HalfPlanes, Points, uniform_points
from fedbolic.federated import Method, RunStoppedError, Trainer
from fedhull import (
    Assignment,
    Central,
    EuclideanBoundary,
    Farthest,
    FedHull,
    HullPeeling,
    HyperbolicBoundary,
    HyperbolicSVC,
    PolarGrid,
    Spectral,
    ValidatedCore,
    hull,
)
from fedhull.boundary import Boundary
from fedhull.core import Core
from fedhull.exchanges import arrays
from fedhull.geometry.onion import onion_layers
from fedhull.grouping import Grouping, hull_distances, match_labels

CORES: dict[str, Core | None] = {
    "none": None,
    "farthest 5 %": Farthest(0.05),
    "farthest 10 %": Farthest(0.1),
    "peeled 10 %": HullPeeling(0.1),
    "peeled 20 %": HullPeeling(0.2),
    "farthest, validated": ValidatedCore(Farthest()),
    "peeled, validated": ValidatedCore(HullPeeling()),
}

COUNTS = (1, 2, 3, 4)
"""Least counts of points in a bin."""

LEAKS = ("leakage/share", "leakage/bins", "leakage/outlying", "leakage/most_of_class")


@dataclass(frozen=True)
class Case:
    """Data of a table, with the settings of its rows.

    Args:
        load: Loads the data of a seed.
        C: Penalty lambda.
        grid: The bins.
        pairs: Candidates for the reference point.
        kinds: Boundaries, Poincare's (P) and Euclid's (E).
        drawn: Rows trained in one place depend on the seed, because the test set does.
    """

    load: Callable[[int], FederatedData]
    C: float
    grid: PolarGrid
    pairs: int = 3
    kinds: str = "PE"
    drawn: bool = True


def overlapping(seed: int) -> FederatedData:
    """The points of Figure 5, mu 0.2, with noise of 0.5 in the distance that decides the class.

    Args:
        seed: Seed of the draw.
    """
    return HalfPlanes(20_000, offset=0.2, least=1000, overlap=0.5).load(Rng(seed))


def cases() -> dict[str, Case]:
    """Data of the protocol's table by name."""
    cells = Points(OLSSON, ClassRuns(3))
    drawn = Points(FASHION, ClassRuns(10))
    near = PolarGrid(0.1, 0.9991)
    return {
        "Fashion-MNIST, official": Case(fashion, 0.1, near, drawn=False),
        "Fashion-MNIST, drawn (inflated)": Case(lambda i: drawn.load(Rng(i)), 0.1, near, kinds="P"),
        "Olsson": Case(lambda i: cells.load(Rng(i)), 0.1, GRID),
        "generated, overlapping": Case(overlapping, 10.0, PolarGrid(0.1, 0.95), pairs=1),
    }


def on_corners(data: FederatedData, core: Core | None, *, each: bool) -> Figures:
    """Figures of :func:`trained` on the corners of hulls.

    Args:
        data: Clients with training points.
        core: Rule that cuts the classes.
        each: Take hulls at each client; otherwise of all clients' points together.
    """
    owners, points, labels = parts(data), [], []
    for x, y in owners if each else [joined(owners)]:
        inside = np.ones(len(x), dtype=bool)
        if core is not None:
            inside = core.kept(x, y, c=1.0, boundary=HyperbolicBoundary(10.0))
        for k in np.unique(y):
            of_class = x[inside & (y == k)]
            points.append(of_class[hull(of_class)])
            labels.append(np.full(len(points[-1]), k))
    return trained(data, *joined(zip(points, labels, strict=True)))


Labelled = tuple[np.ndarray, np.ndarray]


def parts(data: FederatedData) -> list[Labelled]:
    """Training points and labels of each client.

    Args:
        data: The clients.
    """
    return [arrays(client.train) for client in data.clients]


def joined(several: Iterable[Labelled]) -> Labelled:
    """One set of points and labels from several.

    Args:
        several: Points and labels.
    """
    points, labels = zip(*several, strict=True)
    return np.concatenate(points), np.concatenate(labels)


def trained(data: FederatedData, x: np.ndarray, y: np.ndarray) -> Figures:
    """Accuracy of HyperbolicSVC(C=10) in percent on the server's test set, and points used.

    Args:
        data: Clients with a test set.
        x: Points to train on.
        y: Their labels.
    """
    assert data.holdout is not None  # every case has a test set
    test, labels = arrays(data.holdout.test)
    found = HyperbolicSVC(C=10.0).fit(x, y).predict(test)
    return {"accuracy": 100 * float(np.mean(found == labels)), "points": float(len(y))}


def hulls_table(results: Results, seeds: int) -> None:
    """Accuracy of training on corners alone, without quantiser.

    With one client the official split leaves nothing to draw, so that row has one value.

    Args:
        results: Figures so far.
        seeds: Partitions of Fashion-MNIST's embedding; twice as many splits of Olsson's cells.
    """
    cells = Points(OLSSON, ClassRuns(3))
    sets: dict[str, tuple[Callable[[int], FederatedData], int, int]] = {
        "Olsson": (lambda i: cells.load(Rng(i)), 2 * seeds, 2 * seeds),
        "Fashion-MNIST, official": (fashion, seeds, 1),
    }
    for name, (load, num, num_alone) in sets.items():
        for seed in range(num):
            data = load(seed)
            if seed < num_alone:
                key = ("hulls", name, "all points", "one client", str(seed))
                results.add(key, trained, data, *joined(parts(data)))
            for (row, core), each in itertools.product(CORES.items(), (False, True)):
                if each or seed < num_alone:
                    clients = "each client" if each else "one client"
                    key = ("hulls", name, row, clients, str(seed))
                    results.add(key, on_corners, data, core, each=each)
    results.show("hulls", ("accuracy", "points"))


def run(method: Method, data: FederatedData, seed: int) -> tuple[Figures, Tree]:
    """Accuracy in percent, kilobytes up and mean leakage of a run, and the server's last state.

    Args:
        method: Method to run.
        data: Its clients.
        seed: Seed of the run.
    """
    found: dict[str, list[float]] = {}
    *_, (state, _) = steps = list(Trainer().run(method, data, Rng(seed).at("run")))
    for row in (row for _, rows in steps for row in rows):
        found.setdefault(row.name, []).append(row.value)
    figures = {
        "accuracy": 100 * found["holdout/accuracy"][-1],
        "kilobytes": sum(found["bytes/up"]) / 1000,
    }
    leaks = {name: of for name, of in found.items() if name.startswith("leakage/")}
    figures |= {name: statistics.fmean(of) for name, of in leaks.items()}
    return figures, state.server_state


def misplaced(method: FedHull, server_state: Tree, grouping: Grouping) -> float:
    """Share of the hulls in another group than most hulls of their class, in percent.

    Args:
        method: Method with the bins.
        server_state: Its state after a run.
        grouping: Rule to apply to the hulls that the server read.
    """
    bins, owners = (server_state["hulls"][name].numpy() for name in ("bins", "labels"))
    used, num_classes = np.unique(owners), server_state["num_classes"]
    hulls = [method.grid.decode(bins[owners == label]) for label in used]
    distances = hull_distances(hulls, c=method.grid.c)
    groups = grouping.groups(distances, used // num_classes, num_groups=num_classes)
    together = np.zeros((num_classes, num_classes))
    np.add.at(together, (groups, used % num_classes), 1)
    right = together[np.arange(num_classes), match_labels(together)].sum()
    return 100 * float(1 - right / len(used))


def protocol_table(results: Results, seeds: int) -> None:
    """Every method on all sets, with and without cores.

    Args:
        results: Figures so far.
        seeds: Draws of each set.
    """
    for seed, (name, case) in itertools.product(range(seeds), cases().items()):
        data = case.load(seed)
        rows: dict[tuple[str, str], Method] = {}
        for kind in case.kinds:
            boundary: Boundary = HyperbolicBoundary(case.C, pairs=case.pairs)
            if kind == "E":
                boundary = EuclideanBoundary(case.C)
            if case.drawn or not seed:
                rows["C" + kind, ""] = Central(boundary)
            for row, core in CORES.items():
                if case.drawn or not seed:
                    rows["CH-C" + kind, row] = Central(boundary, hulls="once", core=core)
                rows["FL" + kind, row] = FedHull(case.grid, boundary=boundary, core=core)
        results.add(("protocol", name, "majority", "", str(seed)), guessed, data)
        for key, method in rows.items():
            results.add(("protocol", name, *key, str(seed)), measured, method, data, seed)
    results.show("protocol", ("accuracy", "kilobytes", "misplaced", "misplaced, spectral"))
    results.show("protocol", LEAKS)


def guessed(data: FederatedData) -> Figures:
    """Accuracy of the most frequent class.

    Args:
        data: A split.
    """
    return {"accuracy": majority(data)}


def measured(method: Method, data: FederatedData, seed: int) -> Figures:
    """Figures of a run, and the errors of both groupings if it has any.

    Args:
        method: Method to run.
        data: Its clients.
        seed: Seed of the run.
    """
    figures, server_state = run(method, data, seed)
    if isinstance(method, FedHull) and isinstance(method.boundary, HyperbolicBoundary):
        figures["misplaced"] = misplaced(method, server_state, Assignment())
        figures["misplaced, spectral"] = misplaced(method, server_state, Spectral())
    return figures


def leakage_table(results: Results, seeds: int) -> None:
    """Cores together with a least count in a bin, on Fashion-MNIST's embedding at two epsilons.

    Args:
        results: Figures so far.
        seeds: Partitions.
    """
    chosen = ("none", "farthest 10 %", "peeled 20 %")
    for seed in range(seeds):
        data = fashion(seed)
        for epsilon, count, core in itertools.product((0.1, 0.3), COUNTS, chosen):
            method = FedHull(PolarGrid(epsilon, 0.9991), min_count=count, core=CORES[core])
            row = f"epsilon {epsilon}, at least {count}"
            key = ("leakage", "Fashion-MNIST, official", row, core, str(seed))
            results.add(key, unless_stopped, method, data, seed)
    results.show("leakage", ("accuracy", *LEAKS, "stopped"))


def unless_stopped(method: Method, data: FederatedData, seed: int) -> Figures:
    """Figures of :func:`run`; nothing is revealed and nothing learned if the run stops.

    Args:
        method: Method to run.
        data: Its clients.
        seed: Seed of the run.
    """
    try:
        return run(method, data, seed)[0]
    except RunStoppedError:
        return {"stopped": 1.0}


def peeling_table(results: Results, seeds: int) -> None:
    """CPU seconds of peeling a class by a fifth.

    Args:
        results: Figures so far.
        seeds: Point sets of each kind and size.
    """
    for seed, number in itertools.product(range(seeds), (10**4, 10**5, 10**6)):
        normal = np.random.default_rng(seed).normal(size=(number, 2)) / 10
        uniform = uniform_points(number, radius=0.95, rng=Rng(seed)).numpy()
        for kind, x in (("uniform", uniform), ("normal", normal)):
            results.add(("peeling", kind, f"{number} points", str(seed)), layers_of, x)
    results.show("peeling", ("layers", "seconds"))


def layers_of(x: np.ndarray) -> Figures:
    """Number of layers that go until a fifth of the points is gone.

    Args:
        x: Points of the disc.
    """
    gone = num_layers = 0
    for layer in onion_layers(x):
        gone, num_layers = gone + len(layer), num_layers + 1
        if gone >= len(x) / 5:
            break
    return {"layers": float(num_layers)}


TABLES = {
    "hulls": hulls_table,
    "protocol": protocol_table,
    "leakage": leakage_table,
    "peeling": peeling_table,
}


def main() -> None:
    """Compute and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--seeds", type=int, default=10, help="draws of every set")
    parser.add_argument("--results", type=Path, default=Path("cores.csv"), help="file to go on in")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(options.results)
    for table in options.tables:
        TABLES[table](results, options.seeds)


if __name__ == "__main__":
    main()
