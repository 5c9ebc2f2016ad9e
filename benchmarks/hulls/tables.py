"""Tables of ``benchmarks.hulls``: splits, reference points, corners, protocol, leaks, peeling."""

import itertools
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.results import Figures, Results
from benchmarks.table import head, interval, line
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

OLSSON = Path("single_cell/olsson/olsson_poincare_embedding.npz")
GRID = PolarGrid(epsilon=0.01, radius=0.9772)
FASHION = Path("poincare_embeddings/fashion-mnist/fashion-mnist_poincare_embedding.npz")

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

PAIRS = (1, 2, 3, 5, 10)
PARTITIONS = 3
"""Partitions of each split for the federated rows; the other rows do not depend on them."""

LEAKS = ("leakage/share", "leakage/bins", "leakage/outlying", "leakage/most_of_class")

Labelled = tuple[np.ndarray, np.ndarray]


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


def fashion(seed: int) -> FederatedData:
    """The embedding of Fashion-MNIST with its own test part, dealt to ten clients."""
    return Points(FASHION, ClassRuns(10), holdout="official").load(Rng(seed))


def olsson(split: int | None, *, legacy: int | None, seed: int) -> FederatedData:
    """Olsson's cells, dealt to three clients."""
    source = Points(OLSSON, ClassRuns(3, legacy=legacy), split=split)
    return source.load(Rng(seed).at("data"))


def half_planes(seed: int, **settings: float) -> FederatedData:
    """The points of Figure 5, mu 0.2."""
    return HalfPlanes(20_000, offset=0.2, least=1000, **settings).load(Rng(seed))  # type: ignore[arg-type]


def cases() -> dict[str, Case]:
    """Data of the protocol's table by name."""
    cells = Points(OLSSON, ClassRuns(3))
    drawn = Points(FASHION, ClassRuns(10))
    near, disc = PolarGrid(0.1, 0.9991), PolarGrid(0.1, 0.95)
    overlapping = partial(half_planes, overlap=0.5)
    return {
        "Fashion-MNIST, official": Case(fashion, 0.1, near, drawn=False),
        "Fashion-MNIST, drawn (inflated)": Case(lambda i: drawn.load(Rng(i)), 0.1, near, kinds="P"),
        "Olsson": Case(lambda i: cells.load(Rng(i)), 0.1, GRID),
        "generated, overlapping": Case(overlapping, 10.0, disc, pairs=1),
    }


def majority(data: FederatedData) -> Figures:
    """Accuracy in percent of always predicting the most frequent training class."""
    labels = torch.cat([client.train.all()["y"] for client in data.clients])
    return {"accuracy": 100 * float(np.mean(held(data)[1] == labels.mode().values.numpy()))}


def parts(data: FederatedData) -> list[Labelled]:
    """Training points and labels of each client."""
    return [arrays(client.train) for client in data.clients]


def held(data: FederatedData) -> Labelled:
    """Points and labels of the server's test set, which every case has."""
    assert data.holdout is not None
    return arrays(data.holdout.test)


def joined(several: Iterable[Labelled]) -> Labelled:
    """One set of points and labels from several."""
    points, labels = zip(*several, strict=True)
    return np.concatenate(points), np.concatenate(labels)


def on_corners(data: FederatedData, core: Core | None, *, each: bool) -> Figures:
    """Figures of :func:`trained` on the corners of hulls, of each client or of all points."""
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


def trained(data: FederatedData, x: np.ndarray, y: np.ndarray) -> Figures:
    """Accuracy of HyperbolicSVC(C=10) in percent on the server's test set, and points used."""
    test, labels = held(data)
    found = HyperbolicSVC(C=10.0).fit(x, y).predict(test)
    return {"accuracy": 100 * float(np.mean(found == labels)), "points": float(len(y))}


def run(method: Method, data: FederatedData, seed: int) -> tuple[Figures, Tree]:
    """Accuracy in percent, kilobytes up and mean leakage of a run, and the server's last state."""
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
    """Share of the hulls in another group than most hulls of their class, in percent."""
    bins, owners = (server_state["hulls"][name].numpy() for name in ("bins", "labels"))
    used, num_classes = np.unique(owners), server_state["num_classes"]
    hulls = [method.grid.decode(bins[owners == label]) for label in used]
    distances = hull_distances(hulls, c=method.grid.c)
    groups = grouping.groups(distances, used // num_classes, num_groups=num_classes)
    together = np.zeros((num_classes, num_classes))
    np.add.at(together, (groups, used % num_classes), 1)
    right = together[np.arange(num_classes), match_labels(together)].sum()
    return 100 * float(1 - right / len(used))


def measured(method: Method, data: FederatedData, seed: int) -> Figures:
    """Figures of a run, and the errors of both groupings if it has any."""
    figures, server_state = run(method, data, seed)
    if isinstance(method, FedHull) and isinstance(method.boundary, HyperbolicBoundary):
        figures["misplaced"] = misplaced(method, server_state, Assignment())
        figures["misplaced, spectral"] = misplaced(method, server_state, Spectral())
    return figures


def unless_stopped(method: Method, data: FederatedData, seed: int) -> Figures:
    """Figures of :func:`run`; nothing is revealed and nothing learned if the run stops."""
    try:
        return run(method, data, seed)[0]
    except RunStoppedError:
        return {"stopped": 1.0}


def over_partitions(method: Method, deals: Iterable[FederatedData]) -> Figures:
    """Mean accuracy over several partitions of a split."""
    found = [run(method, data, seed)[0]["accuracy"] for seed, data in enumerate(deals)]
    return {"accuracy": statistics.fmean(found)}


def layers_of(x: np.ndarray) -> Figures:
    """Number of layers that go until a fifth of the points is gone."""
    gone = num_layers = 0
    for layer in onion_layers(x):
        gone, num_layers = gone + len(layer), num_layers + 1
        if gone >= len(x) / 5:
            break
    return {"layers": float(num_layers)}


def gaps(results: Results, table: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Print paired differences of accuracy between rows, and how often the first is ahead."""
    by_row: dict[tuple[str, str], dict[str, float]] = {}
    for (of, case, row, *seed), figures in results.known.items():
        if of == table:
            by_row.setdefault((case, row), {})[str(seed)] = figures["accuracy"]
    print(f"\n{head(table, 'difference', 'ahead in')}")
    for case, (one, other) in itertools.product(dict.fromkeys(c for c, _ in by_row), pairs):
        a, b = by_row.get((case, one), {}), by_row.get((case, other), {})
        found = [a[seed] - b[seed] for seed in a if seed in b]
        if found:
            ahead = f"{100 * statistics.fmean(gap > 0 for gap in found):.0f} %"
            print(line(f"{case}: {one} - {other}", interval(found), ahead))


def olsson_table(results: Results, seeds: int) -> None:
    """Every method on splits of Olsson's cells, at two penalties.

    The intervals treat the splits as independent, although all are splits of the same 319 cells.
    """
    for C, split in itertools.product((0.1, 1.0), range(6 * seeds)):
        deals = [olsson(split, legacy=None, seed=seed) for seed in range(PARTITIONS)]
        results.add(("olsson", f"lambda {C}", "majority", str(split)), majority, deals[0])
        for kind, boundary in (("P", HyperbolicBoundary(C)), ("E", EuclideanBoundary(C))):
            for name, method in (
                ("C" + kind, Central(boundary)),
                ("CH-C" + kind, Central(boundary, hulls="once")),
                ("FL" + kind, FedHull(GRID, boundary=boundary)),
            ):
                own = deals if isinstance(method, FedHull) else deals[:1]
                key = ("olsson", f"lambda {C}", name, str(split))
                results.add(key, over_partitions, method, own)
    results.show("olsson", ("accuracy",))
    gaps(results, "olsson", (("FLP", "CP"), ("FLP", "FLE"), ("CP", "CE"), ("CH-CP", "CP")))


def pairs_table(results: Results, seeds: int) -> None:
    """Numbers of candidates for the reference point on the same draws."""
    disc = PolarGrid(0.1, 0.95)
    sets = {
        "Olsson": (6 * seeds, Case(lambda i: olsson(i, legacy=None, seed=i), 0.1, GRID)),
        "generated": (seeds, Case(partial(half_planes, margin=0.01), 20_000.0, disc)),
        "Fashion-MNIST, official": (1, cases()["Fashion-MNIST, official"]),
    }
    for name, (num, case) in sets.items():
        for seed in range(num):
            data = case.load(seed)
            for pairs in PAIRS:
                boundary = HyperbolicBoundary(case.C, pairs=pairs)
                rows = {"CP": Central(boundary), "FLP": FedHull(case.grid, boundary=boundary)}
                for row, method in rows.items():
                    key = ("pairs", name, f"{row} {pairs}", str(seed))
                    results.add(key, over_partitions, method, [data])
    results.show("pairs", ("accuracy", "seconds"))
    gaps(results, "pairs", [(f"{r} {n}", f"{r} 1") for r in ("CP", "FLP") for n in PAIRS[1:]])


def hulls_table(results: Results, seeds: int) -> None:
    """Accuracy of training on corners alone, without quantiser.

    With one client the official split leaves nothing to draw, so that row has one value.
    """
    sets = {
        "Olsson": (cases()["Olsson"].load, 2 * seeds, 2 * seeds),
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


def protocol_table(results: Results, seeds: int) -> None:
    """Every method on all sets, with and without cores."""
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
        results.add(("protocol", name, "majority", "", str(seed)), majority, data)
        for key, method in rows.items():
            results.add(("protocol", name, *key, str(seed)), measured, method, data, seed)
    results.show("protocol", ("accuracy", "kilobytes", "misplaced", "misplaced, spectral"))
    results.show("protocol", LEAKS)


def leakage_table(results: Results, seeds: int) -> None:
    """Cores together with a least count in a bin, on Fashion-MNIST's embedding at two epsilons."""
    chosen = ("none", "farthest 10 %", "peeled 20 %")
    for seed in range(seeds):
        data = fashion(seed)
        for epsilon, count, core in itertools.product((0.1, 0.3), COUNTS, chosen):
            method = FedHull(PolarGrid(epsilon, 0.9991), min_count=count, core=CORES[core])
            row = f"epsilon {epsilon}, at least {count}"
            key = ("leakage", "Fashion-MNIST, official", row, core, str(seed))
            results.add(key, unless_stopped, method, data, seed)
    results.show("leakage", ("accuracy", *LEAKS, "stopped"))


def peeling_table(results: Results, seeds: int) -> None:
    """CPU seconds of peeling a class by a fifth."""
    for seed, number in itertools.product(range(seeds), (10**4, 10**5, 10**6)):
        normal = np.random.default_rng(seed).normal(size=(number, 2)) / 10
        uniform = uniform_points(number, radius=0.95, rng=Rng(seed)).numpy()
        for kind, x in (("uniform", uniform), ("normal", normal)):
            results.add(("peeling", kind, f"{number} points", str(seed)), layers_of, x)
    results.show("peeling", ("layers", "seconds"))
