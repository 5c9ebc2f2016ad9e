"""Cost of layers, forward and backward, relative to a Euclidean layer in the same run.

    python -m benchmarks.layers [--groups linear ...] [--compiled linear classifier] [--device cuda]

Groups ``hgcn ...`` are relative to the published sequence of operators. Other libraries are
measured where they are installed.

Takes 3 minutes; a compiled group takes some minutes more.
"""

import copy
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.geometry.libraries import installed
from benchmarks.layers.candidates import BATCH, CANDIDATES, CLASSES, DIM, FLOORS, Built, Candidate
from benchmarks.script import parser
from benchmarks.table import Goal, goal_table, head, line
from benchmarks.timing import Case, Operators, interleaved, peak_mebibytes, ratio

ROUNDS, LEAST = 15, 0.02


G14 = (
    ("linear: fedbolic Linear, ball", "linear: hypll HLinear", 0.85),
    ("linear: fedbolic Linear, ball, compiled", "linear: hypll HLinear", 0.7),
    ("linear: fedbolic Linear, hyperboloid", "linear: torch Linear", 1.35),
    ("classifier: fedbolic MLR, hyperboloid", "classifier: torch Linear", 2.8),
    ("classifier: fedbolic MLR, ball", "classifier: torch Linear", 2.8),
    ("classifier: fedbolic MLR, hyperboloid", "classifier: hypll hyperplane_dists", 0.95),
    ("classifier: fedbolic MLR, ball", "classifier: hypll hyperplane_dists", 0.95),
    ("classifier: fedbolic MLR, ball", "classifier: geoopt dist2plane", 0.01),
    *(
        (f"block: fedbolic LorentzEncoderBlock{kind}", f"block: torch {other}", bound)
        for kind in ("", ", rotary", " of tangents")
        for other, bound in (("TransformerEncoderLayer", 1.5), ("operators of HyperCore's", 1.0))
    ),
    *(
        (f"{group}: fedbolic HGCN, {model}", FLOORS[group], 1.0)
        for group in FLOORS
        for model in ("ball", "hyperboloid")
        if group.startswith("hgcn")
    ),
)
"""Bounds on the time of a candidate over that of another, which is always run eagerly."""


def built(candidate: Candidate, device: str) -> Built:
    """The layer with the parameters of seed 0."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return candidate.build(device)


def float32_error(candidate: Candidate, device: str) -> float | None:
    """Largest error of the outputs against those in float64, over the largest output.

    Inputs and parameters are the same stored numbers. ``None`` for a layer that is no module.
    """
    function, _, x = built(candidate, device)
    if not isinstance(function, nn.Module):
        return None
    with torch.no_grad():
        exact = copy.deepcopy(function).double()(x.double())
        return ((function(x) - exact).abs().max() / exact.abs().max()).item()


def step(candidate: Candidate, device: str, *, compiled: bool = False) -> Case:
    """One forward and backward pass: gradients of the parameters and of the input."""
    function, parameters, x = built(candidate, device)
    if compiled:
        function = torch.compile(function, fullgraph=True)
    leaves = [*parameters, x.detach().requires_grad_()]
    if candidate.group == "classifier":
        label = torch.arange(BATCH, device=device) % CLASSES
        return lambda: torch.autograd.grad(cross_entropy(function(leaves[-1]), label), leaves)
    # the sum of squares of normalised coordinates is constant
    power = 3 if candidate.group == "norm" else 2
    return lambda: torch.autograd.grad(function(leaves[-1]).pow(power).sum(), leaves)


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


def report(device: str, groups: Sequence[str], compiled: Sequence[str] = ()) -> None:
    """Print both tables from one interleaved run."""
    asked = [c for c in CANDIDATES if c.group in groups]
    eager = {c.key: step(c, device) for c in asked if installed(c.library)}
    for case in eager.values():
        case()
    cases = eager | compiled_cases(device, compiled)
    taken = interleaved(cases, device, rounds=ROUNDS, least=LEAST)
    print(f"\n{head('layer', 'time', 'operators', 'bytes written', 'peak MiB', 'error', 'arXiv')}")
    counted = {key: counts(case) for key, case in eager.items()}
    for candidate in asked:
        key, floor = candidate.key, FLOORS[candidate.group]
        if key not in eager:
            print(line(key, f"{candidate.library} is not installed", *[""] * 5))
            continue
        mine, least = counted[key], counted[floor]
        error = float32_error(candidate, device)
        cells = (
            f"{ratio(taken[key], taken[floor]):.2f}",
            f"{mine.count} ({mine.count / least.count:.1f}x)",
            f"{mine.bytes / least.bytes:.1f}x",
            f"{peak_mebibytes(eager[key], device):.1f}",
            "" if error is None else f"{error:.0e}",
        )
        print(line(key, *cells, candidate.paper))
        if f"{key}, compiled" in taken:
            share = ratio(taken[f"{key}, compiled"], taken[floor])
            print(line(f"{key}, compiled", f"{share:.2f}", *[""] * 5))
    print(f"\n{goal_table(bounds(taken))}")


def counts(case: Case) -> Operators:
    """The operators of one call."""
    with Operators() as cost:
        case()
    return cost


def bounds(taken: dict[str, list[float]]) -> list[Goal]:
    """The bounds of G14 and the measured ratios."""
    made = []
    for above, below, bound in G14:
        known = above in taken and below in taken
        figure = ratio(taken[above], taken[below]) if known else None
        name = {"hgcn": "HGCN", "bloc": "block"}.get(below[:4], "G14")
        made.append(Goal(name, f"{above} / {below}", "<=", bound, figure))
    return made


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options.add_argument("--groups", nargs="+", choices=FLOORS, default=list(FLOORS))
    options.add_argument("--compiled", nargs="+", choices=FLOORS, default=(), help="minutes each")
    given = options.parse_args()
    print(
        f"Forward and backward, batch {BATCH}, {DIM} dimensions, {CLASSES} classes, float32, "
        f"{given.device}, torch {torch.__version__}: ratios to the layer of torch, median of "
        f"{ROUNDS} interleaved rounds."
    )
    report(given.device, given.groups, given.compiled)


if __name__ == "__main__":
    main()
