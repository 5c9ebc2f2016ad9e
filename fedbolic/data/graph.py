"""A graph of labelled nodes, and the nodes of it that are examples."""

import functools
from dataclasses import dataclass
from weakref import WeakValueDictionary

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.data.client import Split


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected graph without self loops, with features and a label at every node.

    Nodes are numbered from 0; one without an edge is a node like any other.

    Args:
        features: A row for every node; a sparse COO tensor if most numbers are 0.
        edges: Both directions of every edge, without repetition, in ascending order: see
            :func:`simple_edges`.
        labels: Of every node.

    Raises:
        ValueError: If rows and labels differ in number, an edge names no node, or edges are not as
            :func:`simple_edges` gives them.

    Example:
        >>> path = Graph(torch.eye(3), simple_edges(torch.tensor([[0, 1], [1, 2]]), 3),
        ...              torch.tensor([0, 0, 1]))
        >>> len(path), path.degrees.tolist()
        (3, [1, 2, 1])
    """

    features: Float[Tensor, "n width"]
    edges: Int64[Tensor, "2 ends"]
    labels: Int64[Tensor, " _"]

    def __post_init__(self) -> None:
        if len(self.features) != len(self.labels):
            raise ValueError(
                f"a graph needs one label per node, got {len(self.features)} rows of features and "
                f"{len(self.labels)} labels"
            )
        _refuse_strangers(self.edges, len(self))
        first, second = self.edges
        there, back = (i * len(self) + j for i, j in ((first, second), (second, first)))
        ascending = bool((there.diff() > 0).all())
        if not ascending or (first == second).any() or not torch.equal(there, back.sort().values):
            raise ValueError(
                "edges must be there in both directions, once, in ascending order and without "
                "loops: simple_edges makes them so"
            )

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self.labels)

    @property
    def num_edges(self) -> int:
        """Each undirected edge counted once."""
        return self.edges.shape[1] // 2

    @functools.cached_property
    def degrees(self) -> Int64[Tensor, " n"]:
        """Edges at every node."""
        return torch.bincount(self.edges[0], minlength=len(self))

    @functools.cached_property
    def triangles(self) -> Int64[Tensor, " ends"]:
        """Number of triangles through every edge: the neighbours that its ends share."""
        if not self.num_edges:  # scipy refuses to look up nothing
            return self.edges[0]
        from scipy.sparse import csr_array  # only who asks for triangles waits for scipy

        rows, columns = self.edges.cpu().numpy()
        adjacency = csr_array(([1] * len(rows), (rows, columns)), shape=(len(self), len(self)))
        shared = csr_array(adjacency @ adjacency)[rows, columns]
        return torch.as_tensor(shared, dtype=torch.int64, device=self.edges.device)

    @functools.cached_property
    def neighbours(self) -> Int64[Tensor, " entries"]:
        """Every node's neighbours and itself, ascending, one list after another."""
        nodes = torch.arange(len(self), device=self.edges.device)
        rows, columns = torch.cat((self.edges, nodes.expand(2, -1)), dim=1)
        order = (rows * len(self) + columns).argsort()
        return columns[order]

    def induced(self, nodes: Int64[Tensor, " some"]) -> "Graph":
        """The graph of some nodes, numbered in the order given, and of the edges between them."""
        place = torch.full((len(self),), -1, device=nodes.device)
        place[nodes] = torch.arange(len(nodes), device=nodes.device)
        ends = place[self.edges]
        features = self.features.index_select(0, nodes)
        return Graph(
            features.coalesce() if features.is_sparse else features,
            simple_edges(ends[:, (ends >= 0).all(0)], len(nodes)),
            self.labels[nodes],
        )

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Graph":
        """The same graph on ``device``, its features as ``dtype``; itself if it is there.

        Whoever asks again while somebody holds the result gets that.
        """
        probe = torch.empty(0, device=device, dtype=dtype or self.features.dtype)
        place = probe.device, probe.dtype
        if place == (self.features.device, self.features.dtype):
            return self
        if (known := self._elsewhere.get(place)) is not None:
            return known
        features = self.features.to(*place)
        found = Graph(
            features.coalesce() if features.is_sparse else features,
            self.edges.to(device),
            self.labels.to(device),
        )
        self._elsewhere[place] = found
        return found

    @functools.cached_property
    def _elsewhere(self) -> "WeakValueDictionary[tuple[torch.device, torch.dtype], Graph]":
        return WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class GraphSplit(Split):
    """Some nodes of a graph as examples; the whole graph is seen around them.

    Examples are rows of features ``x``, labels ``y`` and the nodes' numbers ``node``; a method that
    reads edges takes them from :attr:`graph`, and others learn from the rows alone.

    Args:
        graph: Of one client.
        nodes: Their numbers.

    Example:
        >>> graph = Graph(torch.eye(2), torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 1]))
        >>> GraphSplit(graph, torch.tensor([1])).all()
        {'x': tensor([[0., 1.]]), 'y': tensor([1]), 'node': tensor([1])}
    """

    graph: Graph
    nodes: Int64[Tensor, " n"]

    @override
    def __len__(self) -> int:
        return len(self.nodes)

    @override
    def at(self, index: Tensor) -> dict[str, Tensor]:
        nodes = self.nodes[index.to(self.nodes.device)]
        rows = self.graph.features.index_select(0, nodes)
        return {
            "x": rows.to_dense() if rows.is_sparse else rows,
            "y": self.graph.labels[nodes],
            "node": nodes,
        }

    @override
    def part(self, index: Tensor) -> "GraphSplit":
        return GraphSplit(self.graph, self.nodes[index.to(self.nodes.device)])

    @override
    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "GraphSplit":
        return GraphSplit(self.graph.to(device, dtype), self.nodes.to(device))


def simple_edges(edges: Int64[Tensor, "2 _"], num_nodes: int) -> Int64[Tensor, "2 ends"]:
    """Both directions of every edge, once and in ascending order; self loops are left out.

    Args:
        edges: In one direction or both, repeated or not.
        num_nodes: How many there are.

    Raises:
        ValueError: If an edge names no node.

    Example:
        >>> simple_edges(torch.tensor([[1, 0, 2], [0, 1, 2]]), 3)
        tensor([[0, 1],
                [1, 0]])
    """
    _refuse_strangers(edges, num_nodes)
    first, second = edges[:, edges[0] != edges[1]]
    codes = torch.cat((first * num_nodes + second, second * num_nodes + first)).unique()
    return torch.stack((codes // max(num_nodes, 1), codes % max(num_nodes, 1)))


def _refuse_strangers(edges: Tensor, num_nodes: int) -> None:
    wrong = edges[(edges < 0) | (edges >= num_nodes)]
    if len(wrong):
        raise ValueError(f"an edge ends at {int(wrong[0])}, but nodes are 0 .. {num_nodes - 1}")
