"""Differentially private counts: mechanisms, what each costs, and the ledger that says so."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Int64
from numpy import ndarray
from typing_extensions import override

from fedbolic import check
from flynn.noise import Noise

Relation: TypeAlias = Literal["add/remove", "replace"]


@dataclass(frozen=True)
class HashPlan:
    """The parameters of one party's release.

    Args:
        num_selected: Counts that are released, T; ``None``: all.
        rate: One count more makes its selection exp(rate) times as likely.
        scale: Of the discrete Laplace noise on every released count.
    """

    num_selected: int | None
    rate: float
    scale: float

    def loss(self, active: int, relation: Relation) -> tuple[float, float]:
        """The epsilon of selecting and of the noise, for one record of one party.

        A record more adds one to ``active`` counts of a class; one replaced changes twice as many,
        of which half may go down, so that a selection's sum of weights no longer moves one way.

        Args:
            active: Ones of a hash, rho.
            relation: What neighbours differ in.
        """
        changed = active if relation == "add/remove" else 2 * active
        if self.num_selected is None:
            return 0.0, changed / self.scale
        both_ways = 1 if relation == "add/remove" else 2
        selecting = both_ways * self.num_selected * self.rate
        return selecting, min(self.num_selected, changed) / self.scale


@dataclass(frozen=True)
class Ledger:
    """Privacy cost of a release, stage by stage, for both relations.

    The party model is: records of different parties are different records, so that the cost of all
    parties is the largest of any (parallel composition). A record that may move from one party to
    another costs both. The classes, the sizes, and what is done to features must not depend on the
    records, and the number of records of a party is taken to be public.

    Args:
        mechanism: Its name.
        claimed: The epsilon that was asked for.
        relation: What neighbours differ in, in that claim.
        plan: The parameters.
        active: Ones of a hash.
        parties: How many there are.
        seeded: Whether the noise follows from a seed.
        features: What is done to them before they are hashed. It costs nothing as long as it does
            not come from the records, which nobody here can check.
    """

    mechanism: str
    claimed: float
    relation: Relation
    plan: HashPlan
    active: int
    parties: int
    seeded: bool = False
    features: str = "as they are"

    def total(self, relation: Relation) -> float:
        """The epsilon that is proved for one record.

        Args:
            relation: What neighbours differ in.
        """
        return sum(self.plan.loss(self.active, relation))

    def __str__(self) -> str:
        kept = self.plan.num_selected or "all"
        lines = [
            f"{self.mechanism}: epsilon {self.claimed:g} asked for ({self.relation}), {kept} "
            f"counts, noise scale {self.plan.scale:g}, {self.parties} parties of disjoint records",
            f"{'relation':<14}{'selection':>10}{'noise':>10}{'one record':>12}{'moved':>10}",
        ]
        relations: tuple[Relation, ...] = ("add/remove", "replace")
        for relation in relations:
            selecting, noise = self.plan.loss(self.active, relation)
            total = selecting + noise
            moved = f"{2 * self.total('add/remove'):.4g}" if relation == "replace" else ""
            lines.append(f"{relation:<14}{selecting:>10.4g}{noise:>10.4g}{total:>12.4g}{moved:>10}")
        lines.append(f"features: {self.features}; free if that does not come from the records")
        if self.seeded:
            lines.append("NOT PRIVATE: the noise follows from a seed")
        return "\n".join(lines)


class Mechanism(ABC):
    """Mechanism that makes a party's counts private before they leave it. A frozen record."""

    epsilon: float

    @abstractmethod
    def plan(self, active: int, parties: int) -> HashPlan:
        """The parameters of one party's release.

        Args:
            active: Ones of a hash.
            parties: How many there are.
        """

    @property
    def relation(self) -> Relation:
        """Neighbouring relation for which ``epsilon`` is stated."""
        return "add/remove"

    def ledger(self, active: int, parties: int, *, seeded: bool = False) -> Ledger:
        """Privacy cost of a release.

        Args:
            active: Ones of a hash.
            parties: How many there are.
            seeded: Whether the noise follows from a seed.
        """
        plan, name = self.plan(active, parties), type(self).__name__
        return Ledger(name, self.epsilon, self.relation, plan, active, parties, seeded)

    def finish(self, total: Int64[ndarray, "*shape"]) -> Int64[ndarray, "*shape"]:
        """Counts from the sum of what parties released; free of cost.

        Args:
            total: The sum.
        """
        return np.maximum(total, 0)


@dataclass(frozen=True)
class Paper(Mechanism):
    """The paper's mechanism: T counts selected by exponential weights, then noise on each.

    Every party spends ``epsilon`` over the number of parties. Departs from the paper: a count is
    selected once and not again (peeled), and noise is discrete.

    Args:
        epsilon: The budget as the paper counts it, above 0.
        num_selected: Counts to release, T, at least 1.

    Raises:
        ValueError: If a value is out of range.

    References:
        Ram and Sinha (2022), Algorithm 2, lines 12 to 24, arXiv:2112.07157.
    """

    epsilon: float
    num_selected: int

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)
        check.at_least(1, num_selected=self.num_selected)

    @override
    def plan(self, active: int, parties: int) -> HashPlan:
        return _halves(self.epsilon / parties, self.num_selected)


@dataclass(frozen=True)
class Parallel(Mechanism):
    """The paper's mechanism, where every party spends ``epsilon``: their records are disjoint.

    Args:
        epsilon: The budget of each party, above 0.
        num_selected: Counts to release, T, at least 1.

    Raises:
        ValueError: If a value is out of range.
    """

    epsilon: float
    num_selected: int

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)
        check.at_least(1, num_selected=self.num_selected)

    @override
    def plan(self, active: int, parties: int) -> HashPlan:
        return _halves(self.epsilon, self.num_selected)


def _halves(epsilon: float, num: int) -> HashPlan:
    """Lines 18 and 19 of Algorithm 2."""
    return HashPlan(num, rate=epsilon / (4 * num), scale=2 * num / epsilon)


@dataclass(frozen=True)
class Peel(Mechanism):
    """The paper's mechanism with all of the budget used: what one record can change is counted.

    Half is for the selection and half for noise. A record changes few of the released counts, all
    one way if it is added: neither has to pay for T changes both ways. Its noise is smaller than
    that of :class:`Histogram` where 2 T is below rho, as for the paper's MNIST of 3 and 8.

    Args:
        epsilon: The budget of each party for the relation, above 0.
        num_selected: Counts to release, T, at least 1.
        neighbours: What it holds for: a record more or less, or one replaced.

    Raises:
        ValueError: If a value is out of range.
    """

    epsilon: float
    num_selected: int
    neighbours: Relation = "add/remove"

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)
        check.at_least(1, num_selected=self.num_selected)

    @property
    @override
    def relation(self) -> Relation:
        return self.neighbours

    @override
    def plan(self, active: int, parties: int) -> HashPlan:
        both_ways = 1 if self.neighbours == "add/remove" else 2
        changed = min(self.num_selected, active * both_ways)
        rate = self.epsilon / (2 * both_ways * self.num_selected)
        return HashPlan(self.num_selected, rate, scale=2 * changed / self.epsilon)


@dataclass(frozen=True)
class Histogram(Mechanism):
    r"""Discrete Laplace noise of scale rho / epsilon on all counts: nothing is selected or tuned.

    A record adds one to rho counts, so that the counts of neighbours are rho apart in the sum of
    differences, and 2 rho where a record is replaced.

    Args:
        epsilon: The budget of each party for the relation, above 0.
        neighbours: What it holds for: a record more or less, or one replaced.
        threshold: Sums up to it count as zero, at least 0; of use with a decay of 0.

    Raises:
        ValueError: If a value is out of range.

    References:
        Dwork et al. (2006), Calibrating noise to sensitivity, Proposition 1.
    """

    epsilon: float
    neighbours: Relation = "add/remove"
    threshold: int = 0

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)
        check.at_least(0, threshold=self.threshold)

    @property
    @override
    def relation(self) -> Relation:
        return self.neighbours

    @override
    def plan(self, active: int, parties: int) -> HashPlan:
        changed = active if self.neighbours == "add/remove" else 2 * active
        return HashPlan(None, rate=0.0, scale=changed / self.epsilon)

    @override
    def finish(self, total: Int64[ndarray, "*shape"]) -> Int64[ndarray, "*shape"]:
        return np.where(total > self.threshold, total, 0)


def release(
    counts: Int64[ndarray, "*shape"], plan: HashPlan, noise: Noise
) -> Int64[ndarray, "*shape"]:
    """The private counts of one party.

    Args:
        counts: Of every class and place.
        plan: Of a mechanism.
        noise: Where draws come from.
    """
    flat = counts.ravel()
    if plan.num_selected is None:
        return (flat + noise.laplace(plan.scale, flat.size)).reshape(counts.shape)
    chosen = select(flat, plan.rate, plan.num_selected, noise)
    found = np.zeros_like(flat)
    found[chosen] = np.maximum(flat[chosen] + noise.laplace(plan.scale, len(chosen)), 0)
    return found.reshape(counts.shape)


def select(
    counts: Int64[ndarray, " size"], rate: float, num: int, noise: Noise
) -> Int64[ndarray, " num"]:
    """Places of ``num`` counts, one after another by exponential weights, in no order.

    All Gumbel noise is drawn at once and the largest sums are taken, which is the same. It is in
    floating point: the ledger of a selection holds for real numbers.

    Args:
        counts: In one line.
        rate: One count more makes a place exp(rate) times as likely.
        num: How many; at most all.
        noise: Where draws come from.
    """
    num = min(num, counts.size)
    keys = rate * counts + noise.gumbel(counts.size)
    return np.argpartition(keys, counts.size - num)[counts.size - num :]


def is_hopeless(epsilon: float, num_records: int, num_counts: int) -> bool:
    """True if noise drowns the counts: n epsilon is below m L.

    The mean count is n rho / (m L), and noise has scale rho / epsilon.

    Args:
        epsilon: Of the mechanism.
        num_records: n, of all parties.
        num_counts: m L.

    Example:
        >>> is_hopeless(1.0, 60_000, 1_701_280), is_hopeless(1.0, 10_000, 600)
        (True, False)
    """
    return num_records * epsilon < num_counts
