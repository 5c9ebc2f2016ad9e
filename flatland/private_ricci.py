"""Curvature of a client's graph as a release with differential privacy of single edges."""

from dataclasses import dataclass

import torch
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.data import Graph
from fedbolic.federated.accounting.charges import charge_releases
from fedbolic.federated.accounting.costs import PureCost
from fedbolic.federated.accounting.ledger import PrivacyLedger
from fedbolic.federated.noise.draws import SystemKeys
from flatland.graphs.ricci import Estimator, forman_inverse

COUNT_SHARE = 0.2
"""Fraction of epsilon for the number of edges, whose sensitivity is far below that of the sum."""


@dataclass(frozen=True)
class PrivateForman(Estimator):
    r"""Curvature of the graph as ``FormanInverse`` has it, from two noisy counts.

    .. math::
        \mathrm{Ric} = 4 - \frac{Q + N_{\mathbb Z}(\Delta_Q / (0.8 \varepsilon))}
            {m + N_{\mathbb Z}(1 / (0.2 \varepsilon))}, \qquad Q = \sum_i d_i^2 - 9 T

    With m edges, degrees :math:`d_i` and T triangles, :math:`4 - Q / m` is the mean augmented
    Forman-Ricci curvature. :math:`N_{\mathbb Z}(b)` is discrete Laplace noise of scale b, drawn by
    exact integer arithmetic, and :math:`\Delta_Q` is :func:`sum_sensitivity`. An edge counts only
    if it is among the first ``max_degree`` edges at both of its ends (:func:`capped`).

    The estimate is differentially private with delta 0 for every single edge of the graph, present
    or not; nodes and their numbering count as public. **Every call is a new release and costs
    epsilon again.** ``FlatLand`` calls it in the first turn of a client and keeps the result in the
    client state; a client that is scored before its first turn has :math:`c = 1`. It then records
    this number as ``released/curvature``, with its cost as ``privacy/curvature_epsilon``, and
    records neither the trained curvature nor the fraction of
    clamped nodes, which no epsilon covers. Deltas, scores and losses are not covered either: they
    have their own protection, such as a ``SecureSum``.

    Args:
        epsilon: Privacy budget of a client's only release, above 0.
        max_degree: Largest number of edges that count at a node, at least 1. A smaller one needs
            less noise, and leaves out more edges.
        noise: Source of the noise's keys.

    Raises:
        ValueError: If a value is out of range.

    References:
        Dwork et al. (2006), Calibrating noise to sensitivity, Proposition 1; Blocki et al. (2013),
        Differentially private data analysis of social networks via restricted sensitivity, Sec. 4,
        for the cap, arXiv:1208.4586.

    Example:
        >>> from fedbolic.data.graphs.graph import simple_edges
        >>> ring = torch.stack((torch.arange(1000), torch.arange(1000).roll(1)))
        >>> graph = Graph(torch.ones(1000, 1), simple_edges(ring, 1000), torch.zeros(1000).long())
        >>> PrivateForman(epsilon=2.0, max_degree=3).counts(graph)  # 1,000 nodes of degree 2
        (4000, 1000)
    """

    epsilon: float = 1.0
    max_degree: int = 8
    noise: SystemKeys = SystemKeys()

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)
        check.at_least(1, max_degree=self.max_degree)

    @property
    def scales(self) -> tuple[float, float]:
        """Scales of the noise of Q and of m."""
        of_sum = sum_sensitivity(self.max_degree) / ((1 - COUNT_SHARE) * self.epsilon)
        return of_sum, 1 / (COUNT_SHARE * self.epsilon)

    @property
    def ledger(self) -> PrivacyLedger:
        """Ledger of the only release of a client."""
        noise = self.scales[0] / sum_sensitivity(self.max_degree)
        cost = PureCost(self.epsilon)
        return PrivacyLedger("everyone", "add/remove", 1.0, noise, 0.0, 1, "edge", cost)

    def counts(self, graph: Graph) -> tuple[int, int]:
        """Q and m of the capped graph, without noise: not to be released.

        Args:
            graph: Graph of a client.
        """
        kept = capped(graph, self.max_degree)
        triangles = int(kept.triangles.sum()) // 6
        return int(kept.degrees.square().sum()) - 9 * triangles, kept.num_edges

    def noisy_counts(self, graph: Graph) -> tuple[int, int]:
        """Q and m of the capped graph with their noise: one release.

        Args:
            graph: Graph of a client.
        """
        charge_releases(self.ledger)
        stream = self.noise.stream(Rng().at("edges", str(graph.edges.tolist())))
        (q, m), (of_sum, of_number) = self.counts(graph), self.scales
        q += int(stream.at("sum").integers().laplace(of_sum, 1)[0])
        return q, m + int(stream.at("number").integers().laplace(of_number, 1)[0])

    @override
    def unbounded(self, graph: Graph) -> float:
        q, m = self.noisy_counts(graph)
        return forman_inverse(4 - q / max(m, 1))


def capped(graph: Graph, max_degree: int) -> Graph:
    """The graph with those edges that are among the first ``max_degree`` at both of their ends.

    The edges at a node are in the order of their other ends. Another edge between the nodes u and v
    takes a place in the orders at u and at v alone, where it displaces at most one edge each. So
    the result changes by this edge and by the loss of one edge at u and of one at v, at most.

    Args:
        graph: A graph.
        max_degree: Largest degree of the result, at least 1.

    Example:
        >>> from fedbolic.data.graphs.graph import simple_edges
        >>> star = simple_edges(torch.tensor([[0, 0, 0], [1, 2, 3]]), 4)
        >>> capped(Graph(torch.eye(4), star, torch.zeros(4).long()), 2).edges.tolist()
        [[0, 0, 1, 2], [1, 2, 0, 0]]
    """
    first, second = graph.edges
    starts = graph.degrees.cumsum(0) - graph.degrees
    place = torch.arange(len(first), device=first.device) - starts[first]
    back = (second * len(graph) + first).argsort()  # edge (v, u) of every edge (u, v)
    kept = (place < max_degree) & (place[back] < max_degree)
    return Graph(graph.features, graph.edges[:, kept], graph.labels)


def sum_sensitivity(max_degree: int) -> int:
    r"""Largest change of Q of the capped graph if one edge is added or removed, which is attained.

    .. math:: \Delta_Q = \max(14 D - 16, \; 13 D - 11)

    *Proof.* Let the new edge between u and v displace the edges (u, a) and (v, b). Then u and v
    keep their degrees, and the squares of the degrees of a and b fall by
    :math:`2 d_a - 1 + 2 d_b - 1`. Triangles are lost with both edges, :math:`k_a < d_a` and
    :math:`k_b < d_b` of them, and up to D - 1 are won with the new edge. So Q grows by at most
    :math:`9 k_a - (2 d_a - 1) + 9 k_b - (2 d_b - 1) \le 2 (7 (D - 1) - 1) = 14 D - 16`, and falls
    by at most :math:`2 (2 D - 1) + 9 (D - 1) = 13 D - 11`. If a = b, it grows by at most 14 D - 32
    and falls by at most 13 D - 13. If one edge is displaced, the change is at most 9 D - 9 either
    way, and if none is, :math:`\max(4 D - 2, 5 D - 7)`; the same holds if an edge is displaced by
    one that does not count itself. None of these is larger. m changes by at most 1.

    Args:
        max_degree: Largest degree of the capped graph, D, at least 1.

    Example:
        >>> [sum_sensitivity(bound) for bound in (1, 2, 5, 8)]
        [2, 15, 54, 96]
    """
    return max(14 * max_degree - 16, 13 * max_degree - 11)
