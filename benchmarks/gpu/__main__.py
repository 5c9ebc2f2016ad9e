"""The toolkit on a GPU: equality with the CPU, times the plain loop, and where a round's time goes.

    python -m benchmarks.gpu [--out FILE.json] [--parts NAME ...] [--minutes N]
    python -m benchmarks.gpu --model [--launches FILE.csv]

Without a CUDA device it prints one line that says so. ``--device cpu --small`` runs every part on a
CPU in seconds; its times mean nothing. The parts *captures* and *equality* need PyYAML, and leave
out methods whose packages are not installed. ``--model`` prints the times of a step on an H200 by a
model of counted launches, and needs no device.

Takes 8 minutes on a device.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.gpu import equality as equality_
from benchmarks.gpu import geometry as geometry_
from benchmarks.gpu import model, resnet
from benchmarks.gpu import rounds as rounds_
from benchmarks.gpu import steps as steps_
from benchmarks.gpu.captures import captures
from benchmarks.gpu.convolution import convolution
from benchmarks.gpu.equality import equality
from benchmarks.gpu.geometry import geometry
from benchmarks.gpu.report import Report
from benchmarks.gpu.resnet import residual
from benchmarks.gpu.roofline import roofline
from benchmarks.gpu.rounds import rounds
from benchmarks.gpu.steps import row_name, steps
from benchmarks.gpu.workloads import FULL, SMALL, Size
from benchmarks.script import parser
from benchmarks.table import Goal, goal_table
from fedbolic.run.reproducible import WORKSPACE, arithmetic_of

PARTS: dict[str, Callable[[Report, torch.device, Size], None]] = {
    "captures": captures,  # first, for without them the rest is of little use
    "roofline": roofline,
    "geometry": geometry,
    "convolution": convolution,
    "equality": equality,
    "round": rounds,
    "resnet": residual,
    "steps": steps,  # last, for it ends with compilations, which may run out of time
}
EXACT = 1e-10
STEP_GOALS = {
    "MLP": 30.0,
    "digits CNN": 30.0,
    "28x28 CNN": 5.0,
    "HyperFed": 30.0,
    "GCN": 30.0,
    "FlatLand": 30.0,
}
"""Times the plain loop at 100 clients, with exact products of float32."""

FAST_GOALS = {"28x28 CNN": 24.0}
"""The same with products in TF32, for workloads that products bound."""

AT_20 = tuple(work for work in STEP_GOALS if work != "28x28 CNN")
"""Workloads with a target at 20 clients, too."""

GRACE = 60.0
"""Seconds for which a part may go on after the time for new rows."""

TIMES = "times the plain loop"
FEW_GOAL, RESNET_GOAL, ROUND_GOAL = 10.0, 2.5, 20.0
"""Times the plain loop at 20 clients, of a residual network, and of a whole round."""


LAUNCHES = Path(__file__).with_name("launches.csv")
"""Counts of launches on the page."""

CDIST_SHARE, CDIST_ERROR, HASH_SECONDS = 0.6, 1e-5, 0.25
"""Share of the bandwidth in 3 dimensions and relative error; seconds of the hash of MNIST."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts, print the table of goals, and write the JSON file."""
    args = parser(__doc__)
    args.add_argument("--device", default="cuda")
    args.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs")
    args.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    args.add_argument("--minutes", type=float, default=7.5, help="no row begins after them")
    args.add_argument("--out", type=Path, help="JSON file for all rows")
    args.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    args.add_argument("--model", action="store_true", help="the modelled times of a step instead")
    args.add_argument("--launches", type=Path, default=LAUNCHES, help="CSV of counts for the model")
    options = args.parse_args(arguments)
    if options.model:
        model.report(options.launches)
        return
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("skipped: there is no CUDA device")
        return
    os.environ.setdefault(WORKSPACE, ":4096:8")  # read once, when the device is first used
    size = SMALL if options.small else FULL
    if options.rows:  # one part of another process
        _parts(Report(options.minutes, options.rows), options.parts, device, size)
        return
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    about = {**versions, "small": options.small, **arithmetic_of(device)}
    print(", ".join(f"{name} {value}" for name, value in about.items()), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows") if options.out is None else options.out.with_suffix(".jsonl")
        file.unlink(missing_ok=True)
        report = Report(options.minutes, file)
        if device.type == "cuda":
            words = [f"--device={options.device}", *(["--small"] if options.small else [])]
            for name in options.parts:
                part_alone(report, name, words)
        else:
            _parts(report, options.parts, device, size)
    reached = goals(report, size)
    print(f"\n{goal_table(reached)}")
    if options.out is not None:
        verdicts = [{**vars(goal), "verdict": goal.verdict} for goal in reached]
        report.save(options.out, about=about, goals=verdicts)


def _parts(report: Report, names: Sequence[str], device: torch.device, size: Size) -> None:
    for name in names:
        report.attempt(name, lambda part=PARTS[name]: part(report, device, size))


def part_alone(report: Report, name: str, words: Sequence[str]) -> None:
    """Run a part in a process of its own, since a failed capture may leave one of no use.

    Args:
        report: Report with a file, which gets the rows of the part.
        name: Name of the part.
        words: Further options of the command.
    """
    options = [f"--parts={name}", f"--rows={report.file}", f"--minutes={report.seconds_left / 60}"]
    command = [sys.executable, "-m", "benchmarks.gpu", *options, *words]
    try:
        code = subprocess.run(command, timeout=max(0.0, report.seconds_left) + GRACE).returncode
    except subprocess.TimeoutExpired:
        code = None
    report.read()
    if code != 0:
        what = "took too long" if code is None else f"ended with the code {code}"
        report.fail(name, f"its process {what}; the rows above are complete")


def goals(report: Report, size: Size) -> list[Goal]:
    """Targets, with the figures of the rows; the best engine of a workload counts."""
    gaps = _figures(report, equality_.PART, "", "difference")
    failed = float(sum("error" in row for row in report.rows))
    of_resnet = _figures(report, resnet.PART, "", "times_plain")
    of_round = _figures(report, rounds_.PART, "digits CNN", "times_plain")
    return [
        Goal("exact", "float64, difference from the CPU", "<=", EXACT, _largest(gaps)),
        Goal("exact", "rows that failed or were left out", "<=", 0, failed),
        *(goal for work in STEP_GOALS for goal in _step_goals(report, size, work)),
        Goal("ResNet-18", TIMES, ">=", RESNET_GOAL, _largest(of_resnet)),
        *_geometry_goals(report),
        Goal("round", f"digits CNN: {TIMES}", ">=", ROUND_GOAL, _largest(of_round)),
    ]


def _geometry_goals(report: Report) -> Iterator[Goal]:
    """Targets of the matrix of distances in 3 dimensions, and of the hash."""
    for kind in ("Lorentz", "Poincare"):
        few = geometry_.SETS[0]
        name = f"{kind} cdist {few.n} x {few.m} x {few.dim}, auto"
        share = report.figure(geometry_.PART, name, "share_of_copy")
        error = report.figure(geometry_.PART, name, "relative_error")
        yield Goal("cdist", f"{kind}: share of the copy's bandwidth", ">=", CDIST_SHARE, share)
        yield Goal("cdist", f"{kind}: error", "<=", CDIST_ERROR, error)
    hashed = report.figure(geometry_.PART, geometry_.HASH_NAME, "seconds")
    unequal = report.figure(geometry_.PART, geometry_.HASH_NAME, "hashes_that_differ")
    yield Goal("hash", "60,000 x 170,128: seconds", "<=", HASH_SECONDS, hashed)
    yield Goal("hash", "hashes that differ from the CPU's", "<=", 0, unequal)


def _step_goals(report: Report, size: Size, work: str) -> Iterator[Goal]:
    """Targets of one workload's step."""
    few, many = min(size.clients), max(size.clients)
    bounds = {few: FEW_GOAL} if work in AT_20 else {}
    for num_clients, bound in {**bounds, many: STEP_GOALS[work]}.items():
        times = _figures(report, steps_.PART, row_name(work, num_clients, ""), "times_plain")
        yield Goal("step", f"{work} x {num_clients}: {TIMES}", ">=", bound, _largest(times))
    if work in FAST_GOALS:
        fast = _figures(report, steps_.PART, row_name(work, many, ""), "fast_times_plain")
        yield Goal("TF32", f"{work} x {many}: {TIMES}", ">=", FAST_GOALS[work], _largest(fast))
    waited = _figures(report, steps_.PART, row_name(work, many, ""), "waits")
    stacked = {name: x for name, x in waited.items() if not name.endswith("Sequential")}
    yield Goal("waits", f"{work} x {many}: waits a step", "<=", 0, _largest(stacked))


def _figures(report: Report, part: str, prefix: str, key: str) -> dict[str, float]:
    """Figures by row name, of the rows of a part whose names begin with a prefix."""
    return {
        row["name"]: row[key]
        for row in report.rows
        if row["part"] == part and row["name"].startswith(prefix) and key in row
    }


def _largest(figures: dict[str, float]) -> float | None:
    """The largest figure, NaN if one is NaN; ``None`` if there is none."""
    values = torch.tensor(list(figures.values()), dtype=torch.float64)
    return values.max().item() if len(values) else None


if __name__ == "__main__":
    main()
