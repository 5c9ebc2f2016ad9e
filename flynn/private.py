"""Differentially private counts: mechanisms, their privacy costs, and a ledger of these."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64
from numpy import ndarray
from typing_extensions import override

from fedbolic.core import check
from fedbolic.federated.accounting.costs import PureCost
from fedbolic.federated.accounting.ledger import Neighbours, PrivacyLedger
from flynn.noise import Noise

_STEPS = 2**32
"""Inverse step of rates of exponential weights, which are rounded down to a multiple of it."""


@dataclass(frozen=True)
class HashPlan:
    """Parameters of one party's release.

    Args:
        num_selected: Number of released counts, T; ``None`` for all.
        rate: Rate of the exponential weights: a count of c has weight exp(rate c).
        scale: Scale of the discrete Laplace noise on each released count.
    """

    num_selected: int | None
    rate: float
    scale: float

    def loss(self, active: int, relation: Neighbours) -> tuple[float, float]:
        """Epsilon of the selection and of the noise, for one record of one party.

        An added record increases ``active`` counts of a class by one. A replaced record changes up
        to twice as many, in both directions, so the sum of the selection weights is no longer
        monotonic, which doubles the cost of the selection.

        Args:
            active: Number of ones in a hash, rho.
            relation: Neighbouring relation.
        """
        changed = active if relation == "add/remove" else 2 * active
        if self.num_selected is None:
            return 0.0, changed / self.scale
        both_ways = 1 if relation == "add/remove" else 2
        selecting = both_ways * self.num_selected * self.rate
        return selecting, min(self.num_selected, changed) / self.scale


@dataclass(frozen=True)
class Ledger:
    """Privacy cost of a release, by stage, for both neighbouring relations.

    The parties have disjoint records, so the total cost is the largest cost of any party (parallel
    composition). A record that may move between parties costs the sum of two. The classes, the
    sizes and the scaling of features must not depend on the records, and the number of records of a
    party is assumed to be public.

    Args:
        mechanism: Name of the mechanism.
        claimed: Requested epsilon.
        relation: Neighbouring relation of the request.
        plan: Release parameters.
        active: Number of ones in a hash.
        parties: Number of parties.
        features: Description of the scaling of features before the hash. Scaling has no privacy
            cost if it does not depend on the records, which cannot be checked here.
    """

    mechanism: str
    claimed: float
    relation: Neighbours
    plan: HashPlan
    active: int
    parties: int
    features: str = "as they are"

    def total(self, relation: Neighbours) -> float:
        """Proven epsilon for one record.

        Args:
            relation: Neighbouring relation.
        """
        return sum(self.plan.loss(self.active, relation))

    def of_examples(self, relation: Neighbours) -> PrivacyLedger:
        """The same cost in the ledger of all systems: a pure epsilon of one record of one party.

        Args:
            relation: Neighbouring relation.
        """
        _, noise = self.plan.loss(self.active, "add/remove")
        cost = PureCost(self.total(relation))
        return PrivacyLedger("everyone", relation, 1.0, 1 / noise, 0.0, 1, "example", cost)

    def __str__(self) -> str:
        kept = self.plan.num_selected or "all"
        lines = [
            f"{self.mechanism}: epsilon {self.claimed:g} asked for ({self.relation}), {kept} "
            f"counts, noise scale {self.plan.scale:g}, {self.parties} parties of disjoint records",
            f"{'relation':<14}{'selection':>10}{'noise':>10}{'one record':>12}{'moved':>10}",
        ]
        relations: tuple[Neighbours, ...] = ("add/remove", "replace")
        for relation in relations:
            selecting, noise = self.plan.loss(self.active, relation)
            total = selecting + noise
            moved = f"{2 * self.total('add/remove'):.4g}" if relation == "replace" else ""
            lines.append(f"{relation:<14}{selecting:>10.4g}{noise:>10.4g}{total:>12.4g}{moved:>10}")
        lines.append(str(self.of_examples(self.relation)))
        lines.append(f"features: {self.features}; free if that does not come from the records")
        return "\n".join(lines)


class Mechanism(ABC):
    """Base class of mechanisms that make a party's counts private before they leave the party.

    The budget ``epsilon`` is stated for the relation ``neighbours``.
    """

    epsilon: float
    neighbours: Neighbours = "add/remove"

    @abstractmethod
    def plan(self, active: int, parties: int) -> HashPlan:
        """Parameters of one party's release.

        Args:
            active: Number of ones in a hash.
            parties: Number of parties.
        """

    def ledger(self, active: int, parties: int) -> Ledger:
        """Privacy cost of a release.

        Args:
            active: Number of ones in a hash.
            parties: Number of parties.
        """
        plan, name = self.plan(active, parties), type(self).__name__
        return Ledger(name, self.epsilon, self.neighbours, plan, active, parties)

    def finish(self, total: Int64[ndarray, "*shape"]) -> Int64[ndarray, "*shape"]:
        """Post-process the sum of the released counts, at no privacy cost.

        Args:
            total: Sum of the counts that the parties released.
        """
        return np.maximum(total, 0)


@dataclass(frozen=True)
class Selecting(Mechanism):
    """Base of mechanisms that release some of the counts; its arguments are those of ``Paper``."""

    epsilon: float
    num_selected: int

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)
        check.at_least(1, num_selected=self.num_selected)


@dataclass(frozen=True)
class Paper(Selecting):
    """The paper's mechanism: T counts selected by exponential weights, then noise on each.

    Every party spends ``epsilon`` divided by the number of parties. Departs from the paper: counts
    are selected without replacement (peeling), and the noise is discrete.

    Args:
        epsilon: Privacy budget by the paper's accounting, above 0.
        num_selected: Number of counts to release, T, at least 1.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Ram and Sinha (2022), Algorithm 2, lines 12 to 24, arXiv:2112.07157.
    """

    @override
    def plan(self, active: int, parties: int) -> HashPlan:
        return _halves(self.epsilon / parties, self.num_selected)


@dataclass(frozen=True)
class Parallel(Selecting):
    """The paper's mechanism with the full ``epsilon`` at each party, because records are disjoint.

    Args:
        epsilon: Privacy budget of each party, above 0.
        num_selected: Number of counts to release, T, at least 1.

    Raises:
        ValueError: If a value is outside its range.
    """

    @override
    def plan(self, active: int, parties: int) -> HashPlan:
        return _halves(self.epsilon, self.num_selected)


def _halves(epsilon: float, num: int) -> HashPlan:
    """Release parameters from lines 18 and 19 of Algorithm 2."""
    return HashPlan(num, rate=epsilon / (4 * num), scale=2 * num / epsilon)


@dataclass(frozen=True)
class Peel(Selecting):
    """The paper's mechanism with tight accounting, so that the whole budget is used.

    The budget is split equally between the selection and the noise. One record changes few of the
    released counts, and an added record changes all of them in the same direction, so neither stage
    must pay for T changes in both directions. For ``add/remove``, the noise is smaller than that of
    :class:`Histogram` if 2 T is below rho, as for MNIST 3 versus 8 in the paper.

    Args:
        epsilon: Privacy budget of each party under the relation, above 0.
        num_selected: Number of counts to release, T, at least 1.
        neighbours: Neighbouring relation: one record added or removed, or one replaced.

    Raises:
        ValueError: If a value is outside its range.
    """

    neighbours: Neighbours = "add/remove"

    @override
    def plan(self, active: int, parties: int) -> HashPlan:
        both_ways = 1 if self.neighbours == "add/remove" else 2
        changed = min(self.num_selected, active * both_ways)
        rate = self.epsilon / (2 * both_ways * self.num_selected)
        return HashPlan(self.num_selected, rate, scale=2 * changed / self.epsilon)


@dataclass(frozen=True)
class Histogram(Mechanism):
    r"""Discrete Laplace noise on all counts, without selection.

    One record adds one to rho counts, so the L1 sensitivity is rho, or 2 rho if a record is
    replaced. The scale of the noise is the sensitivity over epsilon.

    Args:
        epsilon: Privacy budget of each party under the relation, above 0.
        neighbours: Neighbouring relation: one record added or removed, or one replaced.
        threshold: Largest sum that is set to zero, at least 0; useful with a decay of 0.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Dwork et al. (2006), Calibrating noise to sensitivity, Proposition 1.
    """

    epsilon: float
    neighbours: Neighbours = "add/remove"
    threshold: int = 0

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)
        check.at_least(0, threshold=self.threshold)

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
    """Private counts of one party.

    Args:
        counts: Counts of each class and position.
        plan: Release parameters of a mechanism.
        noise: Source of random draws.
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
    """Unordered positions of ``num`` counts, selected successively by exponential weights.

    A position is proposed uniformly and kept with probability exp(rate (c - largest c)), both by
    exact integer arithmetic; repeated positions are skipped. The rate is rounded down to a multiple
    of 2 ** -32, which never weakens privacy.

    Args:
        counts: Flattened counts.
        rate: Rate of the exponential weights.
        num: Number of selected counts; all counts if there are fewer.
        noise: Source of random draws.
    """
    draws, step = noise.integers(), math.floor(rate * _STEPS)
    left, found = np.arange(counts.size), np.empty(0, dtype=np.int64)
    while missing := min(num, counts.size) - len(found):
        tried = left[draws.below(len(left), len(left) + num)]
        gaps = counts[left].max() - counts[tried]
        gaps = np.minimum(gaps, 2**62 // max(step, 1))  # more would overflow below
        kept = tried[draws.exponential(gaps * step, _STEPS)]
        _, places = np.unique(kept, return_index=True)  # the first of every position
        fresh = kept[np.sort(places)][:missing]
        left, found = np.setdiff1d(left, fresh), np.concatenate([found, fresh])
    return found


def is_hopeless(epsilon: float, num_records: int, num_counts: int) -> bool:
    """True if the mean count is below the scale of the noise, that is if n epsilon < m L.

    The mean count is n rho / (m L), and the noise has scale rho / epsilon.

    Args:
        epsilon: Privacy budget of the mechanism, above 0.
        num_records: Number of records of all parties, n.
        num_counts: Number of counts, m L.

    Example:
        >>> is_hopeless(1.0, 60_000, 1_701_280), is_hopeless(1.0, 10_000, 600)
        (True, False)
    """
    return num_records * epsilon < num_counts
