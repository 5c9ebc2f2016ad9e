"""What privacy costs: Appendix D.8 of the FlyNN paper, the ledgers, and their audit."""

import argparse
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import balanced_accuracy_score

from fedbolic.data import Synthetic
from flynn import bloom
from flynn.audit import worst_loss
from flynn.fly_hash import connections, fly_hash
from flynn.noise import Noise
from flynn.private import Histogram, Mechanism, Paper, Parallel, Peel, Relation, release

EPSILONS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
SELECTED = (4, 8, 16, 32, 50, 100, 200, 400, 600)
CLASSES = 2
DECAY = 0.9


@dataclass(frozen=True, eq=False)
class Parties:
    """Two parties' counts of one draw of data and lift, and what they are tested on.

    Args:
        counts: Of each party, int64.
        winners: Hashes of the test examples.
        labels: Of the test examples.
    """

    counts: list[np.ndarray]
    winners: torch.Tensor
    labels: np.ndarray

    def score(self, total: np.ndarray) -> float:
        """Balanced accuracy of a model.

        Args:
            total: Its counts.
        """
        scores = bloom.log_scores(torch.from_numpy(total), self.winners, DECAY)
        return float(balanced_accuracy_score(self.labels, bloom.predictions(scores).numpy()))

    def private(self, mechanism: Mechanism, active: int) -> float:
        """Balanced accuracy with noise of the system.

        Args:
            mechanism: How every party hides its counts.
            active: Ones of a hash.
        """
        plan = mechanism.plan(active, len(self.counts))
        total = sum(release(counts, plan, Noise()) for counts in self.counts)
        return self.score(mechanism.finish(np.asarray(total)))


def parties(n: int, dim: int, active: int, draw: int) -> Parties:
    """Two parties with half of the synthetic data each.

    Args:
        n: Training examples of both.
        dim: Length of the hash.
        active: Ones of a hash.
        draw: Of the data and of the lift.
    """
    data = Synthetic(n, 5000, 30, CLASSES, 5, draw=draw).read(None, download=False)
    rows = connections(dim, 30, 3, seed=draw)
    hashes, test = (fly_hash(x, rows, active) for x in (data.x_train, data.x_test))
    halves = zip(hashes.split(n // 2), data.y_train.split(n // 2), strict=True)
    counts = [
        bloom.count(some, labels, dim=dim, num_classes=CLASSES).numpy() for some, labels in halves
    ]
    return Parties(counts, test, data.y_test.numpy())


@dataclass
class Curve:
    """Means of one mechanism, by epsilon.

    Args:
        name: Of the mechanism.
        means: Balanced accuracy.
        spreads: Its standard deviation over draws.
        chosen: T with the best mean on the test set, as in the paper; none without a choice.
    """

    name: str
    means: list[float] = field(default_factory=list)
    spreads: list[float] = field(default_factory=list)
    chosen: list[int | None] = field(default_factory=list)


def curve(name: str, of: Sequence[Parties], active: int, repeats: int) -> Curve:
    """A mechanism at every epsilon; where it selects, with the best T on the test set.

    Args:
        name: paper, parallel, peel or histogram, the last also with " replace".
        of: One for each draw.
        active: Ones of a hash.
        repeats: Runs on each draw.
    """
    found = Curve(name)
    for epsilon in EPSILONS:
        tried = []
        for num in SELECTED if name in ("paper", "parallel", "peel") else (None,):
            mechanism = make(name, epsilon, num)
            values = [
                statistics.fmean(one.private(mechanism, active) for _ in range(repeats))
                for one in of
            ]
            tried.append((statistics.fmean(values), statistics.stdev(values), num))
        mean, spread, num = max(tried, key=lambda entry: entry[0])
        found.means.append(mean)
        found.spreads.append(spread)
        found.chosen.append(num)
    return found


def make(name: str, epsilon: float, num: int | None) -> Mechanism:
    """The mechanism of a name.

    Args:
        name: As for :func:`curve`.
        epsilon: The budget.
        num: T, for those that select.
    """
    relation: Relation = "replace" if name.endswith("replace") else "add/remove"
    if num is None:
        return Histogram(epsilon, relation)
    selecting = {"paper": Paper, "parallel": Parallel, "peel": Peel}
    return selecting[name](epsilon, num)


def table(n: int, dim: int, active: int, draws: int, repeats: int) -> list[Curve]:
    """Print the accuracy of every mechanism at every epsilon, and give the curves.

    Args:
        n: Training examples.
        dim: Length of the hash.
        active: Ones of a hash.
        draws: Of data and lift.
        repeats: Runs on each.
    """
    of = [parties(n, dim, active, draw) for draw in range(draws)]
    plain = statistics.fmean(one.score(np.asarray(sum(one.counts))) for one in of)
    print(
        f"\nn = {n}, m = {dim}, rho = {active}: balanced accuracy, {draws} draws x {repeats} runs"
    )
    print(f"{'epsilon':<20}" + "".join(f"{epsilon:>15g}" for epsilon in EPSILONS))
    names = ("paper", "parallel", "peel", "histogram", "histogram replace")
    curves = [curve(name, of, active, repeats) for name in names]
    for one in curves:
        cells = [
            f"{mean:.3f}±{spread:.3f}" + (f" T{num}" if num else "")
            for mean, spread, num in zip(one.means, one.spreads, one.chosen, strict=True)
        ]
        print(f"{one.name:<20}" + "".join(f"{cell:>15}" for cell in cells))
    print(f"{'not private':<20}{plain:>15.3f}")
    ours, theirs = curves[3].means[0], curves[0].means[-1]
    verdict = "met" if ours >= theirs else "MISSED"
    print(f"histogram at 0.25: {ours:.3f}; paper at 2: {theirs:.3f}; at least as good: {verdict}")
    return [*curves, Curve("not private", [plain] * len(EPSILONS), [0.0] * len(EPSILONS))]


def ledgers() -> None:
    """Print what the mechanisms cost on the set-up of the paper, two parties."""
    for mechanism in (Paper(1, 100), Parallel(1, 100), Peel(1, 100), Histogram(1)):
        print(mechanism.ledger(15, 2))
    print("paper, MNIST 3 against 8:", Paper(1, 100).ledger(2352, 2), sep="\n")


def audit() -> None:
    """Print the exact worst loss on toy counts beside the ledger, for both relations."""
    print(f"\n{'audit: worst loss on (3, 0, 1, 2, 0), rho = 2':<52}{'found':>9}{'ledger':>9}")
    relations: tuple[Relation, ...] = ("add/remove", "replace")
    mechanisms = [Paper(1, 3), Parallel(1, 3), Peel(1, 3), Peel(1, 3, "replace"), Histogram(1)]
    for mechanism, relation in itertools.product(mechanisms, relations):
        plan, ledger = mechanism.plan(2, 2), mechanism.ledger(2, 2)
        _, _, both = worst_loss([(3, 0, 1, 2, 0)], plan, 2, relation)
        bound = ledger.total(relation)
        verdict = "holds" if both <= bound + 1e-12 else "BROKEN"
        print(f"{f'{mechanism} {relation}':<62}{both:>9.3f}{bound:>9.3f}  {verdict}")


def plot(curves: dict[str, list[Curve]], file: Path) -> None:
    """Draw accuracy over epsilon, a panel for each set-up.

    Args:
        curves: By the title of the panel.
        file: Where the drawing goes.
    """
    from matplotlib.figure import Figure

    canvas = Figure((5.5 * len(curves), 4.2), layout="constrained")
    panels = canvas.subplots(1, len(curves), squeeze=False)[0]
    for axes, (title, lines) in zip(panels, curves.items(), strict=True):
        for place, line in enumerate(lines):
            means, spreads = np.array(line.means), np.array(line.spreads)
            axes.plot(EPSILONS, means, label=line.name, color=f"C{place}")
            low, high = means - spreads, means + spreads
            axes.fill_between(EPSILONS, low, high, alpha=0.15, color=f"C{place}")
        axes.set(title=title, xlabel="epsilon", ylabel="balanced accuracy")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    canvas.savefig(file, dpi=120)


def main() -> None:
    """Print ledgers, audit and the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--draws", type=int, default=4, help="of data and lift")
    parser.add_argument("--repeats", type=int, default=5, help="runs on each draw")
    parser.add_argument("--all", action="store_true", help="all four hashes of the paper")
    parser.add_argument("--plot", type=Path, help="draw the curves into this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ledgers()
    audit()
    hashes = [(300, 15), (300, 30), (600, 15), (600, 30)] if options.all else [(300, 15)]
    curves = {
        f"n = {n}, m = {dim}, rho = {active}": table(n, dim, active, options.draws, options.repeats)
        for n, (dim, active) in itertools.product(options.sizes, hashes)
    }
    if options.plot:
        plot(curves, options.plot)


if __name__ == "__main__":
    main()
