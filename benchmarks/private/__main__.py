"""Cost of privacy of FlyNN's counts: Appendix D.8 of its paper, the ledgers, and their audit.

Takes 5 minutes; some minutes more with ``--digits``.
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from sklearn.metrics import balanced_accuracy_score

from benchmarks.private.enumerated_losses import worst_loss
from benchmarks.script import parser
from benchmarks.table import Goal, goal_table, head, line
from fedbolic.data import MNIST, Rows, Synthetic
from fedbolic.data.contract.dataset import OfficialParts
from fedbolic.federated.accounting.ledger import Neighbours
from flynn import bloom
from flynn.fly_hash import connections, fly_hash
from flynn.noise import Noise
from flynn.private import Histogram, Mechanism, Paper, Parallel, Peel, release

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EPSILONS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
SELECTED = (4, 8, 16, 32, 50, 100, 200, 400, 600)
SELECTING = {"paper": Paper, "parallel": Parallel, "peel": Peel}
CLASSES = 2
DIGITS = (23_520, 2352)  # m and rho on MNIST's threes and eights
DECAY = 0.9


@dataclass(frozen=True, eq=False)
class Parties:
    """Two parties' counts for one draw of data and lift, and their test examples."""

    counts: list[np.ndarray]
    winners: torch.Tensor
    labels: np.ndarray

    def score(self, total: np.ndarray) -> float:
        """Balanced accuracy of a model."""
        scores = bloom.log_scores(torch.from_numpy(total), self.winners, DECAY)
        return float(balanced_accuracy_score(self.labels, bloom.predictions(scores).numpy()))

    def private(self, mechanism: Mechanism, active: int) -> float:
        """Balanced accuracy with noise from the operating system."""
        plan = mechanism.plan(active, len(self.counts))
        total = sum(release(counts, plan, Noise()) for counts in self.counts)
        return self.score(mechanism.finish(np.asarray(total)))


def made(n: int, dim: int, active: int, draw: int) -> Parties:
    """Two parties with half of the synthetic data each."""
    data = Synthetic(n, 5000, 30, CLASSES, 5, draw=draw).read(None, download=False)
    return _halves(data, connections(dim, 30, 3, seed=draw), active)


def digits(root: Path, draw: int) -> Parties:
    """Two parties with half of MNIST's threes and eights each: m is 30 d, rho a tenth of it."""
    data = Rows(MNIST(), classes=(3, 8)).read(root, download=False)
    return _halves(data, connections(DIGITS[0], 784, 4, seed=draw), DIGITS[1])


def _halves(data: OfficialParts, rows: torch.Tensor, active: int) -> Parties:
    hashes, test = (fly_hash(x, rows, active) for x in (data.x_train, data.x_test))
    halves = zip(hashes.tensor_split(2), data.y_train.tensor_split(2), strict=True)
    counts = [
        bloom.count(some, labels, dim=len(rows), num_classes=CLASSES).numpy()
        for some, labels in halves
    ]
    return Parties(counts, test, data.y_test.numpy())


class Tried(NamedTuple):
    """Balanced accuracy with one number of selected counts."""

    mean: float
    spread: float
    selected: int | None


@dataclass
class Curve:
    """Accuracy curve of one mechanism."""

    name: str
    tried: list[list[Tried]] = field(default_factory=list)

    @property
    def best(self) -> list[Tried]:
        """For every epsilon, the T with the best mean on the test set, as in the paper."""
        return [max(some, key=lambda one: one.mean) for some in self.tried]


def curve(name: str, of: Sequence[Parties], active: int, repeats: int) -> Curve:
    """A mechanism at every epsilon and, if it selects, every T."""
    found = Curve(name)
    for epsilon in EPSILONS:
        found.tried.append([])
        for num in SELECTED if name in SELECTING else (None,):
            mechanism = make(name, epsilon, num)
            values = [
                statistics.fmean(one.private(mechanism, active) for _ in range(repeats))
                for one in of
            ]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            found.tried[-1].append(Tried(statistics.fmean(values), spread, num))
    return found


def make(name: str, epsilon: float, num: int | None) -> Mechanism:
    """The mechanism of a given name."""
    relation: Neighbours = "replace" if name.endswith("replace") else "add/remove"
    if num is None:
        return Histogram(epsilon, relation)
    return SELECTING[name](epsilon, num)


def table(title: str, of: Sequence[Parties], active: int, repeats: int) -> list[Curve]:
    """Print the accuracy of every mechanism at every epsilon; return the curves."""
    plain = [one.score(np.asarray(sum(one.counts))) for one in of]
    print(f"\n{title}: balanced accuracy, {len(of)} draws x {repeats} runs")
    print(f"\n{head('epsilon', *EPSILONS)}")
    curves = []
    for name in (*SELECTING, "histogram", "histogram replace"):
        one = curve(name, of, active, repeats)
        cells = [
            f"{mean:.3f}±{spread:.3f}" + (f" T{num}" if num else "")
            for mean, spread, num in one.best
        ]
        print(line(one.name, *cells), flush=True)
        curves.append(one)
    mean = statistics.fmean(plain)
    print(line("not private", f"{mean:.3f}", *[""] * (len(EPSILONS) - 1)))
    ours, theirs = curves[3].best[0].mean, curves[0].best[-1].mean
    what = "histogram at 0.25, at least the paper's mechanism at 2"
    print(f"\n{goal_table([Goal('private', what, '>=', theirs, ours)])}")
    return [*curves, Curve("not private", [[Tried(mean, 0.0, None)]] * len(EPSILONS))]


def ledgers() -> None:
    """Print the cost of the mechanisms on the set-up of the paper, two parties."""
    for mechanism in (Paper(1, 100), Parallel(1, 100), Peel(1, 100), Histogram(1)):
        print(mechanism.ledger(15, 2))
    print("paper, MNIST 3 against 8:", Paper(1, 100).ledger(2352, 2), sep="\n")


def audit() -> None:
    """Print the exact worst loss on toy counts next to the ledger, for both relations."""
    print(f"\n{head('audit: worst loss on (3, 0, 1, 2, 0), rho = 2', 'found', 'ledger', '')}")
    relations: tuple[Neighbours, ...] = ("add/remove", "replace")
    mechanisms = [Paper(1, 3), Parallel(1, 3), Peel(1, 3), Peel(1, 3, "replace"), Histogram(1)]
    for mechanism, relation in itertools.product(mechanisms, relations):
        plan, ledger = mechanism.plan(2, 2), mechanism.ledger(2, 2)
        _, _, both = worst_loss([(3, 0, 1, 2, 0)], plan, 2, relation)
        bound = ledger.total(relation)
        verdict = "holds" if both <= bound + 1e-12 else "BROKEN"
        print(line(f"{mechanism} {relation}", f"{both:.3f}", f"{bound:.3f}", verdict))


def plot(curves: dict[str, list[Curve]], file: Path) -> None:
    """Draw accuracy over epsilon and, below it, over T, with one column per set-up."""
    from matplotlib.figure import Figure

    canvas = Figure((5 * len(curves), 10.5), layout="constrained")
    grid = canvas.subplots(3, len(curves), squeeze=False)
    for (title, of), (first, *others) in zip(curves.items(), grid.T, strict=True):
        for one in of:
            _band(first, EPSILONS, one.best, one.name)
        first.set(title=title, xlabel="epsilon")
        for axes, one in zip(others, (of[0], of[2]), strict=True):  # the paper's, and peel
            for epsilon, some in zip(EPSILONS, one.tried, strict=True):
                _band(axes, SELECTED, some, f"epsilon {epsilon:g}")
            axes.axhline(of[-1].best[0].mean, color="black", linestyle="--", linewidth=1)
            axes.set(title=one.name, xlabel="selected counts T", xscale="log")
    for axes in grid.flat:
        axes.set(ylabel="balanced accuracy")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    canvas.savefig(file, dpi=80)


def _band(axes: "Axes", at: Sequence[float], some: Sequence[Tried], label: str) -> None:
    means, spreads = (np.array([one[i] for one in some]) for i in (0, 1))
    (line,) = axes.plot(at, means, label=label)
    axes.fill_between(at, means - spreads, means + spreads, alpha=0.15, color=line.get_color())


def main() -> None:
    """Print ledgers, audit and tables."""
    args = parser(__doc__)
    args.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000])
    args.add_argument("--draws", type=int, default=4, help="draws of data and lift")
    args.add_argument("--repeats", type=int, default=5, help="runs on each draw")
    args.add_argument("--all", action="store_true", help="all four hashes of the paper")
    args.add_argument("--digits", type=Path, help="data folder, to include MNIST's 3 and 8")
    args.add_argument("--plot", type=Path, help="draw the curves into this file")
    options = args.parse_args()
    ledgers()
    audit()
    hashes = [(300, 15), (300, 30), (600, 15), (600, 30)] if options.all else [(300, 15)]
    curves, draws = {}, range(options.draws)
    for n, (dim, active) in itertools.product(options.sizes, hashes):
        title = f"n = {n}, m = {dim}, rho = {active}"
        of = [made(n, dim, active, draw) for draw in draws]
        curves[title] = table(title, of, active, options.repeats)
    if options.digits:
        of = [digits(options.digits, draw) for draw in draws]
        curves["MNIST 3 and 8"] = table("MNIST 3 and 8", of, DIGITS[1], options.repeats)
    if options.plot:
        plot(curves, options.plot)


if __name__ == "__main__":
    main()
