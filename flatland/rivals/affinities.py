"""Affinities between clients, and the minimum cut that splits a cluster of them in two."""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize
from typing_extensions import override

from fedbolic.core import check


class ClientAffinity(ABC):
    """Non-negative affinity of every two clients of a cluster; a cut separates the least alike."""

    window: int = 0
    """Number of gradient norms that each client must have sent; 0 if none are needed."""

    @abstractmethod
    def matrix(
        self, updates: Float[Tensor, "clients numbers"], norms: Float[Tensor, "clients rounds"]
    ) -> Float[Tensor, "clients clients"]:
        """Symmetric matrix of affinities, at least 0; its diagonal is not used.

        Args:
            updates: Change of the shared parameters of every client in this round, one row each.
            norms: Norms of the gradients of every client in the last :attr:`window` rounds.
        """


@dataclass(frozen=True)
class UpdateCosines(ClientAffinity):
    r"""Cosine similarity of updates, 0 where it is negative.

    .. math:: \alpha_{ij} = \max \Bigl( 0, \frac{\langle \Delta_i, \Delta_j \rangle}
        {\| \Delta_i \| \| \Delta_j \|} \Bigr)

    A minimum cut is not defined for negative cosines. The authors of GCFL add 1 instead
    (:class:`ShiftedCosines`). With 0, clients of opposite directions add nothing to a cut, and a
    cut between two groups of them costs less than one around a single client.

    Example:
        >>> UpdateCosines().matrix(torch.eye(2), torch.zeros(2, 0)).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """

    @override
    def matrix(
        self, updates: Float[Tensor, "clients numbers"], norms: Float[Tensor, "clients rounds"]
    ) -> Float[Tensor, "clients clients"]:
        return _cosines(updates).clamp(min=0)


@dataclass(frozen=True)
class ShiftedCosines(ClientAffinity):
    r"""Cosine similarity of updates plus 1, as in the authors' code of GCFL.

    .. math:: \alpha_{ij} = 1 + \frac{\langle \Delta_i, \Delta_j \rangle}
        {\| \Delta_i \| \| \Delta_j \|}

    A cut pays for every pair that it separates, unless the two updates are opposite, and one client
    has the fewest pairs. So groups are found only if they are far apart: with cosines of 0.5 within
    and -0.5 between two groups of four, a cut between them weighs 16 * 0.5 = 8, and one around a
    single client 3 * 1.5 + 4 * 0.5 = 6.5.

    References:
        Xie et al. (2021), arXiv:2106.13423, and its authors' code.

    Example:
        >>> groups = torch.kron(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), torch.ones(4, 4)) / 2
        >>> updates = torch.linalg.cholesky(groups + torch.eye(8) / 2)  # cosines of 0.5 and -0.5
        >>> for affinity in (ShiftedCosines(), UpdateCosines()):
        ...     print(sorted(map(len, minimum_cut(affinity.matrix(updates, torch.zeros(8, 0))))))
        [1, 7]
        [4, 4]
    """

    @override
    def matrix(
        self, updates: Float[Tensor, "clients numbers"], norms: Float[Tensor, "clients rounds"]
    ) -> Float[Tensor, "clients clients"]:
        return (1 + _cosines(updates)).clamp(min=0)  # rounding may leave -1e-16


def _cosines(updates: Float[Tensor, "clients numbers"]) -> Float[Tensor, "clients clients"]:
    directions = normalize(updates, dim=1)
    return directions @ directions.T


@dataclass(frozen=True)
class GradientNorms(ClientAffinity):
    r"""Largest distance minus the distance between two sequences of gradient norms, as in GCFL+.

    .. math:: \alpha_{ij} = \max_{kl} d_{kl} - d_{ij}

    with d the distance of dynamic time warping, which does not compare the sequences round by round
    but along their best alignment.

    Args:
        window: Number of rounds d that a sequence covers, at least 2.
        standardised: Whether to divide each sequence by its standard deviation, so that the
            trends are compared and not the sizes.

    Raises:
        ValueError: If ``window`` is below 2.

    References:
        Xie et al. (2021), arXiv:2106.13423.

    Example:
        >>> norms = torch.tensor([[1.0, 1.0, 2.0], [1.0, 2.0, 2.0], [5.0, 5.0, 5.0]])
        >>> GradientNorms(3, standardised=False).matrix(torch.zeros(3, 1), norms)[0, 1] > 6
        tensor(True)
    """

    window: int = 10
    standardised: bool = True

    def __post_init__(self) -> None:
        check.at_least(2, window=self.window)

    @override
    def matrix(
        self, updates: Float[Tensor, "clients numbers"], norms: Float[Tensor, "clients rounds"]
    ) -> Float[Tensor, "clients clients"]:
        if self.standardised:
            deviation = norms.std(dim=1, correction=0, keepdim=True)
            norms = norms / torch.where(deviation > 0, deviation, 1.0)
        rows = norms.tolist()
        distances = [[dtw_distance(a, b) for b in rows] for a in rows]
        found = torch.tensor(distances, dtype=torch.float64)
        return found.max() - found


def dtw_distance(first: Sequence[float], second: Sequence[float]) -> float:
    r"""Distance of two sequences by dynamic time warping.

    .. math:: d(a, b) = \min_{\text{paths } p} \Bigl( \sum_{(i, j) \in p} (a_i - b_j)^2
        \Bigr)^{1/2}

    over all paths from the first to the last pair of positions whose steps advance one position or
    both by one.

    Args:
        first: Sequence a, not empty.
        second: Sequence b, not empty; its length may differ.

    Raises:
        ValueError: If a sequence is empty.

    References:
        Sakoe and Chiba (1978), IEEE Transactions on Acoustics, Speech and Signal Processing 26.

    Example:
        >>> dtw_distance([0.0, 1.0, 1.0], [0.0, 0.0, 1.0]), dtw_distance([0.0], [3.0, 4.0])
        (0.0, 5.0)
    """
    if not first or not second:
        raise ValueError(f"sequences need values, got {len(first)} and {len(second)} of them")
    costs = [0.0] + [math.inf] * len(second)
    for a in first:
        above, costs = costs, [math.inf]
        for j, b in enumerate(second):
            costs.append((a - b) ** 2 + min(above[j], above[j + 1], costs[j]))
    return math.sqrt(costs[-1])


def minimum_cut(weights: Float[Tensor, "n n"]) -> tuple[list[int], list[int]]:
    """Bipartition of a weighted complete graph with the least weight between its sides.

    Stoer and Wagner's algorithm: in each phase, nodes are ordered so that the next one always has
    the largest weight to those before it; the last one against all others is the best cut that
    separates the last two, which are then merged.

    Args:
        weights: Symmetric weights of the edges, at least 0; the diagonal is not used.

    Returns:
        Numbers of the nodes of both sides, ascending; node 0 is on the first side.

    Raises:
        ValueError: If there are fewer than two nodes, or a weight is negative.

    References:
        Stoer and Wagner (1997), Journal of the ACM 44.

    Example:
        >>> near = torch.tensor([[0.0, 9.0, 1.0], [9.0, 0.0, 2.0], [1.0, 2.0, 0.0]])
        >>> minimum_cut(near)
        ([0, 1], [2])
    """
    n = len(weights)
    if n < 2:
        raise ValueError(f"a cut needs at least two nodes, got {n}")
    if bool((weights < 0).any()):
        raise ValueError(f"a minimum cut needs weights of at least 0, got {float(weights.min())}")
    between = weights.double().tolist()
    groups = {i: [i] for i in range(n)}
    least, side = math.inf, [0]
    while len(groups) > 1:
        before, last, weight = _last_two(between, list(groups))
        if weight < least:
            least, side = weight, groups[last]
        for i in groups:
            between[before][i] += between[last][i]
            between[i][before] = between[before][i]
        groups[before] = groups[before] + groups.pop(last)
    other = [i for i in range(n) if i not in side]
    first, second = (sorted(side), other) if 0 in side else (other, sorted(side))
    return first, second


def _last_two(between: list[list[float]], nodes: list[int]) -> tuple[int, int, float]:
    """Last two nodes of a maximum adjacency order, and the weight from the last to all others."""
    order, reached = [nodes[0]], {i: between[nodes[0]][i] for i in nodes[1:]}
    weight = 0.0
    for _ in itertools.repeat(None, len(nodes) - 1):
        nearest = max(reached, key=lambda i: reached[i])
        weight = reached.pop(nearest)
        order.append(nearest)
        for i in reached:
            reached[i] += between[nearest][i]
    return order[-2], order[-1], weight
