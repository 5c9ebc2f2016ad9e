"""Times of this library over those of others, by part, and what has become slower since.

    python -m benchmarks.peers [--parts NAME ...] [--results peers.json]

Every figure is CPU time over CPU time, both measured in turn on one thread; less is faster. A peer
that is not installed has no row. The figures and the name of the machine are written to a JSON
file. If there is one from before, what has grown by a tenth is named, and the exit code is 1.

*geometry*: operations and steps of Adam over those of the faster of geoopt and hypll. *start*:
commands over an import of torch. *engines*: rounds over those of a plain loop. *methods*: runs of
small clients over the algorithms of their papers, written by hand. *hulls*: hulls over scipy's,
support vector machines over scikit-learn's, hashes over numpy and scipy. *hierarchies*: a step of
sparse pairs over one by hand. *secure*: a client's part in a sum of 100 over a key agreement with
every other client.

Takes 10 minutes of CPU time.
"""

import importlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy.spatial import ConvexHull
from sklearn.svm import SVC, LinearSVC

from benchmarks import hash, secure
from benchmarks.engines.candidates import ENGINES, WORKLOADS
from benchmarks.engines.rounds import measure
from benchmarks.geometry import operations as geometry
from benchmarks.geometry.libraries import LIBRARIES, installed
from benchmarks.hierarchies import sparse_rows
from benchmarks.peers import start
from benchmarks.script import parser
from benchmarks.table import head, line
from benchmarks.timing import Case, interleaved, ratio
from fedbolic.core.rng import Rng
from fedbolic.data import uniform_points
from fedbolic.data.hierarchies.trees import balanced_tree
from fedbolic.federated import Evaluation, Trainer
from fedbolic.federated.secure import SecureSum
from fedhull import HyperbolicSVC
from fedhull.geometry.hull import hull
from flynn.fly_hash import connections

FALLEN = 1.1
"""Growth of a figure from which it is named."""

ROUNDS = 5


def over(ours: Case, theirs: Case, *, least: float = 0.2) -> float:
    """Time of a call over that of another, both warmed up."""
    cases = {"ours": ours, "theirs": theirs}
    for case in cases.values():
        case()
    taken = interleaved(cases, "cpu", rounds=ROUNDS, least=least)
    return ratio(taken["ours"], taken["theirs"])


def of_geometry() -> dict[str, float]:
    """Operations over those of the faster peer."""
    if not any(map(installed, LIBRARIES[1:])):
        return {}
    found = {}
    for size, (num, dim) in geometry.SIZES.items():
        for operation in geometry.timed(num, dim):
            for name, figure in geometry.times(size, operation).items():
                if name.endswith(" ratio"):
                    found[f"{operation}, {size}, {name.removesuffix(' ratio')}"] = figure
    return found


def of_start() -> dict[str, float]:
    """Commands over an import of torch."""
    found = start.measure(rounds=3)
    return {f"{n}": s / found[start.TORCH] for n, s in found.items() if n != start.TORCH}


def of_engines() -> dict[str, float]:
    """Rounds over those of a plain loop."""
    made = {}
    for name, work in WORKLOADS.items():
        found = measure(work, ROUNDS, {}, peaks=False)
        for engine in ENGINES:
            if (speed := found.speed(engine)) is not None:
                made[f"{name}, {engine}"] = 1 / speed
    return made


def of_methods(names: Sequence[str] = ()) -> dict[str, float]:
    """Runs of small clients over the loops of ``tests.conformance``, written by hand."""
    trainer, found = Trainer(evaluation=Evaluation(every=sys.maxsize)), {}
    loops = importlib.import_module("tests.conformance.table").LOOPS  # peers are no dependency
    for name in names or loops:
        loop = loops[name]
        data, method = loop.data(), loop.method
        cohorts = [[client.id for client in data.clients]] * method.rounds
        found[name] = over(
            lambda m=method, d=data: list(trainer.run(m, d, Rng(0))),
            lambda r=loop.run, m=method, d=data, c=cohorts: r(m, d, c),
            least=0.05,
        )
    return found


def of_hulls() -> dict[str, float]:
    """Hulls, support vector machines and hashes over those of scipy, scikit-learn and numpy."""
    found = {}
    for num in (1_000, 100_000):
        x = uniform_points(num, radius=0.95, rng=Rng(0)).numpy()
        klein = 2 * x / (1 + np.square(x).sum(1, keepdims=True))
        of_num = over(lambda x=x: hull(x), lambda k=klein: ConvexHull(k))
        found[f"hull of {num:,} points over ConvexHull"] = of_num
    for num, peer in ((300, SVC(kernel="linear")), (30_000, LinearSVC())):
        x = uniform_points(num, radius=0.9, rng=Rng(1)).numpy()
        y = (x[:, 0] + 0.2 * Rng(2).numpy().standard_normal(num) > 0).astype(int)
        fitted = over(
            lambda x=x, y=y: HyperbolicSVC().fit(x, y), lambda x=x, y=y, p=peer: p.fit(x, y)
        )
        found[f"HyperbolicSVC of {num:,} points over {type(peer).__name__}"] = fitted
    for name, case in hash.cases(None).items():
        rows = connections(case.dim, case.x.shape[1], case.fan_in, seed=0).numpy()
        found[f"FlyHash of {name} over numpy and scipy"] = over(
            lambda c=case, r=rows: hash.ours(c, r, compiled=True),
            lambda c=case, r=rows: hash.reference(c, r),
            least=0.0,
        )
    return found


def of_hierarchies() -> dict[str, float]:
    """Steps of sparse pairs over those by hand, on a balanced tree of 88,573 nodes."""
    tree, found = balanced_tree(3, 10), {}
    for batch_size in sparse_rows.GOALS:
        rows = sparse_rows.epochs(tree, batch_size, rounds=ROUNDS)
        for name, figures in rows.items():
            if name != sparse_rows.BY_HAND:
                by_hand = rows[sparse_rows.BY_HAND]["ms"]
                found[f"{name}, batches of {batch_size}"] = figures["ms"] / by_hand
    return found


def of_secure(num_clients: int = 100) -> dict[str, float]:
    """A client's part in a secure sum over its key agreements alone."""
    clients = secure.federation(num_clients)
    summed = SecureSum(secure.Row(1000, 2**61 - 1))
    own, other = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key()

    def agreements() -> None:
        for _ in range(num_clients - 1):
            own.exchange(other)

    spent = []
    for _ in range(ROUNDS):
        steps = secure.one_among(summed, num_clients // 10, clients, 0)
        part = sum(step.seconds for step in steps.values())
        spent.append((part, interleaved({"": agreements}, "cpu", rounds=1, least=0.0)[""][0]))
    return {f"a sum of {num_clients}": ratio(*map(list, zip(*spent, strict=True)))}


PARTS: dict[str, Callable[[], dict[str, float]]] = {
    "geometry": of_geometry,
    "start": of_start,
    "engines": of_engines,
    "methods": of_methods,
    "hulls": of_hulls,
    "hierarchies": of_hierarchies,
    "secure": of_secure,
}


def machine() -> dict[str, Any]:
    """Processor, number of its cores, and versions that matter."""
    name, file = platform.processor(), Path("/proc/cpuinfo")
    if file.exists():
        lines = (each.partition(":") for each in file.read_text().splitlines())
        name = next((value.strip() for key, _, value in lines if "model name" in key), name)
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {"processor": name, "cores": os.cpu_count(), **versions}


def fallen(
    before: Mapping[str, Mapping[str, float]], now: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """Figures that have grown by a tenth, in words, the worst first.

    Args:
        before: Figures by part and name.
        now: The same of this run.
    """
    grown = {
        (part, name): (before[part][name], figure)
        for part, figures in now.items()
        for name, figure in figures.items()
        if figure > FALLEN * before.get(part, {}).get(name, float("inf"))
    }
    worst = sorted(grown, key=lambda key: grown[key][0] / grown[key][1])
    return [f"{p}, {n}: {grown[p, n][0]:.3g} before, {grown[p, n][1]:.3g} now" for p, n in worst]


def main() -> None:
    """Measure, compare with the last time, and write the file."""
    options = parser(__doc__, "peers.json")
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    given = options.parse_args()
    file, here = given.results, machine()
    last = json.loads(file.read_text()) if file.exists() else {"machine": here, "figures": {}}
    print(", ".join(f"{name} {value}" for name, value in here.items()))
    now: dict[str, dict[str, float]] = {}
    for part in given.parts:
        now[part] = PARTS[part]()
        known = last["figures"].get(part, {})
        print(f"\n**{part}**\n\n{head('', 'times', 'before')}")
        for name, figure in now[part].items():
            print(line(name, f"{figure:.3g}", f"{known[name]:.3g}" if name in known else ""))
        sys.stdout.flush()
    worse = fallen(last["figures"], now)
    other = "" if last["machine"] == here else f", measured on {last['machine']}"
    print(f"\n{len(worse)} of the figures before{other} have grown by a tenth.")
    print("\n".join(worse))
    file.write_text(json.dumps({"machine": here, "figures": last["figures"] | now}, indent=1))
    sys.exit(bool(worse))


if __name__ == "__main__":
    main()
