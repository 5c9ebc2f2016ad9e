"""FedHull in 2, 3, 5 dimensions: ``FEDBOLIC_DATA=DATA python -m benchmarks.hulls_in_dimensions``.

Generated points, and embeddings of digits and Fashion-MNIST by our own networks. Every row is
computed for every set and dimension: training in one place on all points, on the corners of each
class's hull, and on those of cores; the protocol with ten clients; Gaussian classes from sums; and
a flat twin, a linear SVM on an embedding of the same width by a network with a linear head. Every
figure is appended to a CSV; a run that was interrupted goes on from there.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np
import torch

from benchmarks.core_rivals import gaussians
from benchmarks.cores import Labelled, joined, parts, run, unless_stopped
from benchmarks.embeddings import DIMS, TASKS, Parts, saved
from benchmarks.olsson import majority
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
from fedhull.exchanges import arrays
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
    """Points of a set, dealt to ten clients at random.

    Args:
        name: ``GENERATED``, or a key of ``TASKS``.
        dim: Number of dimensions.
        seed: Seed of the draw, of the embedding and of the deal.
        folder: Folder of embeddings.
    """
    if name == GENERATED:
        source = HalfPlanes(NUM_GENERATED, offset=0.2, least=500, overlap=0.5, dim=dim)
        return source.load(Rng(seed))
    file = saved(folder, name, dim, seed).resolve()
    return Points(file, IID(NUM_CLIENTS), holdout="official").load(Rng(seed))


def methods(name: str, dim: int) -> dict[str, Method]:
    """Methods of the rows.

    Args:
        name: Set of points, which decides the public radius.
        dim: Number of dimensions.
    """
    boundary = HyperbolicBoundary(LAMBDA, pairs=1 if name == GENERATED else 3)
    grid = PolarGrid(EPSILON, 0.95 if name == GENERATED else 0.995, dim=dim)
    rows: dict[str, Method] = {"one place, all points": Central(boundary)}
    for cut, core in CORES.items():
        rows[f"one place, corners of {cut}"] = Central(boundary, hulls="once", core=core)
    for cut, core in CORES.items():
        rows[f"protocol, {cut}"] = FedHull(grid, boundary=boundary, core=core)
    return rows


def in_one_place(method: Method, data: FederatedData, seed: int) -> Figures:
    """Figures of a run, and the share of all points that are corners of their class's hull.

    Args:
        method: Method to run.
        data: Its clients.
        seed: Seed of the run.
    """
    x, y = joined(parts(data))
    corners = sum(len(extreme_points(x[y == k])) for k in np.unique(y))
    return run(method, data, seed)[0] | {"corners": 100 * corners / len(y)}


def flat_parts(name: str, data: FederatedData, dim: int, seed: int, folder: Path) -> Parts:
    """Flat twin of the points: another embedding, or generated points as they are.

    Args:
        name: Set of points.
        data: The points in the ball.
        dim: Number of dimensions.
        seed: Seed of the embedding.
        folder: Folder of embeddings.
    """
    if name != GENERATED:
        with np.load(saved(folder, name, dim, seed, flat=True)) as file:
            return Parts(**file)
    assert data.holdout is not None  # every set has a test part
    return Parts(*joined(parts(data)), *arrays(data.holdout.test))


def flat(twin: Parts, messages: list[Labelled]) -> Figures:
    """Accuracy in percent of linear SVMs on points of Euclidean space, and megabytes of them.

    Args:
        twin: The test part is classified.
        messages: Points and labels to train on.
    """
    x, y = joined(messages)
    boundary = EuclideanBoundary(LAMBDA)
    found = boundary.log_odds(boundary.fit(x, y, c=0.0), twin.x_test, c=0.0).argmax(axis=1)
    accuracy = 100 * float(np.mean(found == twin.y_test))
    return {"accuracy": accuracy, "kilobytes": NUMBER * (x.size + y.size) / 1000}


def flat_corners(x: np.ndarray, y: np.ndarray) -> list[Labelled]:
    """Corners of the Euclidean hull of each class, in the clear.

    Args:
        x: Points of Euclidean space.
        y: Their labels.
    """
    classes = [x[y == k] for k in np.unique(y)]
    hulls = [of_class[extreme_points(of_class, c=0.0)] for of_class in classes]
    return [(of, np.full(len(of), k)) for of, k in zip(hulls, np.unique(y), strict=True)]


def dealt_corners(twin: Parts, seed: int) -> list[Labelled]:
    """Corners of the Euclidean hulls of each client's classes.

    Args:
        twin: Points of Euclidean space.
        seed: Seed of the deal.
    """
    owners = IID(NUM_CLIENTS).split(torch.from_numpy(twin.y_train), Rng(seed).at("partition"))
    own = [(twin.x_train[index.numpy()], twin.y_train[index.numpy()]) for index in owners]
    return [hull for x, y in own for hull in flat_corners(x, y)]


def guessed(data: FederatedData) -> Figures:
    """Accuracy of the most frequent class.

    Args:
        data: A split.
    """
    return {"accuracy": majority(data)}


def compare(results: Results, folder: Path, *, dims: tuple[int, ...], seeds: int) -> None:
    """Compute every row on every set, and print the table.

    Args:
        results: Figures so far.
        folder: Folder of embeddings.
        dims: Dimensions.
        seeds: Draws or embeddings of each set and dimension.
    """
    for name, dim, seed in itertools.product((GENERATED, *TASKS), dims, range(seeds)):
        data = loaded(name, dim, seed, folder)

        def key(row: str, at: tuple[str, ...] = (name, str(dim), str(seed))) -> tuple[str, ...]:
            return ("dimensions", at[0], row, *at[1:])

        results.add(key("majority"), guessed, data)
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


def main() -> None:
    """Compute and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dims", type=int, nargs="+", default=DIMS, help="dimensions")
    parser.add_argument("--seeds", type=int, default=3, help="draws of every set")
    parser.add_argument("--folder", type=Path, default=Path("embeddings"), help="embeddings")
    parser.add_argument(
        "--results", type=Path, default=Path("dimensions.csv"), help="file to go on in"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(options.results)
    compare(results, options.folder, dims=tuple(options.dims), seeds=options.seeds)


if __name__ == "__main__":
    main()
