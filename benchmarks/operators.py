"""Operators and CPU time of the geometry, forward and backward: now, before and in other libraries.

python -m benchmarks.operators [--before CHECKOUT]

An operator is a call of torch's dispatcher that writes a tensor, on a GPU a kernel launch; views do
not count. CHECKOUT is the folder of an earlier version. It is measured by the same run on the same
cases, and so are geoopt and hypll where they are installed.
"""

import argparse
import importlib
import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.measure import Case, Operators, interleaved

NUM_POINTS, DIM = 2665, 16
CLASSES, BATCH = 10, 32
ROUNDS, LEAST = 7, 0.005
SET = 100
"""Number of points of a mean."""

Row: TypeAlias = tuple[Callable[..., Tensor], tuple[Tensor, ...]]
"""A function and its arguments, all of which take a gradient."""


def rows() -> dict[str, Row]:
    """The operations of both models, the layers and the losses, by name."""
    from fedbolic.manifolds import Lorentz, Poincare

    made = {}
    for name, space in (("hyperboloid", Lorentz(1.0)), ("ball", Poincare(1.0))):
        made |= {f"{name} {key}": row for key, row in _maps(space, name).items()}
        made |= {f"{name} {key}": row for key, row in _means(space, name).items()}
    for name, kind in (("hyperboloid", Lorentz), ("ball", Poincare)):
        made |= {f"{name} {key}, learnt c": row for key, row in _learnt(kind, name).items()}
    return made | _layers() | _losses()


def geoopt_rows() -> dict[str, Row]:
    """The operations that geoopt has under the same name."""
    import geoopt

    made = {}
    for name, space in (("hyperboloid", geoopt.Lorentz(1.0)), ("ball", geoopt.PoincareBall(1.0))):
        made |= {f"{name} {key}": row for key, row in _maps(space, name).items()}
    ball: Any = geoopt.PoincareBall(1.0)
    x = _points("ball", 0, SET)
    return made | {"ball centroid": (lambda x: ball.weighted_midpoint(x, reducedim=[0]), (x,))}


def hypll_rows() -> dict[str, Row]:
    """The operations and layers of hypll, which has the ball only."""
    math = importlib.import_module("hypll.manifolds.poincare_ball.math")
    c, points = torch.tensor(1.0), _points("ball", 0, SET)
    names = "dist", "expmap", "expmap0", "logmap", "logmap0", "transp"
    space = SimpleNamespace(**{name: partial(getattr(math.diffgeom, name), c=c) for name in names})
    space.transp0 = partial(space.transp, torch.zeros(DIM))
    made = _maps(space, "ball") | {
        "centroid": (partial(math.stats.midpoint, c=c, batch_dim=[0]), (points,)),
        "frechet_mean": (partial(math.stats.frechet_mean, c=c), (points,)),
    }
    for name in ("dist", "expmap0", "logmap0"):
        made[f"{name}, learnt c"] = getattr(math.diffgeom, name), (*made[name][1], c)
    return {f"ball {name}": row for name, row in made.items()} | _hypll_layers()


def _hypll_layers() -> dict[str, Row]:
    """Layers of hypll; batch norm has the mean in closed form, as ours."""
    # an earlier version of this library may lack what the file imports
    from benchmarks.layer_candidates import hypll_ball

    hyperbolic = importlib.import_module("hypll.nn")
    tensors = importlib.import_module("hypll.tensors")
    math = importlib.import_module("hypll.manifolds.poincare_ball.math")
    space, x, c = hypll_ball(), _points("ball", 0), torch.tensor(1.0)
    norm = hyperbolic.HBatchNorm(DIM, space, use_midpoint=True)
    head, linear = nn.Linear(DIM, CLASSES), nn.Linear(DIM, DIM)

    def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        given = tensors.ManifoldTensor(x, manifold=space, man_dim=-1)
        return functional_call(norm, {"weight": weight, "bias": bias}, (given,)).tensor

    def fully_connected(x: Tensor, z: Tensor, r: Tensor) -> Tensor:
        return math.diffgeom.project(math.linalg.poincare_fully_connected(x, z, r, c), c)

    def hyperplane_dists(x: Tensor, z: Tensor, r: Tensor) -> Tensor:
        return math.linalg.poincare_hyperplane_dists(x, z, r, c)

    return {
        "HyperbolicBatchNorm, ball": (batch_norm, (x, norm.weight, norm.bias)),
        "PoincareLinear": (fully_connected, (x, linear.weight.mT, linear.bias)),
        "PoincareMLR": (hyperplane_dists, (x, head.weight.mT, head.bias)),
    }


def _tangents(name: str, seed: int, num: int = NUM_POINTS) -> Tensor:
    """Tangents at the origin of length about 1.2."""
    v = torch.randn(num, DIM, generator=torch.Generator().manual_seed(seed)) * 0.3
    return torch.nn.functional.pad(v, (1, 0)) if name == "hyperboloid" else v / 2


def _points(name: str, seed: int, num: int = NUM_POINTS) -> Tensor:
    from fedbolic.manifolds import Lorentz, Poincare

    kind = Lorentz if name == "hyperboloid" else Poincare
    return kind(1.0).expmap0(_tangents(name, seed, num))


def _maps(space: Any, name: str) -> dict[str, Row]:
    x, y, u = _points(name, 0), _points(name, 1), _tangents(name, 2)
    v = space.transp0(x, u).detach()
    return {
        "dist": (space.dist, (x, y)),
        "expmap": (space.expmap, (x, v)),
        "expmap0": (space.expmap0, (u,)),
        "logmap": (space.logmap, (x, y)),
        "logmap0": (space.logmap0, (x,)),
        "transp": (space.transp, (x, y, v)),
    }


def _means(space: Any, name: str) -> dict[str, Row]:
    from fedbolic.manifolds import frechet_mean

    x = _points(name, 0, SET)
    return {
        "centroid": (space.centroid, (x,)),
        "frechet_mean": (lambda x: frechet_mean(space, x), (x,)),
    }


def _learnt(kind: Any, name: str) -> dict[str, Row]:
    c = torch.tensor(1.0)
    x, y = _points(name, 0), _points(name, 1)
    return {
        "dist": (lambda x, y, c: kind(c).dist(x, y), (x, y, c)),
        "expmap0": (lambda u, c: kind(c).expmap0(u), (_tangents(name, 2), c)),
        "logmap0": (lambda x, c: kind(c).logmap0(x), (x, c)),
    }


def _layers() -> dict[str, Row]:
    from fedbolic.manifolds import Lorentz, Poincare
    from fedbolic.nn import (
        HyperbolicBatchNorm,
        LorentzMLR,
        PoincareLinear,
        PoincareMLR,
        PrototypeHead,
        TangentLinear,
    )
    from fedbolic.nn.layers.dropout import Dropout

    x, b = _points("hyperboloid", 0), _points("ball", 0)
    return {
        "HyperbolicBatchNorm, hyperboloid": _layer(HyperbolicBatchNorm(Lorentz, DIM), x),
        "HyperbolicBatchNorm, ball": _layer(HyperbolicBatchNorm(Poincare, DIM), b),
        "LorentzMLR": _layer(LorentzMLR(DIM, CLASSES), x),
        "PoincareMLR": _layer(PoincareMLR(DIM, CLASSES), b),
        "PoincareLinear": _layer(PoincareLinear(DIM, DIM), b),
        "TangentLinear": _layer(TangentLinear(DIM, DIM), x),
        "PrototypeHead, hyperboloid": _layer(PrototypeHead(Lorentz, DIM, CLASSES), x),
        "Dropout": _layer(Dropout(0.5), x),
    }


def _layer(layer: nn.Module, x: Tensor) -> Row:
    """A layer as a function of its input and its parameters."""
    names = [name for name, _ in layer.named_parameters()]
    values = tuple(value.detach() for _, value in layer.named_parameters())

    def call(x: Tensor, *values: Tensor) -> Tensor:
        given = dict(zip(names, values, strict=True))
        return functional_call(layer, given, (x,))

    return call, (x, *values)


def _losses() -> dict[str, Row]:
    from hyperfed.loss import CrossEntropy, Triplet, excess, prototype_distance

    generator = torch.Generator().manual_seed(0)
    z = torch.randn(BATCH, DIM, generator=generator)
    w = torch.nn.functional.normalize(torch.randn(CLASSES, DIM, generator=generator)) * 0.9
    batch = {
        "y": torch.arange(BATCH) % CLASSES,
        "negative": torch.rand(BATCH, generator=generator),
    }
    return {
        "hyperfed excess": (lambda z: excess(z, w), (z,)),
        "hyperfed prototype_distance": (lambda z: prototype_distance(z, w), (z,)),
        "hyperfed Triplet": (lambda z: Triplet().losses(z, w, batch), (z,)),
        "hyperfed CrossEntropy": (lambda z: CrossEntropy().losses(z, w, batch), (z,)),
    }


def operators(row: Row) -> tuple[int, int]:
    """Operators of the forward and of the backward pass."""
    function, given = row
    leaves = [x.detach().clone().requires_grad_() for x in given]
    with Operators() as forward:
        out = function(*leaves)
    cotangent = torch.ones_like(out)
    with Operators() as backward:
        torch.autograd.grad(out, leaves, cotangent, allow_unused=True)
    return forward.count, backward.count


def _both_ways(row: Row) -> Case:
    function, given = row
    leaves = [x.detach().clone().requires_grad_() for x in given]
    with torch.no_grad():
        cotangent = torch.ones_like(function(*leaves))
    return lambda: torch.autograd.grad(function(*leaves), leaves, cotangent, allow_unused=True)


def milliseconds(table: dict[str, Row]) -> dict[str, float]:
    """CPU time of both passes of every row: the median of interleaved rounds."""
    cases = {name: _both_ways(row) for name, row in table.items()}
    for case in cases.values():
        case()
    taken = interleaved(cases, "cpu", rounds=ROUNDS, least=LEAST)
    return {name: 1e3 * statistics.median(values) for name, values in taken.items()}


def measured(table: dict[str, Row]) -> dict[str, list[float]]:
    """Operators forward and backward, and milliseconds, of every row."""
    times = milliseconds(table)
    return {name: [*operators(row), times[name]] for name, row in table.items()}


def _of_checkout(folder: Path) -> dict[str, list[float]]:
    """The figures of an earlier version, by this file with the packages of that version."""
    # its own ``benchmarks`` may lack what this file imports
    here = Path(__file__).resolve().parent.parent
    code = (
        f"import sys, runpy; sys.path[:0] = [{str(folder.resolve())!r}]; import fedbolic, hyperfed;"
        f"sys.path[0] = {str(here)!r}; sys.argv = ['operators', '--json'];"
        "runpy.run_module('benchmarks.operators', run_name='__main__')"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def report(columns: dict[str, dict[str, list[float]]]) -> None:
    """Print one row per operation; a library that lacks it leaves its cells empty."""
    head = [f"{name} {what}" for what in ("operators", "ms") for name in columns]
    print(f"| operation | {' | '.join(head)} |\n|---{'|---' * len(head)}|")
    for row in columns["now"]:
        found = [of.get(row) for of in columns.values()]
        cells = [f"{f[0]:.0f} + {f[1]:.0f}" if f else "" for f in found]
        cells += [f"{f[2]:.2f}" if f else "" for f in found]
        print(f"| {row} | {' | '.join(cells)} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--before", type=Path, metavar="CHECKOUT")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.json:
        print(json.dumps(measured(rows())))
        return
    columns = {"before": _of_checkout(given.before)} if given.before else {}
    columns["now"] = measured(rows())
    for name, peer in (("geoopt", geoopt_rows), ("hypll", hypll_rows)):
        if importlib.util.find_spec(name):
            columns[name] = measured(peer())
    print(f"{NUM_POINTS} points in {DIM} dimensions, means of {SET}, losses of {BATCH} features,")
    print("float32, one thread, CPU time.\n")
    report(columns)


if __name__ == "__main__":
    main()
