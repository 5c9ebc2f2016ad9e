"""FedHull in 2, 3 and 5 dimensions: a table of ``benchmarks.hulls``.

Generated points, and embeddings of digits and Fashion-MNIST by our own networks. Every row is
computed for every set and dimension: training in one place on all points, on the corners of each
class's hull, and on those of cores; the protocol with ten clients; Gaussian classes from sums; and
a flat twin, a linear SVM on an embedding of the same width by a network with a linear head.
"""

import itertools
from pathlib import Path

import numpy as np
import torch

from benchmarks.hulls.embeddings import DIMS, TASKS, Parts, saved
from benchmarks.hulls.rivals import gaussians
from benchmarks.hulls.tables import Labelled, held, joined, majority, parts, run, unless_stopped
from benchmarks.results import Figures, Results
from fedbolic.core.rng import Rng
from fedbolic.data import IID, FederatedData, HalfPlanes, Points
from fedbolic.federated import Method
from fedhull import (
    Central,
    EuclideanBoundary,
    Farthest,
    FedHull,
    HullPeeling,
    HyperbolicBoundary,
    PolarGrid,
)
from fedhull.core import Core
from fedhull.geometry.extreme import extreme_points

GENERATED = "generated, overlapping"
NUM_GENERATED = 4000
NUM_CLIENTS = 10
LAMBDA, EPSILON = 10.0, 0.1
"""Penalty and largest distance in a bin, of all rows; neither was searched."""

CORES: dict[str, Core | None] = {
    "all points": None,
    "farthest 10 % cut": Farthest(0.1),
    "peeled by 20 %": HullPeeling(0.2),
}

NUMBER = 8
"""Bytes of a coordinate or of a label."""


def loaded(name: str, dim: int, seed: int, folder: Path) -> FederatedData:
    """Points of a set, dealt to ten clients at random."""
    if name == GENERATED:
        source = HalfPlanes(NUM_GENERATED, offset=0.2, least=500, overlap=0.5, dim=dim)
        return source.load(Rng(seed))
    file = saved(folder, name, dim, seed).resolve()
    return Points(file, IID(NUM_CLIENTS), holdout="official").load(Rng(seed))


def methods(name: str, dim: int) -> dict[str, Method]:
    """Methods of the rows."""
    boundary = HyperbolicBoundary(LAMBDA, pairs=1 if name == GENERATED else 3)
    grid = PolarGrid(EPSILON, 0.95 if name == GENERATED else 0.995, dim=dim)
    rows: dict[str, Method] = {"one place, all points": Central(boundary)}
    for cut, core in CORES.items():
        rows[f"one place, corners of {cut}"] = Central(boundary, hulls="once", core=core)
    for cut, core in CORES.items():
        rows[f"protocol, {cut}"] = FedHull(grid, boundary=boundary, core=core)
    return rows


def in_one_place(method: Method, data: FederatedData, seed: int) -> Figures:
    """Figures of a run, and the share of all points that are corners of their class's hull."""
    x, y = joined(parts(data))
    corners = sum(len(extreme_points(x[y == k])) for k in np.unique(y))
    return run(method, data, seed)[0] | {"corners": 100 * corners / len(y)}


def flat_parts(name: str, data: FederatedData, dim: int, seed: int, folder: Path) -> Parts:
    """Flat twin of the points: another embedding, or generated points as they are."""
    if name != GENERATED:
        with np.load(saved(folder, name, dim, seed, flat=True)) as file:
            return Parts(**file)
    return Parts(*joined(parts(data)), *held(data))


def flat(twin: Parts, messages: list[Labelled]) -> Figures:
    """Accuracy in percent of linear SVMs on points of Euclidean space, and megabytes of them."""
    x, y = joined(messages)
    boundary = EuclideanBoundary(LAMBDA)
    found = boundary.log_odds(boundary.fit(x, y, c=0.0), twin.x_test, c=0.0).argmax(axis=1)
    accuracy = 100 * float(np.mean(found == twin.y_test))
    return {"accuracy": accuracy, "kilobytes": NUMBER * (x.size + y.size) / 1000}


def flat_corners(x: np.ndarray, y: np.ndarray) -> list[Labelled]:
    """Corners of the Euclidean hull of each class, in the clear."""
    classes = [x[y == k] for k in np.unique(y)]
    hulls = [of_class[extreme_points(of_class, c=0.0)] for of_class in classes]
    return [(of, np.full(len(of), k)) for of, k in zip(hulls, np.unique(y), strict=True)]


def dealt_corners(twin: Parts, seed: int) -> list[Labelled]:
    """Corners of the Euclidean hulls of each client's classes."""
    owners = IID(NUM_CLIENTS).split(torch.from_numpy(twin.y_train), Rng(seed).at("partition"))
    own = [(twin.x_train[index.numpy()], twin.y_train[index.numpy()]) for index in owners]
    return [hull for x, y in own for hull in flat_corners(x, y)]


def dimensions_table(results: Results, seeds: int, *, folder: Path) -> None:
    """Every row on every set."""
    for name, dim, seed in itertools.product((GENERATED, *TASKS), DIMS, range(seeds)):
        data = loaded(name, dim, seed, folder)

        def key(row: str, at: tuple[str, ...] = (name, str(dim), str(seed))) -> tuple[str, ...]:
            return ("dimensions", at[0], row, *at[1:])

        results.add(key("majority"), majority, data)
        for row, method in methods(name, dim).items():
            measure = in_one_place if row == "one place, all points" else unless_stopped
            results.add(key(row), measure, method, data, seed)
        results.add(key("Gaussians"), gaussians, data)
        twin = flat_parts(name, data, dim, seed, folder)
        results.add(key("flat, all points"), flat, twin, [(twin.x_train, twin.y_train)])
        corners = flat_corners(twin.x_train, twin.y_train)
        results.add(key("flat, corners"), flat, twin, corners)
        results.add(key("flat, corners of ten clients"), flat, twin, dealt_corners(twin, seed))
    results.show("dimensions", ("accuracy", "kilobytes", "leakage/share", "corners"))
