"""Scores of distances between nodes: mean rank and MAP of ancestors among all nodes."""

from collections.abc import Callable
from functools import partial

import numpy as np
import scipy
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.data import HOLDOUT, Client, HierarchySplit
from fedbolic.nn.loss.ranking import RankingScores, RowDistances, rank_and_map

GROUPS = 20
"""Most groups of drawn nodes, whose spread gives the error of an estimate."""


def check_sample(sample: int | None) -> None:
    """Refuse a sample whose error cannot be estimated.

    Raises:
        ValueError: If the sample has fewer than 2 nodes.
    """
    if sample is not None:
        check.at_least(2, sample=sample)


def score_distances(
    distances: Callable[[Tensor], RowDistances],
    client: Client,
    *,
    rng: Rng,
    sample: int | None = None,
) -> dict[str, float]:
    """Scores of distances between all nodes, on what a client or the server holds.

    ``test/own/...`` are the scores of a client's own pairs among the nodes in them, and
    ``test/...`` those of all pairs among all nodes at the server. ``test/inferred/...`` are those
    of the pairs that no client holds, where pairs that a client holds are not ranked against.

    Args:
        distances: Function of some nodes that gives their distances among each other.
        client: A client, or the server's test set.
        rng: Source of the sample.
        sample: Nodes whose ancestors are ranked, at least 2; ``None`` for all.

    Returns:
        The scores of :func:`ranking_scores` under these names, with errors at the server alone.
    """
    ranked = partial(ranking_scores, rng=rng, sample=sample)
    if client.id != HOLDOUT:
        nodes, pairs = client.split_of(HierarchySplit).hierarchy.pairs.unique(return_inverse=True)
        scores = ranked(distances(nodes), pairs, len(nodes))
        # the mean of these errors over clients would not be that of the mean
        return _under("test/own", {n: x for n, x in scores.items() if not n.endswith("_error")})
    test, num_nodes = client.split_of(HierarchySplit, "test"), client.meta.num_classes
    pairs = test.hierarchy.pairs
    among = distances(torch.arange(num_nodes, device=pairs.device))
    scores = _under("test", ranked(among, pairs, num_nodes))
    if test.held is not None and not bool(test.held.all()):
        known, asked = pairs[test.held], pairs[~test.held]
        scores |= _under("test/inferred", ranked(among, asked, num_nodes, known=known))
    return scores


def ranking_scores(
    distances: RowDistances,
    pairs: Int64[Tensor, "m 2"],
    num_nodes: int,
    *,
    known: Int64[Tensor, "k 2"] | None = None,
    rng: Rng,
    sample: int | None = None,
) -> dict[str, float]:
    """Scores of :func:`~fedbolic.nn.rank_and_map` by name, or estimates of them from a sample.

    A drawn node is ranked against all nodes. Half the length of the 95 % interval of an estimate is
    its error. It is too small for small samples of scores most of which are alike.

    Args:
        distances: Distances of some nodes to all nodes.
        pairs: Nodes and their ancestors.
        num_nodes: Number of all nodes.
        known: Further pairs, which are not ranked and not ranked against.
        rng: Source of the draws.
        sample: Nodes to draw, at least 2; ``None`` for all that have an ancestor.

    Returns:
        ``map``, ``mean_rank`` and ``examples``, the number of ranked pairs; empty without pairs.
        With a sample from more nodes, all under ``sampled/``, with ``map_error`` and
        ``mean_rank_error``.
    """
    if not len(pairs):
        return {}
    nodes = pairs[:, 0].unique()
    if sample is None or sample >= len(nodes):
        exact = rank_and_map(distances, pairs, num_nodes=num_nodes, known=known)
        scores = {"map": exact.mean_average_precision, "mean_rank": exact.mean_rank}
        return {**scores, "examples": float(len(pairs))}
    order = torch.randperm(len(nodes), generator=rng.at("sample").generator())[:sample]
    drawn = nodes[order.to(nodes.device)]
    rank = partial(rank_and_map, distances, num_nodes=num_nodes)
    return _under("sampled", _estimates(rank, pairs, known, drawn, 1 - sample / len(nodes)))


def _estimates(
    rank: Callable[..., RankingScores],
    pairs: Tensor,
    known: Tensor | None,
    drawn: Tensor,
    left: float,
) -> dict[str, float]:
    r"""Scores of the drawn nodes, with errors.

    .. math:: \hat R = \frac{\sum_g t_g}{\sum_g n_g}, \qquad \operatorname{error}(\hat R)
        = t_{0.975, G - 1} \sqrt{\Bigl(1 - \frac nN\Bigr) \frac{G}{G - 1}
        \frac{\sum_g (t_g - \hat R n_g)^2}{(\sum_g n_g)^2}}

    over :math:`G` groups of the :math:`n` drawn ones of :math:`N` nodes that have an ancestor:
    :math:`t_g` is the sum of a group's average precisions or ranks, and :math:`n_g` the number of
    its nodes or pairs.

    References:
        Cochran (1977), Sampling Techniques, Sec. 2.11 and Ch. 6, for ratios of sampled totals.
    """
    pairs = pairs[torch.isin(pairs[:, 0], drawn)]
    known = None if known is None else known[torch.isin(known[:, 0], drawn)]
    sums = []
    for group in drawn.tensor_split(min(GROUPS, len(drawn))):
        own = pairs[torch.isin(pairs[:, 0], group)]
        found = rank(own, known=known)
        precision, ranks = found.mean_average_precision * len(group), found.mean_rank * len(own)
        sums.append((precision, len(group), ranks, len(own)))
    precisions, sizes, ranks, numbers = np.array(sums, dtype=float).T
    scores = _ratio("map", precisions, sizes, left) | _ratio("mean_rank", ranks, numbers, left)
    return {**scores, "examples": float(numbers.sum())}


def _ratio(name: str, t: NDArray, n: NDArray, left: float) -> dict[str, float]:
    """A ratio of sums over groups and its error, where a share of all nodes is left undrawn."""
    ratio, groups = t.sum() / n.sum(), len(t)
    width = scipy.special.stdtrit(groups - 1, 0.975) * (groups * left) ** 0.5
    error = width * np.std(t - ratio * n, ddof=1) / n.sum()
    return {name: float(ratio), f"{name}_error": float(error)}


def _under(name: str, scores: dict[str, float]) -> dict[str, float]:
    return {f"{name}/{score}": value for score, value in scores.items()}
