"""Operations of the geometry of every library, and their times."""

import importlib
import itertools
import statistics
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.geometry.libraries import LIBRARIES, space_of
from benchmarks.results import Figures
from benchmarks.script import FOLDER
from benchmarks.timing import Case, Operators, interleaved, ratio

FIGURES = FOLDER / "measured" / "geometry.csv"
SIZES = {"64 x 8": (64, 8), "4096 x 64": (4096, 64)}
"""Number of points and dimension of a timed call."""

OURS = LIBRARIES[0]
BOUNDS = {"64 x 8": 1.5, "4096 x 64": 1.0}
"""Largest time over that of the faster peer that we aim at."""

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
        every = maps(kind(1.0), name) | _means(kind(1.0), name)
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
            made |= {f"{model} {key}": row for key, row in maps(space, model).items()}
    space, x, c = space_of(library, "ball"), _points("ball", 0, SET), torch.tensor(1.0)
    if library == "geoopt":
        return made | {"ball centroid": (lambda x: space.weighted_midpoint(x, reducedim=[0]), (x,))}
    made |= {f"ball {name}": row for name, row in _means(space, "ball").items()}
    for name in ("dist", "expmap0", "logmap0"):
        function, given = made[f"ball {name}"]
        made[f"ball {name}, learnt c"] = function.func, (*given, c)
    return made


def _tangents(name: str, seed: int, num: int = NUM_POINTS, dim: int = DIM) -> Tensor:
    """Tangents at the origin of length about 1.2."""
    v = torch.randn(num, dim, generator=torch.Generator().manual_seed(seed)) * (1.2 / dim**0.5)
    return nn.functional.pad(v, (1, 0)) if name == "hyperboloid" else v / 2


def _points(name: str, seed: int, num: int = NUM_POINTS, dim: int = DIM) -> Tensor:
    return space_of(OURS, name).expmap0(_tangents(name, seed, num, dim))


def maps(space: Any, name: str, num: int = NUM_POINTS, dim: int = DIM) -> dict[str, Row]:
    """Maps of a model and their arguments, by name."""
    x, y, u = _points(name, 0, num, dim), _points(name, 1, num, dim), _tangents(name, 2, num, dim)
    v = space_of(OURS, name).transp0(x, u)
    made = {
        "dist": (space.dist, (x, y)),
        "expmap": (space.expmap, (x, v)),
        "expmap0": (space.expmap0, (u,)),
        "logmap": (space.logmap, (x, y)),
        "logmap0": (space.logmap0, (x,)),
        "transp": (space.transp, (x, y, v)),
    }
    return made | ({"mobius_add": (space.mobius_add, (x, y))} if name == "ball" else {})


def _means(space: Any, name: str, num: int = SET, dim: int = DIM) -> dict[str, Row]:
    from fedbolic.manifolds import frechet_mean

    x = _points(name, 0, num, dim)
    own = hasattr(space, "frechet_mean")
    return {
        "centroid": (space.centroid, (x,)),
        "frechet_mean": (space.frechet_mean if own else lambda x: frechet_mean(space, x), (x,)),
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


def both_ways(row: Row) -> Case:
    """A call and its gradients by all arguments."""
    function, given = row
    leaves = [x.detach().clone().requires_grad_() for x in given]
    with torch.no_grad():
        cotangent = torch.ones_like(function(*leaves))
    return lambda: torch.autograd.grad(function(*leaves), leaves, cotangent, allow_unused=True)


def timed(num: int, dim: int) -> dict[str, dict[str, Row | Case]]:
    """By operation and by library, what is timed: a row, or a call that has no gradients."""
    made: dict[str, dict[str, Row | Case]] = {}
    for model, library in itertools.product(MODELS, LIBRARIES):
        space = space_of(library, model)
        if space is None:
            continue
        for name, row in maps(space, model, num, dim).items():
            made.setdefault(f"{model} {name}", {})[library] = row
        if library != "hypll":
            made.setdefault(f"{model} Adam", {})[library] = _adam(library, model, num, dim)
        if model == "ball" and library != "geoopt":
            mean = _means(space, model, num, dim)["frechet_mean"]
            made.setdefault("ball frechet_mean", {})[library] = mean
    made["hyperboloid Linear"] = _linear(num, dim)
    return made


def _linear(num: int, dim: int) -> dict[str, Row | Case]:
    from fedbolic.manifolds import Lorentz
    from fedbolic.nn import Linear

    x = _points("hyperboloid", 0, num, dim)
    ours, flat = Linear(Lorentz(), dim, dim), nn.Linear(dim, dim)
    return {OURS: _layer(ours, x), "torch": _layer(flat, x[:, 1:].contiguous())}


def _adam(library: str, model: str, num: int, dim: int) -> Case:
    """A step of Adam on a table of points."""
    from fedbolic.optim import RiemannianAdam

    space, x = space_of(library, model), _points(model, 0, num, dim)
    if library == OURS:
        table = nn.Parameter(x)
        optimizer: Any = RiemannianAdam([table], lr=1e-3, space=space)
    else:
        geoopt = importlib.import_module("geoopt")
        table = geoopt.ManifoldParameter(x, manifold=space)
        optimizer = geoopt.optim.RiemannianAdam([table], lr=1e-3)
    table.grad = _tangents(model, 3, num, dim)
    return optimizer.step


def passes(made: Row | Case) -> Iterator[tuple[str, Case]]:
    """The calls to time, by name: of an operation one without gradients and one with them."""
    if callable(made):
        yield "step", made
        return
    function, given = made
    yield "value", lambda: function(*given)
    yield "gradients", both_ways(made)


def times(size: str, operation: str) -> Figures:
    """Microseconds of every library, and ours over those of the faster peer."""
    found: Figures = {}
    cases: dict[str, dict[str, Case]] = {}
    for library, made in timed(*SIZES[size])[operation].items():
        for name, case in passes(made):
            case()
            cases.setdefault(name, {})[library] = case
    for name, by in cases.items():
        with torch.set_grad_enabled(name == "gradients"):
            taken = interleaved(by, "cpu", rounds=ROUNDS, least=LEAST)
        median = {library: statistics.median(values) for library, values in taken.items()}
        found |= {f"{library} {name} us": 1e6 * value for library, value in median.items()}
        peers = [library for library in by if library != OURS]
        if peers:
            peer = min(peers, key=median.__getitem__)
            found[f"{name} ratio"] = ratio(taken[OURS], taken[peer])
    return found


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
