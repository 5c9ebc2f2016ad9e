"""Cost of layers, forward and backward, relative to a Euclidean layer in the same run.

python -m benchmarks.layers [--compiled linear classifier] [--device cuda]

Other libraries are measured if they are installed in the same environment.
"""

import argparse
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GCNConv

from benchmarks.measure import Case, Operators, interleaved, peak_mebibytes, ratio
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn import LorentzFC, LorentzLinear, LorentzMLR, PoincareLinear, PoincareMLR
from fedbolic.nn.graph import HGCNConv, LorentzConv

BATCH, DIM, CLASSES = 1024, 128, 100
ROUNDS, LEAST = 15, 0.02
FLOOR = "nn.Linear"
GROUPS = ("linear", "classifier")
Function: TypeAlias = Callable[[Tensor], Tensor]
Built: TypeAlias = tuple[Function, list[Tensor], Tensor]
"""A function to time, its parameters and its input."""


@dataclass(frozen=True)
class Candidate:
    """A layer of a library.

    Args:
        group: ``linear``, 128 to 128 dimensions and the sum of squares; ``classifier``, to 100
            classes and the cross entropy; ``graph``, as ``linear`` along edges.
        name: Name of the layer.
        library: Package of the layer.
        build: Builds the layer on a device.
    """

    group: str
    name: str
    library: str
    build: Callable[[str], Built]

    @property
    def key(self) -> str:
        """Name of the candidate in tables."""
        return f"{self.group}: {self.library} {self.name}"


def vectors(device: str) -> Tensor:
    """Tangents at the origin of length about 1.1."""
    return (torch.randn(BATCH, DIM, generator=torch.Generator().manual_seed(0)) / 10).to(device)


def ball(device: str) -> Tensor:
    """Points of the ball of curvature 1."""
    return Poincare().expmap0(vectors(device) / 2)


def lorentz(device: str) -> Tensor:
    """The same points on the hyperboloid."""
    return Lorentz().expmap0(Lorentz().lift(vectors(device)))


def module(
    kind: Callable[[int, int], nn.Module], outputs: int, points: Callable[[str], Tensor]
) -> Callable[[str], Built]:
    """Builder of a candidate that is an ordinary module."""

    def build(device: str) -> Built:
        layer = kind(DIM, outputs).to(device)
        return layer, list(layer.parameters()), points(device)

    return build


def behind_column(device: str) -> Built:
    """A linear map of points, with its outputs appended to the time coordinate of the inputs.

    Every layer of the hyperboloid that leaves the matrix product to torch has at least this cost.
    """
    plain, x = nn.Linear(DIM + 1, DIM).to(device), lorentz(device)
    return (lambda x: torch.cat((x[:, :1], plain(x)), -1)), list(plain.parameters()), x


def geoopt_linear(device: str) -> Built:
    """The Möbius linear layer of geoopt's examples, from its operations."""
    space = importlib.import_module("geoopt").PoincareBall(1.0).to(device)
    plain = nn.Linear(DIM, DIM).to(device)
    weight, bias = plain.weight, nn.Parameter(space.expmap0(plain.bias.detach() * 1e-3))

    def function(x: Tensor) -> Tensor:
        return space.mobius_add(space.mobius_matvec(weight, x), bias)

    return function, [weight, bias], ball(device)


def geoopt_classifier(device: str) -> Built:
    """Signed distances by geoopt's ``dist2plane``, scaled by the lengths of the normals."""
    space = importlib.import_module("geoopt").PoincareBall(1.0).to(device)
    normal = nn.Parameter(nn.Linear(DIM, CLASSES).to(device).weight.detach())
    point = nn.Parameter(space.expmap0(normal.detach() * 1e-2))

    def function(x: Tensor) -> Tensor:
        return space.dist2plane(x.unsqueeze(-2), point, normal, signed=True, scaled=True)

    return function, [normal, point], ball(device)


def _hypll_ball() -> Any:
    curved = importlib.import_module("hypll.manifolds.poincare_ball")
    return curved.PoincareBall(curved.Curvature(1.0, constraining_strategy=lambda value: value))


def at_origin(in_features: int, out_features: int) -> HGCNConv:
    """The layer of HGCN with means at the origin."""
    return HGCNConv(in_features, out_features, local=False)


def hypll_linear(device: str) -> Built:
    """The layer of hypll on its own tensors."""
    space = _hypll_ball()
    layer = importlib.import_module("hypll.nn").HLinear(DIM, DIM, space)
    if device != "cpu":
        layer = layer.to(device)
    wrap = importlib.import_module("hypll.tensors").ManifoldTensor

    def function(x: Tensor) -> Tensor:
        return layer(wrap(x, manifold=space, man_dim=-1)).tensor

    return function, [layer.z.tensor, layer.bias], ball(device)


def hypll_classifier(device: str) -> Built:
    """Signed distances to hyperplanes by hypll, whose normals are as long as its ``z``."""
    linalg = importlib.import_module("hypll.manifolds.poincare_ball.math.linalg")
    c = torch.tensor(1.0, device=device)
    plain = nn.Linear(DIM, CLASSES).to(device)
    z, r = nn.Parameter(plain.weight.detach().mT.contiguous()), plain.bias

    def function(x: Tensor) -> Tensor:
        return linalg.poincare_hyperplane_dists(x, z, r, c)

    return function, [z, r], ball(device)


def graph(
    kind: Callable[[int, int], nn.Module], points: Callable[[str], Tensor]
) -> Callable[[str], Built]:
    """Builder of a graph convolution on a random graph with 8 edges per node."""

    def build(device: str) -> Built:
        layer = kind(DIM, DIM).to(device)
        ends = torch.randint(BATCH, (2, 8 * BATCH), generator=torch.Generator().manual_seed(1))
        edges = ends.to(device)
        return (lambda x: layer(x, edges)), list(layer.parameters()), points(device)

    return build


CANDIDATES = (
    Candidate("linear", "Linear", "torch", module(nn.Linear, DIM, vectors)),
    Candidate("linear", "Linear behind a column", "torch", behind_column),
    Candidate("linear", "LorentzLinear", "fedbolic", module(LorentzLinear, DIM, lorentz)),
    Candidate("linear", "LorentzFC", "fedbolic", module(LorentzFC, DIM, lorentz)),
    Candidate("linear", "PoincareLinear", "fedbolic", module(PoincareLinear, DIM, ball)),
    Candidate("linear", "Mobius linear", "geoopt", geoopt_linear),
    Candidate("linear", "HLinear", "hypll", hypll_linear),
    Candidate("classifier", "Linear", "torch", module(nn.Linear, CLASSES, vectors)),
    Candidate("classifier", "LorentzMLR", "fedbolic", module(LorentzMLR, CLASSES, lorentz)),
    Candidate("classifier", "PoincareMLR", "fedbolic", module(PoincareMLR, CLASSES, ball)),
    Candidate("classifier", "dist2plane", "geoopt", geoopt_classifier),
    Candidate("classifier", "hyperplane_dists", "hypll", hypll_classifier),
    Candidate("graph", "GCNConv", "torch_geometric", graph(GCNConv, vectors)),
    Candidate("graph", "LorentzConv", "fedbolic", graph(LorentzConv, lorentz)),
    Candidate("graph", "HGCNConv", "fedbolic", graph(HGCNConv, lorentz)),
    Candidate("graph", "HGCNConv at the origin", "fedbolic", graph(at_origin, lorentz)),
)
FLOORS = {c.group: c.key for c in reversed(CANDIDATES) if c.library.startswith("torch")}
"""Key of the reference of each group, by whose time the others are divided."""


@dataclass(frozen=True)
class Goal:
    """A bound on the time of one candidate over that of another.

    Args:
        above: Key of the candidate.
        below: Key of its reference, always run eagerly.
        bound: Upper bound on the ratio.
        compiled: True if the candidate is compiled.
    """

    above: str
    below: str
    bound: float
    compiled: bool = False


G14 = (
    Goal("linear: fedbolic PoincareLinear", "linear: hypll HLinear", 0.85),
    Goal("linear: fedbolic PoincareLinear", "linear: hypll HLinear", 0.7, compiled=True),
    Goal("linear: fedbolic LorentzLinear", "linear: torch Linear", 1.35),
    Goal("classifier: fedbolic LorentzMLR", "classifier: torch Linear", 2.8),
    Goal("classifier: fedbolic PoincareMLR", "classifier: torch Linear", 2.8),
    Goal("classifier: fedbolic LorentzMLR", "classifier: hypll hyperplane_dists", 0.95),
    Goal("classifier: fedbolic PoincareMLR", "classifier: hypll hyperplane_dists", 0.95),
    Goal("classifier: fedbolic PoincareMLR", "classifier: geoopt dist2plane", 0.01),
)


def step(candidate: Candidate, device: str, *, compiled: bool = False) -> Case:
    """One forward and backward pass: gradients of the parameters and of the input."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        function, parameters, x = candidate.build(device)
    if compiled:
        function = torch.compile(function, fullgraph=True)
    leaves = [*parameters, x.detach().requires_grad_()]
    if candidate.group == "classifier":
        label = torch.arange(BATCH, device=device) % CLASSES
        return lambda: torch.autograd.grad(cross_entropy(function(leaves[-1]), label), leaves)
    return lambda: torch.autograd.grad(function(leaves[-1]).square().sum(), leaves)


def installed(library: str) -> bool:
    """True if a package is installed."""
    return importlib.util.find_spec(library) is not None


def compiled_cases(device: str, groups: Sequence[str]) -> dict[str, Case]:
    """Every candidate of the groups that compiles, after a warm-up; prints why others do not."""
    found = {}
    for candidate in CANDIDATES:
        if candidate.group in groups and installed(candidate.library):
            try:
                case = step(candidate, device, compiled=True)
                case()
                found[f"{candidate.key}, compiled"] = case
            except Exception as error:  # any error of a peer in the compiler is a result
                print(f"\n{candidate.key} does not compile: {type(error).__name__}")
    return found


def report(device: str, groups: Sequence[str] = ()) -> None:
    """Print both tables from one interleaved run.

    Args:
        device: ``cpu`` or ``cuda``.
        groups: Groups whose candidates also run compiled.
    """
    eager = {c.key: step(c, device) for c in CANDIDATES if installed(c.library)}
    for case in eager.values():
        case()
    compiled = compiled_cases(device, groups)
    taken = interleaved(eager | compiled, device, rounds=ROUNDS, least=LEAST)
    print("\n| layer | time | operators | bytes written | peak MiB |\n|---|---|---|---|---|")
    counted = {key: counts(case) for key, case in eager.items()}
    for candidate in CANDIDATES:
        key, floor = candidate.key, FLOORS[candidate.group]
        if key not in eager:
            print(f"| {key} | {candidate.library} is not installed | | | |")
            continue
        mine, least = counted[key], counted[floor]
        print(
            f"| {key} | {ratio(taken[key], taken[floor]):.2f} | {mine.count} "
            f"({mine.count / least.count:.1f}x) | {mine.bytes / least.bytes:.1f}x "
            f"| {peak_mebibytes(eager[key], device):.1f} |"
        )
        if f"{key}, compiled" in taken:
            print(
                f"| {key}, compiled | {ratio(taken[f'{key}, compiled'], taken[floor]):.2f} | | | |"
            )
    goals(taken)


def counts(case: Case) -> Operators:
    """The operators of one call."""
    with Operators() as cost:
        case()
    return cost


def goals(taken: dict[str, list[float]]) -> None:
    """Print the bounds of G14 and the measured ratios."""
    print("\n| G14 | bound | measured |\n|---|---|---|")
    for goal in G14:
        above = goal.above + (", compiled" if goal.compiled else "")
        measured = "not measured"
        if above in taken and goal.below in taken:
            measured = f"{ratio(taken[above], taken[goal.below]):.3g}"
        print(f"| {above} / {goal.below} | {goal.bound} | {measured} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--compiled", nargs="+", choices=FLOORS, default=(), help="groups to compile, minutes each"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"Forward and backward, batch {BATCH}, {DIM} dimensions, {CLASSES} classes, float32, "
        f"{given.device}, torch {torch.__version__}: ratios to the layer of torch, median of "
        f"{ROUNDS} interleaved rounds."
    )
    report(given.device, given.compiled)


if __name__ == "__main__":
    main()
