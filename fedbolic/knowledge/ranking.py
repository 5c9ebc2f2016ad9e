"""Filtered ranking of entities: mean reciprocal rank and hits."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from fedbolic.data.knowledge.triple_split import TripleSplit

HITS = (1, 3, 10)
"""Ranks up to which a hit is counted."""

TailScores: TypeAlias = Callable[
    [Int64[Tensor, " rows"], Int64[Tensor, " rows"]], Float[Tensor, "rows entities"]
]
"""Function of heads and relations that gives the scores of all entities as their tails."""


def tail_ranks(
    scores: TailScores, split: TripleSplit, *, chunk: int = 256
) -> Float64[Tensor, " twice"]:
    r"""Filtered ranks of the tails of all triples, then those of their heads.

    .. math:: 1 + |\{e \notin K : s_e > s_t\}| + \tfrac 1 2 |\{e \notin K : s_e = s_t\}|

    for the score :math:`s_t` of the true entity t and the set K of the entities that are known to
    be true for the query. So a tie has its expected rank, and equal scores gain nothing. A head is
    ranked as the tail of the inverse relation.

    Args:
        scores: Scores of tails, for relations and their inverses as in
            :attr:`~fedbolic.data.knowledge.triple_split.TripleSplit.tail_keys`.
        split: Triples to rank, and those that are known to be true.
        chunk: Queries at a time, at least 1.

    Raises:
        ValueError: If a score is NaN.

    References:
        Bordes et al. (2013), Sec. 4.2, NeurIPS 26, for filters; Berrendorf et al. (2020),
        arXiv:2002.06914, for ties.

    Example:
        >>> none = torch.empty(0, 3, dtype=torch.int64)
        >>> split = TripleSplit(("a", "b", "c"), ("r",), torch.tensor([[0, 0, 1]]), none)
        >>> tail_ranks(lambda heads, relations: torch.tensor([[3.0, 2.0, 2.0]] * 2), split)
        tensor([2.5000, 1.0000], dtype=torch.float64)
    """
    n, m = len(split.entities), len(split.relations)
    heads, relations, tails = split.triples.T
    queries = torch.stack((torch.cat((heads, tails)), torch.cat((relations, relations + m))), 1)
    answers, keys = torch.cat((tails, heads)), split.tail_keys
    ranks = []
    for some, right in zip(queries.split(chunk), answers.split(chunk), strict=True):
        with torch.no_grad():
            found = scores(some[:, 0], some[:, 1])
        if bool(found.isnan().any()):
            raise ValueError("scores must not be NaN: the tables may have diverged in training")
        own = found.gather(1, right.unsqueeze(1))
        rows, known = _known(keys, (some[:, 1] * n + some[:, 0]) * n, n)
        above, equal = found > own, found == own
        above[rows, known] = equal[rows, known] = False
        ranks.append(1 + above.sum(1) + equal.sum(1) / 2)
    return torch.cat(ranks).double() if ranks else torch.empty(0, dtype=torch.float64)


def _known(
    keys: Int64[Tensor, " keys"], first: Int64[Tensor, " rows"], n: int
) -> tuple[Int64[Tensor, " known"], Int64[Tensor, " known"]]:
    """Pairs of a query and an entity that is known to be true for it.

    Args:
        keys: Keys of all known triples, ascending, so that those of a query are neighbours.
        first: Key of every query with entity 0.
        n: Number of entities.
    """
    starts, ends = torch.searchsorted(keys, first), torch.searchsorted(keys, first + n)
    counts = ends - starts
    rows = torch.arange(len(first), device=keys.device).repeat_interleave(counts)
    shift = (starts - (counts.cumsum(0) - counts)).repeat_interleave(counts)
    return rows, keys[torch.arange(len(rows), device=keys.device) + shift] % n


def tail_rank_scores(scores: TailScores, split: TripleSplit) -> dict[str, float]:
    """Mean reciprocal rank and hits, by name; empty without triples.

    Args:
        scores: As for :func:`tail_ranks`.
        split: Likewise.
    """
    if not len(split):
        return {}
    ranks = tail_ranks(scores, split)
    hits = {f"hits_at_{k}": float((ranks <= k).double().mean()) for k in HITS}
    return {"mrr": float((1 / ranks).mean()), **hits, "examples": float(len(split))}
