"""Scores as the papers of this field report them: chosen on validation, over clients and splits."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbolic import check
from fedbolic.record import Row
from fedbolic.rng import Rng

LOCAL = "local/"
"""Before the names of scores of the models as clients trained them, ahead of the server's mean."""

LATE = 0.9
"""A run whose best round lies beyond this share of its rounds may still be rising."""


@dataclass(frozen=True)
class Chosen:
    """Test accuracies of the round with the best validation accuracy.

    Args:
        round: The first with the best mean over clients.
        mean: Over clients that have test nodes, all counting the same.
        weighted: Over all test nodes.
        worst: Of the worst client.
        rising: Whether the round is so late that more rounds might have given more.
    """

    round: int
    mean: float
    weighted: float
    worst: float
    rising: bool


def choose(rows: Sequence[Row], *, of: str = LOCAL) -> Chosen | None:
    """The scores of a run at the round chosen on validation; ``None`` if no round has all of them.

    Departs from FED-PUB's code: a client without test nodes is left out, not counted as right.
    Rounds are compared in which all clients have scores, as means over different ones do not
    compare.

    Args:
        rows: All that the run measured.
        of: :data:`LOCAL` for the clients' own models, empty for what the server sent them.

    References:
        Baek et al. (2023), Sec. 5.1, arXiv:2206.10206.

    Example:
        >>> rows = [Row(1, 0, "validation/accuracy", 0.5), Row(1, 0, "test/accuracy", 0.4),
        ...         Row(1, 0, "test/examples", 10.0)]
        >>> choose(rows, of="").mean
        0.4
    """
    scores = _by_name(rows)
    validation = scores.get(f"{of}validation/accuracy", {})
    test, sizes = (scores.get(f"{of}test/{name}", {}) for name in ("accuracy", "examples"))
    whole = set.intersection(*(_whole(of_round) for of_round in (validation, test)))
    if not whole:
        return None
    best = max(whole, key=lambda r: (statistics.fmean(validation[r].values()), -r))
    late = best > LATE * max(row.round for row in rows) and len(whole) > 1
    return _over_clients(best, test[best], sizes[best], rising=late)


def tuned(rows: Sequence[Row]) -> Chosen | None:
    """Scores after fine-tuning, for which no round is chosen; ``None`` if there are none.

    Of the majority baseline it is each client's own commonest training class.

    Args:
        rows: All that the run measured.
    """
    scores = _by_name(rows)
    if "fine_tuned/accuracy" not in scores:
        return None
    last = max(scores["fine_tuned/accuracy"])
    found, sizes = (scores[f"fine_tuned/{name}"][last] for name in ("accuracy", "examples"))
    return _over_clients(last, found, sizes, rising=False)


def _whole(scores: dict[int, dict[int, float]]) -> set[int]:
    """The rounds in which every client that was ever scored was."""
    everyone = {client for of_round in scores.values() for client in of_round}
    return {r for r, of_round in scores.items() if of_round.keys() == everyone}


def _by_name(rows: Sequence[Row]) -> dict[str, dict[int, dict[int, float]]]:
    """Clients' numbers by name, round and client."""
    scores: dict[str, dict[int, dict[int, float]]] = {}
    for row in rows:
        if row.client is not None:
            scores.setdefault(row.name, {}).setdefault(row.round, {})[row.client] = row.value
    return scores


def _over_clients(
    round: int, found: dict[int, float], sizes: dict[int, float], *, rising: bool
) -> Chosen:
    return Chosen(
        round=round,
        mean=statistics.fmean(found.values()),
        weighted=sum(sizes[i] * found[i] for i in found) / sum(sizes.values()),
        worst=min(found.values()),
        rising=rising,
    )


@dataclass(frozen=True)
class Difference:
    """A mean difference over splits, and the interval that holds it.

    Args:
        mean: Of the differences.
        low: Where the interval begins.
        high: Where it ends.
    """

    mean: float
    low: float
    high: float


def paired(
    ours: Sequence[float], theirs: Sequence[float], *, level: float = 0.95, rng: Rng | None = None
) -> Difference:
    """Difference between two methods on the same splits.

    The interval is the percentile bootstrap over splits; of few splits it is too narrow, and of one
    split it has no width.

    Args:
        ours: By split.
        theirs: By the same splits.
        level: Of the interval, in (0, 1).
        rng: The stream of the bootstrap.

    Raises:
        ValueError: If there is no split, or the numbers of splits differ.

    References:
        Efron and Tibshirani (1993), Sec. 13.3.

    Example:
        >>> paired([2.0, 3.0], [1.0, 2.0])
        Difference(mean=1.0, low=1.0, high=1.0)
    """
    check.rate(below_one=True, level=level)
    if len(ours) != len(theirs) or not len(ours):
        raise ValueError(
            f"differences need the same splits, at least one, got {len(ours)} and {len(theirs)}"
        )
    gaps = np.subtract(ours, theirs)
    draws = (rng or Rng()).at("bootstrap").numpy().integers(len(gaps), size=(10_000, len(gaps)))
    low, high = np.quantile(gaps[draws].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return Difference(float(gaps.mean()), float(low), float(high))
