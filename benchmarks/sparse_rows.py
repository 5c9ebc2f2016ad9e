"""Cost of a training step on a tall table of embeddings: ``benchmarks.hierarchies --steps``.

Dense steps touch every row of the table, sparse ones only those of the batch. Each step looks the
pairs and their negatives up, computes the cross entropy over minus the distances, and moves the
table; the last column is a step without the optimiser's.
"""

import statistics
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from benchmarks.table import Goal, goal_table, head, line
from benchmarks.timing import interleaved
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn import HyperbolicEmbedding
from fedbolic.optim.modules import RiemannianAdam, RiemannianSGD

GOAL_MILLISECONDS = 1.0
NUM_ROWS, DIM, PAIRS, NEGATIVES = 82_115, 10, 10, 20
JUDGED = "ball, sparse, RiemannianAdam"

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

TANGENTS: dict[str, tuple[type[Lorentz] | type[Poincare], bool, Make]] = {
    "ball, dense, torch Adam": (Poincare, False, torch.optim.Adam),
    "ball, dense, RiemannianAdam": (Poincare, False, RiemannianAdam),
    "ball, sparse, torch SparseAdam": (Poincare, True, torch.optim.SparseAdam),
    "ball, sparse, RiemannianAdam": (Poincare, True, RiemannianAdam),
    "hyperboloid, sparse, RiemannianAdam": (Lorentz, True, RiemannianAdam),
}
"""Tables of tangents: kind of space, sparse gradients, optimiser."""

POINTS: dict[str, tuple[bool, Make]] = {
    "points of the ball, dense, RiemannianAdam": (False, lambda p: on_ball(RiemannianAdam, p)),
    "points of the ball, sparse, RiemannianAdam": (True, lambda p: on_ball(RiemannianAdam, p)),
    "points of the ball, sparse, RiemannianSGD": (True, lambda p: on_ball(RiemannianSGD, p)),
}
"""Tables of points: sparse gradients, optimiser."""


def on_ball(
    kind: type[RiemannianAdam] | type[RiemannianSGD], parameters: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """An optimiser of points of the unit ball."""
    return kind(parameters, space=Poincare(1.0))


class Case:
    """A table, its optimiser and the batches of a step."""

    def __init__(
        self, table: nn.Module, make: Make, *, space: Lorentz | Poincare, shape: tuple[int, int]
    ) -> None:
        self.table, self.space, self.shape = table, space, shape
        self.optimizer = make(list(table.parameters()))
        (self.weight,) = table.parameters()
        self.first = torch.zeros(shape[0], dtype=torch.int64)

    def gradient(self) -> None:
        """Forward and backward pass on a fresh batch."""
        points = self.table(torch.randint(len(self.weight), self.shape))
        distance = self.space.dist(points[:, :1], points[:, 1:])
        self.optimizer.zero_grad()
        functional.cross_entropy(-distance, self.first).backward()

    def step(self) -> None:
        """Forward and backward pass, and the step of the optimiser."""
        self.gradient()
        self.optimizer.step()

    def mebibytes(self) -> float:
        """Memory of the table and of the optimiser's state."""
        (state,) = self.optimizer.state.values()
        kept = [self.weight, *(x for x in state.values() if isinstance(x, torch.Tensor))]
        return sum(x.nbytes for x in kept) / 2**20


def cases(num_rows: int, dim: int, shape: tuple[int, int]) -> dict[str, Case]:
    """All cases by name, each after a few steps."""
    made: dict[str, Case] = {}
    for name, (kind, sparse, make) in TANGENTS.items():
        table = HyperbolicEmbedding(kind(), num_rows, dim, sparse=sparse)
        made[name] = Case(table, make, space=kind(1.0), shape=shape)
    for name, (sparse, make) in POINTS.items():
        points = nn.Embedding(num_rows, dim, sparse=sparse)
        nn.init.uniform_(points.weight, -1e-3, 1e-3)
        made[name] = Case(points, make, space=Poincare(1.0), shape=shape)
    for case in made.values():
        for _ in range(3):
            case.step()
    return made


def table(made: dict[str, Case], *, rounds: int = 11, least: float = 0.05) -> dict[str, float]:
    """Print a row per case; return the median milliseconds of a step by case."""
    steps = {name: case.step for name, case in made.items()}
    rests = {name: case.gradient for name, case in made.items()}
    taken, rest = (interleaved(of, "cpu", rounds=rounds, least=least) for of in (steps, rests))
    print(head("CPU ms of a step", "median", "least", "MiB", "without the optimiser"))
    found = {name: 1e3 * statistics.median(seconds) for name, seconds in taken.items()}
    for name, seconds in taken.items():
        times = found[name], 1e3 * min(seconds)
        others = f"{made[name].mebibytes():.1f}", f"{1e3 * statistics.median(rest[name]):.2f}"
        print(line(name, *(f"{ms:.2f}" for ms in times), *others))
    return found


def report_steps() -> None:
    """Print the table and the goal."""
    torch.manual_seed(0)
    found = table(cases(NUM_ROWS, DIM, (PAIRS, 2 + NEGATIVES)))
    goal = Goal("E3", f"{JUDGED}: ms", "<=", GOAL_MILLISECONDS, found[JUDGED])
    print(f"\n{goal_table([goal])}")
