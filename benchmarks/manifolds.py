"""Time and memory of distances and maps, forward and backward, as ratios within one run.

python -m benchmarks.manifolds [--peer geoopt=PYTHON] [--peer hypll=PYTHON] [--device cuda]
"""

import argparse
import importlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import Case, peak_mebibytes, seconds

LIBRARIES = ("fedbolic", "geoopt", "hypll")
ROUNDS = 15
BATCH, CLASSES, DIM = 1024, 100, 128
FLOORS = {
    "cdist": "x @ w.T and its cross entropy",
    "dist": "(x - y).norm()",
    "expmap": "x + u",
    "logmap": "y - x",
    "expmap0": "2 * u",
    "logmap0": "2 * u",
}


def tensors(lift: Callable[[Tensor], Tensor], device: str) -> dict[str, Tensor]:
    """Tangents at the origin of length about 1.1: two batches, and one tangent per class."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"u": BATCH, "v": BATCH, "w": CLASSES}
    made = {n: torch.randn(size, DIM, generator=generator) / 10 for n, size in sizes.items()}
    return {name: lift(v).to(device) for name, v in made.items()}


def cases(space: Any, cdists: dict[str, Callable], lift: Callable, device: str) -> dict[str, Case]:
    """Each operation of a manifold on the same numbers, its gradient included."""
    given = tensors(lift, device)
    with torch.no_grad():
        x, y, w = (space.expmap0(given[name]) for name in "uvw")
        u = space.logmap(x, y)
    label = torch.arange(BATCH, device=device) % CLASSES
    made = {
        f"cdist {name}".strip(): _step(_cross_entropy(cdist, label), x, w)
        for name, cdist in cdists.items()
    }
    return made | {
        "dist": _step(space.dist, x, y),
        "expmap": _step(space.expmap, x, u),
        "logmap": _step(space.logmap, x, y),
        "expmap0": _step(space.expmap0, given["u"]),
        "logmap0": _step(space.logmap0, x),
    }


def _cross_entropy(cdist: Callable, label: Tensor) -> Callable:
    return lambda x, w: torch.nn.functional.cross_entropy(-cdist(x, w), label)


def _step(function: Callable, *given: Tensor) -> Case:
    leaves = [x.detach().clone().requires_grad_() for x in given]
    return lambda: torch.autograd.grad(function(*leaves).sum(), leaves)


def _baseline(device: str) -> dict[str, Case]:
    given = tensors(lambda v: v, device)
    u, v, w = (given[name] for name in "uvw")
    label = torch.arange(BATCH, device=device) % CLASSES
    return {
        "cdist": _step(_cross_entropy(lambda x, w: x @ w.mT, label), u, w),
        "dist": _step(lambda x, y: (x - y).norm(dim=-1), u, v),
        "expmap": _step(lambda x, u: x + u, u, v),
        "logmap": _step(lambda x, y: y - x, u, v),
        "expmap0": _step(lambda u: 2 * u, u),
        "logmap0": _step(lambda u: 2 * u, u),
    }


def _same(v: Tensor) -> Tensor:
    return v


def _lift(v: Tensor) -> Tensor:
    return torch.nn.functional.pad(v, (1, 0))


def _broadcast(space: Any) -> dict[str, Callable]:
    return {"broadcast": lambda x, w: space.dist(x.unsqueeze(-2), w.unsqueeze(-3))}


def library(name: str, device: str) -> dict[str, Case]:
    """The cases of a library, named ``model operation``."""
    made: dict[str, dict[str, Case]] = {}
    if name == "fedbolic":
        from fedbolic.manifolds import Lorentz, Poincare

        for label, space, lift in (
            ("ball", Poincare(1.0), _same),
            ("hyperboloid", Lorentz(1.0), _lift),
        ):
            cdists = {
                mode: lambda x, w, space=space, mode=mode: space.cdist(x, w, mode=mode)
                for mode in ("auto", "mm", "mm64", "broadcast")
            }
            made[label] = cases(space, cdists, lift, device)
    elif name == "geoopt":
        import geoopt

        for label, space, lift in (
            ("ball", geoopt.PoincareBall(1.0).to(device), _same),
            ("hyperboloid", geoopt.Lorentz(1.0).to(device), _lift),
        ):
            made[label] = cases(space, _broadcast(space), lift, device)
    else:
        made["ball"] = _hypll(device)
    return {f"{model} {case}": f for model, of in made.items() for case, f in of.items()}


def _hypll(device: str) -> dict[str, Case]:
    from functools import partial
    from types import SimpleNamespace

    diffgeom = importlib.import_module("hypll.manifolds.poincare_ball.math.diffgeom")
    c = torch.tensor(1.0, device=device)
    operations = ("dist", "expmap", "logmap", "expmap0", "logmap0")
    space = SimpleNamespace(
        **{operation: partial(getattr(diffgeom, operation), c=c) for operation in operations}
    )
    own = {"broadcast": lambda x, w: diffgeom.cdist(x.unsqueeze(0), w.unsqueeze(0), c).squeeze(0)}
    return cases(space, own, _same, device)


def time_ratios(name: str, device: str) -> dict[str, float]:
    """Median over rounds of each case's time over that of its baseline, all interleaved."""
    baselines, mine = _baseline(device), library(name, device)
    for case in (*baselines.values(), *mine.values()):
        case()
    rounds: dict[str, list[float]] = {key: [] for key in mine}
    for _ in range(ROUNDS):
        for key, case in mine.items():
            baseline = baselines[key.split()[1]]
            repeats = 3 if "broadcast" in key else 10
            below = sum(seconds(baseline, device) for _ in range(10)) / 10
            rounds[key].append(sum(seconds(case, device) for _ in range(repeats)) / repeats / below)
    return {key: statistics.median(values) for key, values in rounds.items()}


def peak(name: str, key: str, device: str) -> float:
    """Peak memory in MiB of a case of a library, or of its baseline."""
    case = _baseline(device)[key] if name == "baseline" else library(name, device)[key]
    return peak_mebibytes(case, device)


def _ask(python: str, *words: str) -> Any:
    script = [python, "-W", "ignore", str(Path(__file__).resolve()), *words]
    environment = {
        "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(script, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout)


def report(interpreters: dict[str, str], device: str) -> None:
    """Print a table of ratios to the baseline, and the memory of the distance matrices."""
    found = {n: _ask(p, "--work", n, "--device", device) for n, p in interpreters.items()}
    keys = list(dict.fromkeys(key for row in found.values() for key in row))
    print(
        f"Time, forward and backward, over the baseline: {BATCH} points, {CLASSES} classes, {DIM}d."
    )
    print(f"\n| operation (baseline) | {' | '.join(found)} |\n|---{'|---' * len(found)}|")
    for key in keys:
        cells = [f"{row[key]:.1f}" if key in row else "" for row in found.values()]
        print(f"| {key} ({FLOORS[key.split()[1]]}) | {' | '.join(cells)} |")
    print("\nPeak memory of a distance matrix with its gradient, MiB.\n\n| | MiB |\n|---|---|")
    wanted = [("baseline", "cdist")] + [(n, k) for n in found for k in found[n] if "cdist" in k]
    for name, key in wanted:
        python = interpreters.get(name, sys.executable)
        peak = _ask(python, "--work", name, "--case", key, "--device", device)
        print(f"| {name} {key} | {peak:.1f} |")


def main() -> None:
    """Measure here and in the peers' interpreters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", action="append", default=[], metavar="LIBRARY=PYTHON")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.case:
        print(peak(given.work, given.case, given.device))
    elif given.work:
        print(json.dumps(time_ratios(given.work, given.device)))
    else:
        interpreters = {"fedbolic": sys.executable}
        interpreters |= dict(pair.split("=", 1) for pair in given.peer)
        for absent in LIBRARIES:
            if absent not in interpreters:
                print(f"{absent}: skipped, no interpreter given (--peer {absent}=PYTHON)")
        report(interpreters, given.device)


if __name__ == "__main__":
    main()
