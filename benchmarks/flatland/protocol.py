"""Scores as reported in the literature: model selection on validation, means over clients."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedbolic.core.rows import Row

LOCAL = "local/"
"""Prefix of the scores of locally trained models, before aggregation."""

LATE = 0.9
"""Fraction of the rounds after which a best round suggests that the scores were still rising."""


@dataclass(frozen=True)
class Chosen:
    """Test scores of the round with the best validation score, by default the accuracy.

    Args:
        round: First round with the best mean validation accuracy over clients.
        mean: Unweighted mean over clients that have test nodes.
        weighted: Mean over clients weighted by test examples; the accuracy over all of them.
        worst: Score of the worst client.
        rising: True if the round is so late that more rounds might have scored higher.
        validation: Unweighted mean of the validation score over clients; NaN if the round was
            not chosen on validation.
    """

    round: int
    mean: float
    weighted: float
    worst: float
    rising: bool
    validation: float = math.nan


def choose(rows: Sequence[Row], *, of: str = LOCAL, score: str = "accuracy") -> Chosen | None:
    """Scores of a run at the round chosen on validation; ``None`` if no round is complete.

    Only rounds in which all clients have scores are compared, because means over different clients
    are not comparable. Departs from FED-PUB's code: a client without test nodes is left out instead
    of counting as fully correct.

    References:
        Baek et al. (2023), Sec. 5.1, arXiv:2206.10206.

    Example:
        >>> rows = [Row(1, 0, "validation/accuracy", 0.5), Row(1, 0, "test/accuracy", 0.4),
        ...         Row(1, 0, "test/examples", 10.0)]
        >>> choose(rows, of="").mean
        0.4
    """
    scores = _by_name(rows)
    validation = scores.get(f"{of}validation/{score}", {})
    test, sizes = (scores.get(f"{of}test/{name}", {}) for name in (score, "examples"))
    whole = set.intersection(*(_whole(of_round) for of_round in (validation, test)))
    if not whole:
        return None
    best = max(whole, key=lambda r: (statistics.fmean(validation[r].values()), -r))
    late = best > LATE * max(row.round for row in rows) and len(whole) > 1
    scored = _over_clients(best, test[best], sizes[best], rising=late)
    return replace(scored, validation=statistics.fmean(validation[best].values()))


def tuned(rows: Sequence[Row]) -> Chosen | None:
    """Scores after fine-tuning in the last round that has them; ``None`` without such scores.

    For the majority baseline, fine-tuning predicts each client's most frequent training class.
    """
    scores = _by_name(rows)
    if "fine_tuned/accuracy" not in scores:
        return None
    last = max(scores["fine_tuned/accuracy"])
    found, sizes = (scores[f"fine_tuned/{name}"][last] for name in ("accuracy", "examples"))
    return _over_clients(last, found, sizes, rising=False)


def _whole(scores: dict[int, dict[int, float]]) -> set[int]:
    """Rounds that have a score of every client that was ever scored."""
    everyone = {client for of_round in scores.values() for client in of_round}
    return {r for r, of_round in scores.items() if of_round.keys() == everyone}


def _by_name(rows: Sequence[Row]) -> dict[str, dict[int, dict[int, float]]]:
    """Measurements of clients by name, round and client."""
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
        weighted=sum(sizes[i] * found[i] for i in found) / sum(sizes[i] for i in found),
        worst=min(found.values()),
        rising=rising,
    )
