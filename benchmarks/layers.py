"""Cost of layers, forward and backward, relative to a Euclidean layer in the same run.

python -m benchmarks.layers [--compiled linear classifier] [--device cuda]

Other libraries are measured if they are installed in the same environment.
"""

import argparse
import copy
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.layer_candidates import (
    BATCH,
    CANDIDATES,
    CLASSES,
    DIM,
    FLOORS,
    Built,
    Candidate,
)
from benchmarks.measure import Case, Operators, interleaved, peak_mebibytes, ratio

ROUNDS, LEAST = 15, 0.02


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
    print("\n| layer | time | operators | bytes written | peak MiB | error | arXiv |")
    print("|---|---|---|---|---|---|---|")
    counted = {key: counts(case) for key, case in eager.items()}
    for candidate in CANDIDATES:
        key, floor = candidate.key, FLOORS[candidate.group]
        if key not in eager:
            print(f"| {key} | {candidate.library} is not installed | | | | | |")
            continue
        mine, least = counted[key], counted[floor]
        error = float32_error(candidate, device)
        print(
            f"| {key} | {ratio(taken[key], taken[floor]):.2f} | {mine.count} "
            f"({mine.count / least.count:.1f}x) | {mine.bytes / least.bytes:.1f}x "
            f"| {peak_mebibytes(eager[key], device):.1f} "
            f"| {'' if error is None else f'{error:.0e}'} | {candidate.paper} |"
        )
        if f"{key}, compiled" in taken:
            share = ratio(taken[f"{key}, compiled"], taken[floor])
            print(f"| {key}, compiled | {share:.2f} | | | | | |")
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
