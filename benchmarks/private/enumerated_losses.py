"""Exact privacy loss of a mechanism on toy counts, by enumeration of all outcomes."""

import itertools
import math
from collections.abc import Iterator, Sequence

from fedbolic.federated.accounting.ledger import Neighbours
from flynn.private import HashPlan

Counts = tuple[int, ...]


def neighbours(counts: Sequence[Counts], active: int, relation: Neighbours) -> Iterator[Counts]:
    """Flattened counts of all classes, after each possible change of one record."""
    dim, line = len(counts[0]), tuple(itertools.chain(*counts))
    records = [
        {label * dim + place for place in places}
        for label in range(len(counts))
        for places in itertools.combinations(range(dim), active)
    ]
    more = [tuple(c + (i in record) for i, c in enumerate(line)) for record in records]
    if relation == "add/remove":
        yield from more
        return
    for record in records:
        less = tuple(c - (i in record) for i, c in enumerate(line))
        if min(less) >= 0:
            for other in records:
                yield tuple(c + (i in other) for i, c in enumerate(less))


def worst_loss(
    counts: Sequence[Counts], plan: HashPlan, active: int, relation: Neighbours
) -> tuple[float, float, float]:
    """Largest absolute log ratio of probabilities: of the selection, of the noise, and of both.

    The selection is enumerated over all orders and all neighbours. If a selected count differs by
    k, the probability ratio of its noise is at most exp(k / scale), and this bound is attained.
    """
    line = tuple(itertools.chain(*counts))
    num = len(line) if plan.num_selected is None else min(plan.num_selected, len(line))
    worst = [0.0, 0.0, 0.0]
    for other in neighbours(counts, active, relation):
        gap = [abs(a - b) / plan.scale for a, b in zip(line, other, strict=True)]
        if plan.num_selected is None:
            worst = [0.0, max(worst[1], sum(gap)), max(worst[2], sum(gap))]
            continue
        for order in itertools.permutations(range(len(line)), num):
            selecting = abs(
                log_probability(line, order, plan.rate) - log_probability(other, order, plan.rate)
            )
            noise = sum(gap[i] for i in order)
            losses = selecting, noise, selecting + noise
            worst = [max(a, b) for a, b in zip(worst, losses, strict=True)]
    return worst[0], worst[1], worst[2]


def log_probability(counts: Counts, order: Sequence[int], rate: float) -> float:
    """Log-probability of a sequence of selections by exponential weights, without replacement."""
    left, total = set(range(len(counts))), 0.0
    for place in order:
        weights = math.fsum(math.exp(rate * counts[i]) for i in left)
        total += rate * counts[place] - math.log(weights)
        left.remove(place)
    return total
