"""Recall and time of nearest neighbours in hyperbolic tables, each index next to brute force.

    python -m benchmarks.search --root DATA [--results FILE]
    python -m benchmarks.search --root DATA --results FILE | python -m benchmarks keep search

Half of the queries are rows of the table, half are points at distance 1 from one. Recall at 10 is
the share of answers no farther than the tenth distance of brute force. Times are CPU time, the
least of three passes: of a query in a batch of all, and of one query a call. Tables are Google's
categories and WordNet's nouns laid out as boxes in five dimensions, a trained table, and a random
tree of a million nodes.

Takes 9 CPU minutes.
"""

import functools
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from benchmarks.hierarchies.rows import ROWS, train
from benchmarks.results import Figures, Results
from benchmarks.script import parser
from benchmarks.table import Goal, goal_table, head, line
from benchmarks.timing import Clock
from fedbolic.core.rng import Rng
from fedbolic.data import GoogleProducts, Hierarchy, Nouns
from fedbolic.hierarchies import TreeLayout
from fedbolic.manifolds import Lorentz, ManifoldPlaces, Poincare, to_poincare
from fedbolic.search import (
    ApproximateIndex,
    Faiss,
    Hnswlib,
    HyperbolicIndex,
    KDTree,
    NearestPoints,
    Qdrant,
)
from fedbolic.search.table import SearchTable

NUM_QUERIES = 200
K = 10
PREFETCH = 1000
PASSES = 3
MILLION = 10**6
EXACT, APPROXIMATE = "exact, scipy's k-d tree", "approximate, usearch and k-d tree"


class Index(Protocol):
    """An index that answers queries by points."""

    def search(self, queries: Tensor, k: int) -> NearestPoints:
        """The nearest points."""
        ...


class Prefetched:
    """The nearest of the points that are nearest by Euclidean distance in the ball."""

    def __init__(self, places: ManifoldPlaces) -> None:
        self._table = SearchTable(places)
        self._tree = KDTree(places.points.numpy())

    def search(self, queries: Tensor, k: int) -> NearestPoints:
        """The nearest of the points fetched first."""
        most = min(PREFETCH, len(self._table))
        found = [self._tree.nearest(x, most, within=np.inf) for x in queries.numpy()]
        complete = np.zeros(len(found), dtype=bool)
        return self._table.answer(self._table.read(queries), found, k, complete)


class Graph(ApproximateIndex):
    """usearch's graph without the points nearest in the ball."""

    def _candidates(self, x: np.ndarray, vector: np.ndarray, k: int) -> np.ndarray:
        return self._graph.search(vector, k, threads=1).keys.astype(np.int64)


KINDS: dict[str, tuple[str | None, int, Callable[[ManifoldPlaces], Index]]] = {
    EXACT: (None, MILLION, HyperbolicIndex),
    APPROXIMATE: ("usearch", MILLION, ApproximateIndex),
    "usearch alone": ("usearch", 10**5, Graph),
    "shifted, hnswlib": ("hnswlib", 10**5, functools.partial(HyperbolicIndex, euclidean=Hnswlib)),
    "shifted, faiss (HNSW32)": (
        "faiss",
        10**5,
        functools.partial(HyperbolicIndex, euclidean=Faiss),
    ),
    "shifted, Qdrant in local mode": (
        "qdrant_client",
        10**4,
        functools.partial(HyperbolicIndex, euclidean=Qdrant),
    ),
    f"Euclidean prefetch of {PREFETCH}": (None, 10**5, Prefetched),
}
"""Package, largest table and class of every row but brute force."""


def tables(root: Path | None) -> Iterator[tuple[str, Callable[[], Float64[Tensor, "n 5"]]]]:
    """Names of the tables and functions that make their points in the ball."""
    google, nouns = GoogleProducts(), Nouns()
    for name, data in (("Google", google), ("nouns", nouns)):
        for radius in (9.0, 17.0):
            read = functools.partial(data.read, root, download=False)
            yield f"{name}, boxes, radius {radius:g}", functools.partial(_boxes, read, radius)
    yield "Google, trained", functools.partial(_trained, root)
    yield "random tree, 10^6 nodes, boxes, radius 17", functools.partial(_boxes, _tree, 17.0)


def _tree() -> Hierarchy:
    """Direct edges of a uniform recursive tree, whose closure would be thirteen times as large."""
    nodes = np.arange(1, MILLION)
    parents = Rng(0).numpy().integers(nodes)
    pairs = torch.from_numpy(np.stack((nodes, parents), axis=1))
    return Hierarchy(tuple(map(str, range(MILLION))), pairs)


def _boxes(read: Callable[[], Hierarchy], radius: float) -> Tensor:
    """The layout, scaled along the radius so that its farthest point lies at ``radius``."""
    points = TreeLayout(way="boxes", dim=5).place(read()).to_poincare(torch.float64)
    lengths = points.norm(dim=1, keepdim=True)
    radii = 2 * lengths.atanh()
    return points / lengths.clamp(min=1e-300) * (radii * radius / radii.max() / 2).tanh()


def _trained(root: Path | None) -> Tensor:
    row = "ours, tangents, torch Adam; cooled"
    hierarchy = GoogleProducts().read(root, download=False)
    setting = ROWS[row][1].tries[0]
    trained = train(row, hierarchy, dim=5, setting=setting, seed=0, dtype=torch.float32)
    points = trained.table.points().detach().double()
    return to_poincare(Lorentz(), points) if points.shape[1] == 6 else points


def queries_of(points: Float64[Tensor, "n 5"]) -> Float64[Tensor, "queries 5"]:
    """Rows, and points at distance 1 from rows in a random direction."""
    generator = Rng(1).generator()
    rows = points[torch.randint(len(points), (NUM_QUERIES,), generator=generator)]
    tangents = torch.randn(rows.shape, generator=generator, dtype=rows.dtype)
    space = Poincare()
    tangents /= space.norm(rows, tangents).unsqueeze(1)
    tangents[: NUM_QUERIES // 2] = 0
    return space.expmap(rows, tangents)


def brute_force(points: Tensor, queries: Tensor) -> Figures:
    """Time of all distances, with the largest radius of the table."""
    clock, space, batches, alone = Clock(), Poincare(), [], []
    for _ in range(PASSES):
        clock.lap()
        _nearest(points, queries)
        batches.append(clock.lap())
        for query in queries[:20]:
            _nearest(points, query[None])
        alone.append(clock.lap())
    times = min(batches) / len(queries), min(alone) / 20
    figures = {"ms in a batch": times[0] * 1e3, "ms alone": times[1] * 1e3}
    return {**figures, "recall": 1.0, "exact": 1.0, "radius": float(space.dist0(points).max())}


def _nearest(points: Tensor, queries: Tensor) -> Tensor:
    places = ManifoldPlaces(Poincare(), queries)
    return places.cdist(ManifoldPlaces(Poincare(), points)).topk(K, largest=False).values


def measure(make: Callable[[ManifoldPlaces], Index], points: Tensor, queries: Tensor) -> Figures:
    """Seconds to build an index, its recall and its times."""
    clock = Clock()
    index = make(ManifoldPlaces(Poincare(), points))
    built = clock.lap()
    found = index.search(queries, K)
    batches, alone = [], []
    for _ in range(PASSES):  # other work on the machine slows some of them
        clock.lap()
        index.search(queries, K)
        batches.append(clock.lap())
        for query in queries:
            index.search(query[None], K)
        alone.append(clock.lap())
    worst = _nearest(points, queries)[:, -1:]
    return {
        "seconds to build": built,
        "ms in a batch": min(batches) / len(queries) * 1e3,
        "ms alone": min(alone) / len(queries) * 1e3,
        "recall": float((found.distances <= worst * (1 + 1e-9)).double().mean()),
        "exact": float(found.exact.double().mean()),
    }


def fill(results: Results, root: Path | None) -> None:
    """Measure every row that the file lacks."""
    for name, make in tables(root):
        points: Tensor | None = None
        for kind, (package, most, index) in {"brute force": (None, MILLION, None), **KINDS}.items():
            missing = package is not None and find_spec(package) is None
            if (name, kind) in results.known or missing:
                continue
            points = make() if points is None else points
            if len(points) > most:
                continue
            queries = queries_of(points)
            if index is None:
                results.add((name, kind), brute_force, points, queries)
            else:
                results.add((name, kind), measure, index, points, queries)


def text(results: Results) -> str:
    """All figures as one table, and the goals."""
    lines = [
        head("table", "index", "recall at 10", "said to be exact", "ms in a batch", "ms alone")
    ]
    for (table, kind), f in _in_order(results):
        share = f"{100 * f['exact']:.0f} %" if f["exact"] else ""
        times = f"{f['ms in a batch']:.2f}", f"{f['ms alone']:.2f}"
        lines.append(line(table, kind, f"{f['recall']:.4f}", share, *times))
    return "\n".join(lines) + "\n\n" + goal_table(_goals(results))


def _in_order(results: Results) -> Iterator[tuple[tuple[str, str], Figures]]:
    for table, _ in tables(None):
        for kind in ("brute force", *KINDS):
            if (table, kind) in results.known:
                yield (table, kind), results.known[table, kind]


def _goals(results: Results) -> Iterator[Goal]:
    for (table, kind), f in _in_order(results):
        if kind == EXACT:
            yield Goal("recall", f"exact, {table}", ">=", 1.0, f["recall"])
            most = 5.0 if "10^6" in table else 1.0
            for way in ("ms in a batch", "ms alone"):
                yield Goal(way, f"exact, {table}", "<=", most, f[way])
        elif kind == APPROXIMATE:
            yield Goal("recall", f"approximate, {table}", ">=", 0.995, f["recall"])
            yield Goal("ms in a batch", f"approximate, {table}", "<=", 0.3, f["ms in a batch"])


def main() -> None:
    """Measure, and print the tables."""
    options = parser(__doc__, "search.csv")
    options.add_argument("--root", type=Path, help="folder of the data")
    asked = options.parse_args()
    results = Results(asked.results)
    fill(results, asked.root)
    print(f"\n**Indices**\n\n{text(results)}")


if __name__ == "__main__":
    main()
