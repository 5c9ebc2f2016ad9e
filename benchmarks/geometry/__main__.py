"""Time, operators and memory of the geometry, forward and backward, next to geoopt and hypll.

    python -m benchmarks.geometry [--results FILE] [--only NAME ...] [--hyperbolix PYTHON]

Times are CPU time on one thread, over that of the faster of the peers that are installed, all
interleaved. An operator is a call of torch's dispatcher that writes a tensor, on a GPU a kernel
launch; views do not count. PYTHON is that of an environment with hyperbolix, whose compiled calls
are timed after ours, in a process of their own.

Takes 2 minutes.
"""

import json
import math
import os
import subprocess
import tempfile
from collections.abc import Mapping

import numpy as np

from benchmarks.geometry.libraries import LIBRARIES, installed, space_of
from benchmarks.geometry.operations import (
    BOUNDS,
    DIM,
    FIGURES,
    LEAST,
    MATRIX,
    MODELS,
    NUM_POINTS,
    OURS,
    ROUNDS,
    SET,
    SIZES,
    both_ways,
    maps,
    matrices,
    operators,
    peer_rows,
    rows,
    timed,
    times,
)
from benchmarks.results import Figures, Key, Results
from benchmarks.script import FOLDER, parser
from benchmarks.table import head, line
from benchmarks.timing import interleaved, peak_mebibytes, ratio


def text(results: Results) -> str:
    """The table of the ratios, a row for each operation, and how many are within the aim."""
    columns = [(size, name) for size in SIZES for name in ("value", "gradients")]
    lines, met = [head("operation", *(f"{size}, {name}" for size, name in columns))], []
    for operation in dict.fromkeys(operation for _, operation in results.known):
        cells = []
        for size, name in columns:
            found = results.known.get((size, operation), {})
            figure = found.get(f"{name} ratio", found.get("step ratio", math.nan))
            cells.append("" if math.isnan(figure) else f"{figure:.2f}")
            met += [] if math.isnan(figure) else [round(figure, 2) <= BOUNDS[size]]
        lines.append(line(operation, *cells))
    return "\n".join([*lines, "", f"{sum(met)} of {len(met)} are within the aim."])


def report_hyperbolix(python: str, known: Mapping[Key, Figures]) -> None:
    """Print our time over that of hyperbolix, whose calls JAX compiles."""
    columns = [(size, name) for size in SIZES for name in ("value", "gradients")]
    theirs: dict[str, dict[str, dict[str, float]]] = {}
    for size, shape in SIZES.items():
        with tempfile.NamedTemporaryFile(suffix=".npz") as file:
            arrays: dict[str, np.ndarray] = {}
            for model in MODELS:
                made = maps(space_of(OURS, model), model, *shape)
                given = *made["transp"][1], *made["expmap0"][1]
                arrays |= {f"{model} {k}": x.numpy() for k, x in zip("xyvu", given, strict=True)}
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            start = "import sys; from benchmarks.geometry.hyperbolix import main; main(sys.argv[1])"
            flags = "--xla_cpu_multi_thread_eigen=false"
            environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent), "XLA_FLAGS": flags}
            theirs[size] = json.loads(
                subprocess.check_output([python, "-c", start, file.name], env=environment)
            )
    print(f"\n**hyperbolix**\n\n{head('operation', *(f'{s}, {n}' for s, n in columns))}")
    for operation in theirs[next(iter(SIZES))]:
        if any((size, operation) not in known for size in SIZES):
            continue  # left out by --only
        cells = [
            known[size, operation][f"{OURS} {name} us"] / theirs[size][operation][name]
            for size, name in columns
        ]
        print(line(operation, *(f"{cell:.2f}" for cell in cells)))


def report(columns: dict[str, dict[str, tuple[int, int]]]) -> None:
    """Print one row per operation; a library that lacks it leaves its cells empty."""
    print(head("operation", *columns))
    for row in columns[OURS]:
        found = [of.get(row) for of in columns.values()]
        print(line(row, *(f"{f[0]} + {f[1]}" if f else "" for f in found)))


def report_matrices() -> None:
    """Print the time of every matrix of distances over that of a product, and its peak memory."""
    cases = {name: both_ways(row) for name, row in matrices().items()}
    for case in cases.values():
        case()
    taken = interleaved(cases, "cpu", rounds=ROUNDS, least=LEAST)
    print(head("{} x {} distances in {} dimensions".format(*MATRIX), "times x @ w.T", "peak MiB"))
    for name, case in cases.items():
        times = ratio(taken[name], taken["x @ w.T"])
        print(line(name, f"{times:.1f}", f"{peak_mebibytes(case, 'cpu'):.1f}"))


def main() -> None:
    """Measure and print."""
    options = parser(__doc__, str(FIGURES))
    options.add_argument("--only", nargs="+", default=[""], help="parts of names of operations")
    options.add_argument("--hyperbolix", metavar="PYTHON", help="with hyperbolix 1.4.0")
    given = options.parse_args()
    results = Results(given.results)
    for size, (num, dim) in SIZES.items():
        for operation in timed(num, dim):
            if any(name in operation for name in given.only):
                results.add((size, operation), times, size, operation)
    if given.hyperbolix:
        report_hyperbolix(given.hyperbolix, results.known)
    print(f"\nTime over that of the faster peer, float32, one thread, CPU time.\n\n{text(results)}")
    if given.only == [""]:
        every = {OURS: rows()} | {
            name: peer_rows(name) for name in LIBRARIES[1:] if installed(name)
        }
        print(f"\nOperators, {NUM_POINTS} points in {DIM} dimensions, means of {SET}.\n")
        report(
            {name: {key: operators(row) for key, row in of.items()} for name, of in every.items()}
        )
        print()
        report_matrices()


if __name__ == "__main__":
    main()
