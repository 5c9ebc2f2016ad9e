"""Table of ``benchmarks.hulls``: sizes of hulls, CPU time by stage, and bytes.

One process plays all parties. Times of stages are taken within whole runs and printed next to those
that the specification measured in a separate trial.
"""

import functools
import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from benchmarks.hulls.tables import GRID, olsson
from benchmarks.results import Results
from benchmarks.table import Goal, goal_table, head, line, spread
from benchmarks.timing import Clock, seconds
from fedbolic.core.rng import Rng
from fedbolic.data import FederatedData, HalfPlanes, uniform_points
from fedbolic.federated import Method, Trainer
from fedbolic.federated.secure import SecureSum
from fedhull import FedHull, HyperbolicBoundary, PolarGrid, exchanges
from fedhull.exchanges import Hulls, Names, Sizes
from fedhull.geometry.hull import hull
from fedhull.transmit import num_symbols

SETS = 5
"""Sets of points of each size."""

GOALS = {"Olsson": 80.0, "20,000 points": 1500.0, "hull of 10^6 points": 1000.0}
SPEC = {
    "Olsson": {
        "client hulls, report": "9-11",
        "encode": "0.6-0.9",
        "decode": "2.1-2.5",
        "labels": "1.4-1.6",
        "distances": "0.7-0.8",
        "grouping": "2.3-3.3",
        "training": "37-48",
        "together": "60-74",
        "bytes up": "1176",
        "bytes up, packed": "956",
    },
    "20,000 points": {"together": "1200-1500", "bytes up": "32000-52000"},
}
"""Values of the specification, in ms and bytes; its totals contain 3 ms of masks and keys."""


def hulls(sizes: tuple[int, ...], seeds: int) -> float:
    """Print sizes and times of hulls of uniform points; return the last median in milliseconds."""
    print(head("points", "corners: mean ± sd", "over N^(1/3)", "ms of CPU"))
    taken = math.nan
    for num_points in sizes:
        corners, times = [], []
        for seed in range(seeds):
            x = uniform_points(num_points, radius=0.95, rng=Rng(seed)).numpy()
            times.append(seconds(lambda x=x, of=corners: of.append(len(hull(x))), "cpu"))
        taken = 1000 * statistics.median(times)
        share = statistics.fmean(corners) / num_points ** (1 / 3)
        print(line(num_points, spread(corners, 0), f"{share:.2f}", f"{taken:.1f}"))
    return taken


@contextmanager
def watched(places: dict[str, tuple[Any, str]]) -> Iterator[dict[str, float]]:
    """CPU seconds of functions of modules or classes by stage, added up while the body runs."""
    spent = dict.fromkeys(places, 0.0)

    def clocked(stage: str, function: Callable) -> Callable:
        @functools.wraps(function)
        def timed(*args: object, **keywords: object) -> object:
            clock = Clock()
            try:
                return function(*args, **keywords)
            finally:
                spent[stage] += clock.lap()

        return timed

    with ExitStack() as stack:
        for stage, (owner, name) in places.items():
            own = clocked(stage, getattr(owner, name))
            stack.enter_context(mock.patch.object(owner, name, own))
        yield spent


def run(method: Method, data: FederatedData) -> dict[str, float]:
    """The sum over clients of every metric of a run."""
    found: dict[str, float] = {}
    for _, rows in Trainer().run(method, data, Rng(0)):
        for row in rows:
            found[row.name] = found.get(row.name, 0.0) + row.value
    return found


def trial(method: FedHull, data: FederatedData) -> dict[str, float]:
    """Milliseconds of each stage, of the whole run and of a masked run; bytes of a client."""
    stages = {
        "client hulls, report": (Sizes, "local_update"),
        "encode": (Hulls, "local_update"),
        "decode": (exchanges, "decode_hulls"),
        "labels": (type(method.code), "decode"),
        "distances": (exchanges, "hull_distances"),
        "grouping": (type(method.grouping), "groups"),
        "training": (type(method.boundary), "fit"),
        "names": (Names, "local_update"),
    }
    with watched(stages) as taken:
        clock = Clock()
        metrics = run(method, data)
        whole = clock.lap()
    found = {stage: 1000 * taken[stage] for stage in stages}
    masked = seconds(lambda: run(SecureSum(method), data), "cpu")
    modulus = method.init(data.meta, Rng(0))["modulus"]
    symbols = num_symbols(int(metrics["leakage/bins"]))
    return found | {
        "together": sum(found.values()),
        "a run, with scores": 1000 * whole,
        "the same, masked": 1000 * masked,
        "bytes up": metrics["bytes/up"] / data.meta.num_clients,
        "bytes up, packed": symbols * (modulus - 1).bit_length() / 8,
    }


def cases() -> dict[str, tuple[FedHull, Callable[[int], FederatedData]]]:
    """Timed cases by title."""
    synthetic = HalfPlanes(num_points=20_000, offset=0.2, margin=0.01, least=1000)
    boundary = HyperbolicBoundary(20_000.0, pairs=1)
    return {
        "Olsson": (FedHull(GRID), lambda i: olsson(3, legacy=3, seed=i)),
        "20,000 points": (
            FedHull(PolarGrid(0.1, 0.95), boundary=boundary),
            lambda i: synthetic.load(Rng(i)),
        ),
    }


def times_table(results: Results, seeds: int) -> None:
    """Hull sizes, times of stages over as many runs as seeds, and the goals that were met."""
    del results  # times are measured together
    measured = {"hull of 10^6 points": hulls(tuple(10**k for k in range(3, 7)), SETS)}
    medians: dict[str, dict[str, float]] = {}
    for title, (method, load) in cases().items():
        trial(method, load(0))  # warm-up
        found = [trial(method, load(i)) for i in range(seeds)]
        medians[title] = {name: statistics.median(of[name] for of in found) for name in found[0]}
        measured[title] = medians[title]["together"]
    heads = [of for title in medians for of in (title, "specification")]
    print(f"\nmedian of {seeds} trials, ms of CPU\n\n{head('', *heads)}")
    for name in medians["Olsson"]:
        cells = [(f"{of[name]:.1f}", SPEC[title].get(name, "")) for title, of in medians.items()]
        print(line(name, *(cell for pair in cells for cell in pair)))
    print()
    print(goal_table(Goal("ms", name, "<=", goal, measured[name]) for name, goal in GOALS.items()))
