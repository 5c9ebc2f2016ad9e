r"""Estimators of a client's curvature from its graph.

Signs and scales: ``Ric`` is the mean Forman-Ricci curvature of the edges, negative for graphs that
spread like trees; an estimator gives :math:`c > 0`, minus the sectional curvature of the client's
Lorentz space. The paper's :math:`K` is :math:`1 / c`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Int64
from torch import Tensor
from typing_extensions import override

from fedbolic import check
from fedbolic.data import Graph

BOUNDS = (1e-2, 1e2)
"""The open interval of curvatures, and so of K."""

NEARLY_FLAT = 0.1
"""The curvature of a client whose graph is not negatively curved: K = 10."""

LEAST_RICCI = -1e-2
"""From here on a graph counts as not negatively curved."""


def forman(graph: Graph) -> Int64[Tensor, " ends"]:
    r"""The Forman-Ricci curvature of every edge as a one-dimensional complex.

    .. math:: F(i, j) = 4 - d_i - d_j

    with degrees that count no self loops. Every edge stands here in both its directions.

    References:
        Forman (2003), doi:10.1007/s00454-002-0743-x; Sreejith et al. (2016), arXiv:1603.00386.

    Example:
        >>> import torch
        >>> path = Graph(torch.eye(3), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.arange(3))
        >>> forman(path).tolist()
        [1, 1, 1, 1]
    """
    return 4 - graph.degrees[graph.edges[0]] - graph.degrees[graph.edges[1]]


def forman_augmented(graph: Graph) -> Int64[Tensor, " ends"]:
    r"""The Forman-Ricci curvature of every edge where triangles are filled.

    .. math:: F(i, j) = 4 - d_i - d_j + 3 \, t_{ij}

    with :math:`t_{ij}` the triangles on the edge.

    References:
        Samal et al. (2018), Eq. (6), arXiv:1712.07600; the paper's App. B.3.

    Example:
        >>> import torch
        >>> path = Graph(torch.eye(3), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.arange(3))
        >>> forman_augmented(path).tolist()
        [1, 1, 1, 1]
    """
    return forman(graph) + 3 * graph.triangles


def mean_ricci(graph: Graph) -> float:
    """The mean augmented Forman-Ricci curvature of the edges; 0 of a graph without any."""
    return float(forman_augmented(graph).double().mean()) if graph.num_edges else 0.0


class Estimator(ABC):
    """A rule from a graph to the curvature that its client begins with."""

    def c(self, graph: Graph) -> float:
        """Minus the sectional curvature, strictly inside :data:`BOUNDS`."""
        low, high = BOUNDS
        return min(max(self.unbounded(graph), 1.01 * low), 0.99 * high)

    @abstractmethod
    def unbounded(self, graph: Graph) -> float:
        """The curvature that the rule gives, at least 0."""


@dataclass(frozen=True)
class FormanInverse(Estimator):
    r"""The space is as curved as the graph: :math:`c = -\mathrm{Ric}`, or :math:`K = 1 / |Ric|`.

    A graph with :math:`\mathrm{Ric} \ge -0.01`, full of triangles or without edges, gets a nearly
    flat space, :math:`c = 0.1`.

    Departs from the paper: it sets :math:`K` to Ric itself, which is negative and so no K.

    Example:
        >>> import torch
        >>> path = Graph(torch.eye(3), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.arange(3))
        >>> FormanInverse().c(path)
        0.1
    """

    @override
    def unbounded(self, graph: Graph) -> float:
        ricci = mean_ricci(graph)
        return -ricci if ricci < LEAST_RICCI else NEARLY_FLAT


@dataclass(frozen=True)
class FormanAbs(Estimator):
    r"""The paper's words with the sign dropped: :math:`K = |Ric|`, or :math:`c = 1 / |Ric|`.

    The more curved the graph, the flatter its space. Where Ric is 0, :math:`c = 0.1`.
    """

    @override
    def unbounded(self, graph: Graph) -> float:
        ricci = abs(mean_ricci(graph))
        return 1 / ricci if ricci > -LEAST_RICCI else NEARLY_FLAT


@dataclass(frozen=True)
class InverseDegree(Estimator):
    r"""The paper's formula of Sec. 3.1 with unit weights.

    .. math:: K = \frac{1}{|E|} \sum_{(i, j) \in E} \Bigl(\frac{1}{d_i} + \frac{1}{d_j}\Bigr)
        = \frac{|\{i : d_i > 0\}|}{|E|}

    Always positive, and no curvature: it says how few edges there are. Without edges c = 0.1.
    """

    @override
    def unbounded(self, graph: Graph) -> float:
        joined = int((graph.degrees > 0).sum())
        return graph.num_edges / joined if joined else NEARLY_FLAT


@dataclass(frozen=True)
class Constant(Estimator):
    """The same curvature for every client.

    Args:
        value: Minus the sectional curvature, inside :data:`BOUNDS`.

    Raises:
        ValueError: If it is not inside.
    """

    value: float = 1.0

    def __post_init__(self) -> None:
        check.positive(value=self.value)
        if not BOUNDS[0] < self.value < BOUNDS[1]:
            raise ValueError(f"value must lie inside {BOUNDS}, got {self.value}")

    @override
    def unbounded(self, graph: Graph) -> float:
        return self.value
