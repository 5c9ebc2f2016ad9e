"""Operators, CPU time and memory of the geometry, forward and backward, in several libraries.

    python -m benchmarks.operators

An operator is a call of torch's dispatcher that writes a tensor, on a GPU a kernel launch; views do
not count. geoopt and hypll are measured where they are installed.

Takes 1 minute.
"""

import statistics
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.peers import LIBRARIES, installed, space_of
from benchmarks.script import parser
from benchmarks.table import head, line
from benchmarks.timing import Case, Operators, interleaved, peak_mebibytes, ratio

MODELS = ("hyperboloid", "ball")
NUM_POINTS, DIM = 2665, 16
CLASSES, BATCH = 10, 32
ROUNDS, LEAST = 7, 0.005
SET = 100
"""Number of points of a mean."""

MATRIX = (1024, 100, 128)
"""Points, others and dimensions of a matrix of distances."""

Row: TypeAlias = tuple[Callable[..., Tensor], tuple[Tensor, ...]]
"""A function and its arguments, all of which take a gradient."""


def rows() -> dict[str, Row]:
    """The operations of both models, the layers and the losses, by name."""
    from fedbolic.manifolds import Lorentz, Poincare

    made, kinds = {}, {"hyperboloid": Lorentz, "ball": Poincare}
    for name, kind in kinds.items():
        every = _maps(kind(1.0), name) | _means(kind(1.0), name)
        made |= {f"{name} {key}": row for key, row in every.items()}
    for name, kind in kinds.items():
        made |= {f"{name} {key}, learnt c": row for key, row in _learnt(kind, name).items()}
    return made | _layers() | _losses()


def peer_rows(library: str) -> dict[str, Row]:
    """The operations and layers that another library has."""
    made = {}
    for model in MODELS:
        space = space_of(library, model)
        if space is not None:
            made |= {f"{model} {key}": row for key, row in _maps(space, model).items()}
    space, x, c = space_of(library, "ball"), _points("ball", 0, SET), torch.tensor(1.0)
    if library == "geoopt":
        return made | {"ball centroid": (lambda x: space.weighted_midpoint(x, reducedim=[0]), (x,))}
    made |= {f"ball {name}": (getattr(space, name), (x,)) for name in ("centroid", "frechet_mean")}
    for name in ("dist", "expmap0", "logmap0"):
        function, given = made[f"ball {name}"]
        made[f"ball {name}, learnt c"] = function.func, (*given, c)
    return made


def _tangents(name: str, seed: int, num: int = NUM_POINTS) -> Tensor:
    """Tangents at the origin of length about 1.2."""
    v = torch.randn(num, DIM, generator=torch.Generator().manual_seed(seed)) * 0.3
    return torch.nn.functional.pad(v, (1, 0)) if name == "hyperboloid" else v / 2


def _points(name: str, seed: int, num: int = NUM_POINTS) -> Tensor:
    return space_of("fedbolic", name).expmap0(_tangents(name, seed, num))


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
        MLR,
        HyperbolicBatchNorm,
        Linear,
        PrototypeHead,
        TangentLinear,
    )
    from fedbolic.nn.layers.dropout import Dropout

    x, b = _points("hyperboloid", 0), _points("ball", 0)
    return {
        "HyperbolicBatchNorm, hyperboloid": _layer(HyperbolicBatchNorm(Lorentz(), DIM), x),
        "HyperbolicBatchNorm, ball": _layer(HyperbolicBatchNorm(Poincare(), DIM), b),
        "MLR, hyperboloid": _layer(MLR(Lorentz(), DIM, CLASSES), x),
        "MLR, ball": _layer(MLR(Poincare(), DIM, CLASSES), b),
        "Linear, ball": _layer(Linear(Poincare(), DIM, DIM), b),
        "TangentLinear": _layer(TangentLinear(Lorentz(), DIM, DIM), x),
        "PrototypeHead, hyperboloid": _layer(PrototypeHead(Lorentz(), DIM, CLASSES), x),
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
    batch = {"y": torch.arange(BATCH) % CLASSES, "negative": torch.rand(BATCH, generator=generator)}
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


def matrices() -> dict[str, Row]:
    """Matrices of distances of every library in every mode, after a matrix product, their floor."""
    n, m, dim = MATRIX
    u, v = (
        torch.randn(num, dim, generator=torch.Generator().manual_seed(num)) / 10 for num in (n, m)
    )
    made: dict[str, Row] = {"x @ w.T": (lambda x, w: x @ w.mT, (u, v))}
    for library in LIBRARIES:
        for model in MODELS:
            space = space_of(library, model)
            if space is None:
                continue
            ways: dict[str, Callable] = {"": lambda x, w, s=space: _by_broadcast(s, x, w)}
            if library == "fedbolic":
                modes = ("auto", "mm", "mm64", "broadcast")
                ways = {f", {m}": lambda x, w, s=space, m=m: s.cdist(x, w, mode=m) for m in modes}
            lifted = [nn.functional.pad(x, (1, 0)) if model == MODELS[0] else x / 2 for x in (u, v)]
            points = tuple(space.expmap0(x).detach() for x in lifted)
            made |= {f"{library} {model}{mode}": (way, points) for mode, way in ways.items()}
    return made


def _by_broadcast(space: Any, x: Tensor, w: Tensor) -> Tensor:
    """The matrix of distances of a library whose manifolds have no function for it."""
    if hasattr(space, "cdist"):
        return space.cdist(x, w)
    return space.dist(x.unsqueeze(-2), w.unsqueeze(-3))


def report(columns: dict[str, dict[str, list[float]]]) -> None:
    """Print one row per operation; a library that lacks it leaves its cells empty."""
    print(head("operation", *(f"{n} {what}" for what in ("operators", "ms") for n in columns)))
    for row in columns["fedbolic"]:
        found = [of.get(row) for of in columns.values()]
        counted = [f"{f[0]:.0f} + {f[1]:.0f}" if f else "" for f in found]
        print(line(row, *counted, *(f"{f[2]:.2f}" if f else "" for f in found)))


def report_matrices() -> None:
    """Print the time of every matrix of distances over that of a product, and its peak memory."""
    cases = {name: _both_ways(row) for name, row in matrices().items()}
    for case in cases.values():
        case()
    taken = interleaved(cases, "cpu", rounds=ROUNDS, least=LEAST)
    print(head("{} x {} distances in {} dimensions".format(*MATRIX), "times x @ w.T", "peak MiB"))
    for name, case in cases.items():
        times = ratio(taken[name], taken["x @ w.T"])
        print(line(name, f"{times:.1f}", f"{peak_mebibytes(case, 'cpu'):.1f}"))


def main() -> None:
    """Measure and print."""
    parser(__doc__).parse_args()
    columns = {"fedbolic": measured(rows())}
    columns |= {name: measured(peer_rows(name)) for name in LIBRARIES[1:] if installed(name)}
    print(f"{NUM_POINTS} points in {DIM} dimensions, means of {SET}, losses of {BATCH} features,")
    print("float32, one thread, CPU time.\n")
    report(columns)
    print()
    report_matrices()


if __name__ == "__main__":
    main()
