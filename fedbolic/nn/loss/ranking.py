"""Mean rank and mean average precision of related nodes among all nodes, by distance."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedbolic.core import check
from fedbolic.core.pair_keys import pair_keys

RowDistances: TypeAlias = Callable[[Int[Tensor, " rows"]], Float[Tensor, "rows n"]]
"""Function of nodes that gives their distances to all nodes, one row per node."""


@dataclass(frozen=True)
class RankingScores:
    r"""Mean rank and mean average precision (MAP) of related nodes by distance.

    .. math::
        \mathrm{rank}(u, v) &= 1 + |\{w \notin R_u : d(u, w) \le d(u, v)\}| \\
        \mathrm{AP}(u) &= \frac{1}{|R_u|} \sum_{v \in R_u} \frac
            {|\{w \in R_u : d(u, w) \le d(u, v)\}|} {|\{w : d(u, w) \le d(u, v)\}|}

    where :math:`R_u` holds the nodes related to :math:`u`, and :math:`w` is any node but :math:`u`.

    Ties count against the related node: an unrelated node at the same distance precedes it. Points
    that collapse into one then have the worst rank, where the expected rank among ties would be
    that of random points, and the scores depend on no sorting order. The average precision has the
    ties of ``sklearn.metrics.average_precision_score``.

    Args:
        mean_rank: Mean rank over all pairs; 1 if related nodes are nearer than all others.
        mean_average_precision: Mean of AP over the nodes with a related node, in (0, 1].
    """

    mean_rank: float
    mean_average_precision: float


def rank_and_map(
    distances: RowDistances,
    pairs: Int[Tensor, "pairs 2"],
    *,
    num_nodes: int,
    known: Int[Tensor, "known 2"] | None = None,
    chunk: int = 128,
) -> RankingScores:
    """Rank the related nodes of every node among all nodes, by distance.

    Args:
        distances: Distances of some nodes to all nodes, of shape ``(rows, num_nodes)``. It is
            called without gradients, with nodes on the device of ``pairs``.
        pairs: Nodes ``u`` and related nodes ``v``; repetitions count once.
        num_nodes: Number of all nodes.
        known: Further related pairs, which are not ranked and not ranked against, such as those of
            training when ``pairs`` are held out (the *filtered* setting).
        chunk: Number of rows at a time; memory is a small multiple of ``chunk * num_nodes``.

    Raises:
        ValueError: If there are no pairs, a node is paired with itself or is out of range, or the
            distances have another shape, integers or NaN.

    References:
        Nickel and Kiela (2017), Sec. 4.1, arXiv:1705.08039.

    Example:
        >>> x = torch.tensor([0.0, 1.0, 2.0, 4.0])
        >>> pairs = torch.tensor([[0, 1], [0, 3]])  # of node 0 the nearest and the farthest
        >>> rank_and_map(lambda rows: (x[rows, None] - x).abs(), pairs, num_nodes=4)
        RankingScores(mean_rank=1.5, mean_average_precision=0.8333333333333333)
    """
    check.at_least(1, chunk=chunk)
    keys = _keys(pairs, num_nodes)
    if not len(keys):
        raise ValueError("pairs must hold at least one pair to rank, got none")
    known_keys = keys[:0] if known is None else _keys(known, num_nodes).to(keys.device)
    others = torch.cat((keys, known_keys)).sort().values
    nodes = torch.unique_consecutive(keys // num_nodes)
    totals = torch.zeros(2, dtype=torch.float64, device=keys.device)
    for rows in nodes.split(chunk):
        with torch.no_grad():
            d = _checked(distances(rows), rows, num_nodes)
        related, excluded = (_pairs_of(rows, k, num_nodes) for k in (keys, others))
        totals += _row_sums(d, rows, related, excluded)
    rank, precision = totals.tolist()
    return RankingScores(rank / len(keys), precision / len(nodes))


def _keys(pairs: Tensor, num_nodes: int) -> Tensor:
    """Keys of pairs, after a check that no node is paired with itself."""
    keys = pair_keys(pairs, num_nodes=num_nodes)
    loops = keys[keys // num_nodes == keys % num_nodes]
    if len(loops):
        raise ValueError(
            f"a node is not ranked against itself, got the pair of {int(loops[0]) % num_nodes} "
            "with itself: leave such pairs out"
        )
    return keys


def _checked(d: Tensor, rows: Tensor, num_nodes: int) -> Tensor:
    """Distances after a check of their shape, and that they can be ordered."""
    if d.shape != (len(rows), num_nodes):
        raise ValueError(
            f"distances must return the shape {(len(rows), num_nodes)} for {len(rows)} nodes, got "
            f"{tuple(d.shape)}"
        )
    if not d.is_floating_point():
        raise ValueError(f"distances must be floating point, got {d.dtype}: convert with .double()")
    if bool(d.isnan().any()):
        raise ValueError("distances must not be NaN: the points may have diverged in training")
    return d


def _pairs_of(rows: Tensor, keys: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Positions in ``rows`` and second nodes of the pairs whose first node is in ``rows``."""
    bounds = torch.stack((rows[0], rows[-1] + 1)) * num_nodes
    first, last = torch.searchsorted(keys, bounds).tolist()
    own = keys[first:last]
    at = torch.searchsorted(rows, own // num_nodes).clamp(max=len(rows) - 1)
    is_row = rows[at] == own // num_nodes
    return at[is_row], (own % num_nodes)[is_row]


def _row_sums(
    d: Tensor, rows: Tensor, related: tuple[Tensor, Tensor], excluded: tuple[Tensor, Tensor]
) -> Tensor:
    """Sums over rows of the ranks and of the average precisions.

    Args:
        d: Distances of a chunk of rows to all nodes.
        rows: Node of each row.
        related: Positions of rows, sorted, and nodes to rank.
        excluded: Positions of rows and nodes that are not unrelated.
    """
    at, v = related
    sizes = torch.bincount(at, minlength=len(d))
    most, start = int(sizes.max()), sizes.cumsum(0) - sizes
    # each row's related distances, in order; shorter rows are filled up at their end
    radii = d.new_full((len(d), most), math.inf)
    radii[at, torch.arange(len(at), device=d.device) - start[at]] = d[at, v]
    radii = radii.sort(1).values
    # index of the nearest related node at or beyond each node; ``most`` for nodes left out
    beyond = torch.searchsorted(radii, d.contiguous())
    beyond[excluded] = most
    beyond[torch.arange(len(d), device=d.device), rows] = most
    counts = beyond.new_zeros(len(d), most + 1)
    counts.scatter_add_(1, beyond, beyond.new_ones(()).expand_as(beyond))
    unrelated = counts[:, :most].cumsum(1)
    within = torch.searchsorted(radii, radii, right=True).minimum(sizes.unsqueeze(1))
    real = torch.arange(most, device=d.device) < sizes.unsqueeze(1)
    precision = within.double() / (within + unrelated)
    means = torch.where(real, precision, 0.0).sum(1) / sizes
    return torch.stack((torch.where(real, unrelated + 1, 0).sum().double(), means.sum()))
