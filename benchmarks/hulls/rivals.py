"""Other summaries of a client's classes than hulls: a table of ``benchmarks.hulls``.

Each client may reveal as many bins of a class as the hull of its points has corners. It fills them
with those corners, with the corners of a core's hull, with centres of k-means, or with points that
it draws; the server trains the same boundary on the centres of the bins, which are grouped without
error. Sums of tangent vectors and of their products (a Gaussian for each class) take fewer bytes,
and are added up by a secure sum as they are.
"""

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from sklearn.cluster import KMeans

from benchmarks.hulls.tables import CORES, Case, Labelled, cases, held, joined, parts
from benchmarks.results import Figures, Results
from fedbolic.core.rng import Rng
from fedbolic.data import FederatedData
from fedbolic.federated.aggregators.modular import num_limbs
from fedbolic.manifolds import Poincare
from fedhull import FedHull, HyperbolicBoundary
from fedhull.boundary import Boundary
from fedhull.core import Core
from fedhull.leakage import quantised_hulls
from fedhull.transmit import num_symbols

Summary = Callable[[np.ndarray, int], np.ndarray]
"""Function of a class's points and a number; at most that many points of the disc."""


def drawn(points: Float[np.ndarray, "n 2"], number: int, *, seed: int) -> Float[np.ndarray, "m 2"]:
    """Points drawn without replacement."""
    return np.random.default_rng(seed).choice(points, number, replace=False)


def centres(
    points: Float[np.ndarray, "n 2"], number: int, *, seed: int
) -> Float[np.ndarray, "m 2"]:
    """Centres of k-means in the tangent space at the origin."""
    space = Poincare()
    logs = space.logmap0(torch.from_numpy(points)).numpy()
    number = min(number, len(np.unique(logs, axis=0)))
    found = KMeans(number, random_state=seed).fit(logs)
    return space.expmap0(torch.from_numpy(found.cluster_centers_)).numpy()


def budget(case: Case, x: np.ndarray, y: np.ndarray) -> dict[int, int]:
    """Bins that a client reveals of each class without a core."""
    return {k: len(bins) for k, bins in quantised_hulls(x, y, case.grid).items()}


def summarised(case: Case, data: FederatedData, summary: Summary) -> list[Labelled]:
    """Bins of summaries of every class at every client, as points."""
    found = []
    for x, y in parts(data):
        for k, number in budget(case, x, y).items():
            bins = np.unique(case.grid.encode(summary(x[y == k], number)))
            found.append((case.grid.decode(bins), np.full(len(bins), k)))
    return found


def hulls(case: Case, data: FederatedData, core: Core | None) -> list[Labelled]:
    """Bins of the hulls of every class's core at every client, as points."""
    found = []
    for x, y in parts(data):
        boundary = HyperbolicBoundary(case.C, pairs=case.pairs)
        mask = None if core is None else core.kept(x, y, c=1.0, boundary=boundary)
        for k, bins in quantised_hulls(x, y, case.grid, core=mask).items():
            found.append((case.grid.decode(bins), np.full(len(bins), k)))
    return found


def trained(
    boundary: Boundary, case: Case, data: FederatedData, messages: Callable[[], list[Labelled]]
) -> Figures:
    """Accuracy in percent on the server's test set, and kilobytes up under the protocol."""
    x, y = joined(messages())
    learned = boundary.fit(x, y, c=1.0)
    test, labels = held(data)
    found = boundary.log_odds(learned, test, c=1.0).argmax(axis=1)
    modulus = FedHull(case.grid).init(data.meta, Rng(0))["modulus"]
    size = 8 * num_limbs(modulus) * num_symbols(len(y)) * data.meta.num_clients
    return {"accuracy": 100 * float(np.mean(found == labels)), "kilobytes": size / 1000}


def gaussians(data: FederatedData) -> Figures:
    """Gaussian classes in the tangent space at the origin, from sums over all clients."""
    x, y = joined(parts(data))  # sums over clients are sums over their points
    logs = Poincare().logmap0(torch.from_numpy(x)).numpy()
    test, labels = held(data)
    at, odds = Poincare().logmap0(torch.from_numpy(test)).numpy(), []
    for k in range(data.meta.num_classes):
        of_class = logs[y == k]
        count, total = len(of_class), of_class.sum(axis=0)
        mean = total / count
        spread = of_class.T @ of_class / count - np.outer(mean, mean)
        inverse, (_, logarithm) = np.linalg.inv(spread), np.linalg.slogdet(spread)
        away = np.einsum("nd,de,ne->n", at - mean, inverse, at - mean)
        odds.append(np.log(count) - logarithm / 2 - away / 2)
    dim = logs.shape[1]
    num_sums = 1 + dim + dim * (dim + 1) // 2  # a count, coordinates, products of two
    size = 8 * num_sums * data.meta.num_classes * data.meta.num_clients
    right = np.argmax(odds, axis=0) == labels
    return {"accuracy": 100 * float(right.mean()), "kilobytes": size / 1000}


def rivals_table(results: Results, seeds: int) -> None:
    """Every row on every set."""
    for seed, (name, case) in itertools.product(range(seeds), cases().items()):
        data = case.load(seed)
        boundary = HyperbolicBoundary(case.C, pairs=case.pairs)
        rows = {f"hulls, {core}": partial(hulls, case, data, CORES[core]) for core in CORES}
        for row, summary in (("k-means centres", centres), ("points drawn", drawn)):
            rows[row] = partial(summarised, case, data, partial(summary, seed=seed))
        for row, messages in rows.items():
            key = ("rivals", name, row, str(seed))
            results.add(key, trained, boundary, case, data, messages)
        results.add(("rivals", name, "Gaussians", str(seed)), gaussians, data)
    results.show("rivals", ("accuracy", "kilobytes"))
