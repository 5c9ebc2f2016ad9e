r"""Estimators of a client's curvature from its graph.

Signs and scales: ``Ric`` is the mean augmented Forman-Ricci curvature of the edges, negative for
tree-like graphs; an estimator returns :math:`c > 0`, minus the sectional curvature of the client's
Lorentz space. The paper's :math:`K` is :math:`1 / c`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.data import Graph

BOUNDS = (1e-2, 1e2)
"""Open interval of the curvatures c, and therefore of K."""

NEARLY_FLAT = 0.1
"""Curvature c for graphs that are not negatively curved: K = 10."""

LEAST_RICCI = -1e-2
"""Mean Ricci curvature from which a graph counts as not negatively curved."""


def forman(graph: Graph) -> Int64[Tensor, " ends"]:
    r"""Forman-Ricci curvature of each edge, for the graph as a one-dimensional complex.

    .. math:: F(i, j) = 4 - d_i - d_j

    with degrees that exclude self-loops. Each edge appears in both directions.

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
    r"""Augmented Forman-Ricci curvature of each edge, with triangles as faces.

    .. math:: F(i, j) = 4 - d_i - d_j + 3 \, t_{ij}

    with :math:`t_{ij}` the number of triangles that contain the edge.

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
    """Mean augmented Forman-Ricci curvature of the edges; 0 for a graph without edges."""
    return float(forman_augmented(graph).double().mean()) if graph.num_edges else 0.0


def forman_inverse(ricci: float) -> float:
    """Curvature c of a graph whose mean Ricci curvature is ``ricci``: its negative, or nearly flat.

    Args:
        ricci: Mean Ricci curvature of the edges.
    """
    return -ricci if ricci < LEAST_RICCI else NEARLY_FLAT


class Estimator(ABC):
    """Estimator of a client's initial curvature from its graph."""

    def c(self, graph: Graph) -> float:
        """Minus the sectional curvature, clamped strictly inside :data:`BOUNDS`."""
        low, high = BOUNDS
        return min(max(self.unbounded(graph), 1.01 * low), 0.99 * high)

    @abstractmethod
    def unbounded(self, graph: Graph) -> float:
        """The estimate before clamping, at least 0."""


@dataclass(frozen=True)
class FormanInverse(Estimator):
    r"""Curvature of the graph, :math:`c = -\mathrm{Ric}`, that is :math:`K = 1 / |\mathrm{Ric}|`.

    A graph with :math:`\mathrm{Ric} \ge -0.01`, which has many triangles or no edges, gets a nearly
    flat space, :math:`c = 0.1`.

    Departs from the paper, which sets :math:`K` to Ric: a negative value is no valid K.

    Example:
        >>> import torch
        >>> path = Graph(torch.eye(3), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.arange(3))
        >>> FormanInverse().c(path)
        0.1
    """

    @override
    def unbounded(self, graph: Graph) -> float:
        return forman_inverse(mean_ricci(graph))


@dataclass(frozen=True)
class FormanAbs(Estimator):
    r"""The paper's rule with the sign dropped: :math:`K = |Ric|`, or :math:`c = 1 / |Ric|`.

    The more curved the graph, the flatter its space. If :math:`|\mathrm{Ric}| \le 0.01`,
    :math:`c = 0.1`.
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

    K is always positive, but it measures the sparsity of the graph, not a curvature. For a graph
    without edges, :math:`c = 0.1`.
    """

    @override
    def unbounded(self, graph: Graph) -> float:
        joined = int((graph.degrees > 0).sum())
        return graph.num_edges / joined if joined else NEARLY_FLAT


@dataclass(frozen=True)
class Constant(Estimator):
    """The same curvature for every client.

    Args:
        value: Minus the sectional curvature, strictly inside :data:`BOUNDS`, (0.01, 100).

    Raises:
        ValueError: If ``value`` is outside these bounds.
    """

    value: float = 1.0

    def __post_init__(self) -> None:
        check.positive(value=self.value)
        if not BOUNDS[0] < self.value < BOUNDS[1]:
            raise ValueError(f"value must lie inside {BOUNDS}, got {self.value}")

    @override
    def unbounded(self, graph: Graph) -> float:
        return self.value
