"""Cost of a training step on a tall table of embeddings: ``python -m benchmarks.sparse_rows``.

Dense steps touch every row of the table, sparse ones only those of the batch. Each step looks the
pairs and their negatives up, computes the cross entropy over minus the distances, and moves the
table; the last column is a step without the optimiser's.
"""

import statistics
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from benchmarks.script import parser
from benchmarks.timing import interleaved
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn import HyperbolicEmbedding
from fedbolic.optim.modules import RiemannianAdam, RiemannianSGD

GOAL_MILLISECONDS = 1.0
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
    """A table, its optimiser and the batches of a step.

    Args:
        table: Module from indices to points.
        make: Constructor of the optimiser.
        space: Space of the points.
        shape: Pairs of a batch, and points looked up for each.
    """

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
        table = HyperbolicEmbedding(kind, num_rows, dim, sparse=sparse)
        made[name] = Case(table, make, space=kind(1.0), shape=shape)
    for name, (sparse, make) in POINTS.items():
        points = nn.Embedding(num_rows, dim, sparse=sparse)
        nn.init.uniform_(points.weight, -1e-3, 1e-3)
        made[name] = Case(points, make, space=Poincare(1.0), shape=shape)
    for case in made.values():
        for _ in range(3):
            case.step()
    return made


def table(
    made: dict[str, Case], *, device: str = "cpu", rounds: int = 11, least: float = 0.05
) -> dict[str, float]:
    """Print a row per case; return the median milliseconds of a step by case."""
    steps = interleaved({n: c.step for n, c in made.items()}, device, rounds=rounds, least=least)
    rests = interleaved(
        {n: c.gradient for n, c in made.items()}, device, rounds=rounds, least=least
    )
    print(f"{'CPU ms of a step':<44}{'median':>8}{'least':>8}{'MiB':>8}{'no optimiser':>14}")
    for name, seconds in steps.items():
        print(
            f"{name:<44}{1e3 * statistics.median(seconds):>8.2f}{1e3 * min(seconds):>8.2f}"
            f"{made[name].mebibytes():>8.1f}{1e3 * statistics.median(rests[name]):>14.2f}"
        )
    return {name: 1e3 * statistics.median(seconds) for name, seconds in steps.items()}


def main() -> None:
    """Print the table and the goal."""
    args = parser(__doc__)
    args.add_argument("--rows", type=int, default=82_115, help="height of the table")
    args.add_argument("--dim", type=int, default=10, help="dimensions of the space")
    args.add_argument("--pairs", type=int, default=10, help="pairs of a batch")
    args.add_argument("--negatives", type=int, default=20, help="negatives of a pair")
    args.add_argument("--rounds", type=int, default=11, help="rounds of timing")
    options = args.parse_args()
    torch.manual_seed(0)
    made = cases(options.rows, options.dim, (options.pairs, 2 + options.negatives))
    milliseconds = table(made, rounds=options.rounds)
    taken = milliseconds[JUDGED]
    met = "met" if taken <= GOAL_MILLISECONDS else "MISSED"
    print(f"E3 {JUDGED}: {taken:.2f} ms, goal <= {GOAL_MILLISECONDS:.2f}: {met}")


if __name__ == "__main__":
    main()
