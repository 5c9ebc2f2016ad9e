"""Graphs of labelled nodes, and splits of their nodes."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.data.contract.client import LabelledSplit
from fedbolic.data.contract.labelled import check_classes


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected graph without self loops, with features and a label at every node.

    Nodes are numbered from 0. Isolated nodes are allowed.

    Args:
        features: One row per node; may be a sparse COO tensor.
        edges: Both directions of every edge, without repetition, in ascending order, as
            :func:`simple_edges` returns them.
        labels: Label of every node.
        masks: Masks of nodes as the data give them, by name: ``train_mask``, ``val_mask`` and
            ``test_mask``. They are checked where they are used, and copies and subgraphs have none.
        batch: Number of the graph of every node, ascending from 0, if this is a union of several
            graphs, each with at least one node; ``None`` for one graph. Subgraphs have none.

    Raises:
        ValueError: If the numbers of feature rows and labels differ, a label asks for more classes
            than ``check.MOST_CLASSES``, an edge ends at a node that
            does not exist, the edges are not in the form :func:`simple_edges` returns, or
            ``batch`` skips a number or an edge joins two of its graphs.

    Example:
        >>> path = Graph(torch.eye(3), simple_edges(torch.tensor([[0, 1], [1, 2]]), 3),
        ...              torch.tensor([0, 0, 1]))
        >>> len(path), path.degrees.tolist()
        (3, [1, 2, 1])
    """

    features: Float[Tensor, "n width"]
    edges: Int64[Tensor, "2 ends"]
    labels: Int64[Tensor, " _"]
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    batch: Int64[Tensor, " _"] | None = None

    def __post_init__(self) -> None:
        if len(self.features) != len(self.labels):
            raise ValueError(
                f"a graph needs one label per node, got {len(self.features)} rows of features and "
                f"{len(self.labels)} labels"
            )
        check_classes("a graph", self.labels)
        _refuse_strangers(self.edges, len(self))
        if self.batch is not None:
            _refuse_other_batches(self.batch, self.edges, len(self))
        first, second = self.edges
        there, back = (i * len(self) + j for i, j in ((first, second), (second, first)))
        ascending = bool((there.diff() > 0).all())
        if not ascending or (first == second).any() or not torch.equal(there, back.sort().values):
            raise ValueError(
                "edges must be listed in both directions, once, in ascending order and without "
                "self loops: convert them with simple_edges"
            )

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self.labels)

    @property
    def num_edges(self) -> int:
        """The number of undirected edges."""
        return self.edges.shape[1] // 2

    @functools.cached_property
    def degrees(self) -> Int64[Tensor, " n"]:
        """Degree of every node."""
        return torch.bincount(self.edges[0], minlength=len(self))

    @functools.cached_property
    def triangles(self) -> Int64[Tensor, " ends"]:
        """Number of triangles through every edge, that is, of common neighbours of its ends."""
        if not self.num_edges:  # SciPy refuses an empty index
            return self.edges[0]
        from scipy.sparse import csr_array  # imported here because SciPy is slow to import

        rows, columns = self.edges.cpu().numpy()
        adjacency = csr_array(([1] * len(rows), (rows, columns)), shape=(len(self), len(self)))
        shared = csr_array(adjacency @ adjacency)[rows, columns]
        return torch.as_tensor(shared, dtype=torch.int64, device=self.edges.device)

    @functools.cached_property
    def neighbours(self) -> Int64[Tensor, " entries"]:
        """Concatenated lists of each node and its neighbours, every list in ascending order."""
        nodes = torch.arange(len(self), device=self.edges.device)
        rows, columns = torch.cat((self.edges, nodes.expand(2, -1)), dim=1)
        order = (rows * len(self) + columns).argsort()
        return columns[order]

    @functools.cached_property
    def non_edges_before(self) -> Int64[Tensor, " edges"]:
        """Number of non-edges before each edge, in ascending order of :func:`pair_ranks`."""
        ranks = pair_ranks(self.edges[:, self.edges[0] < self.edges[1]]).sort().values
        return ranks - torch.arange(len(ranks), device=ranks.device)

    def induced(self, nodes: Int64[Tensor, " some"]) -> "Graph":
        """The subgraph induced by ``nodes``, renumbered in the given order."""
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
        """The same graph on ``device`` with features of ``dtype``; ``self`` if nothing changes.

        A copy is cached while it is referenced, so that splits of one graph share it.
        """
        probe = torch.empty(0, device=device, dtype=dtype or self.features.dtype)
        place = probe.device, probe.dtype
        if place == (self.features.device, self.features.dtype):
            return self
        if (known := self._elsewhere.get(place)) is not None:
            return known
        features = self.features.to(*place)
        found = object.__new__(Graph)  # a second check of the edges would wait for the device
        found.__dict__.update(
            features=features.coalesce() if features.is_sparse else features,
            edges=self.edges.to(device),
            labels=self.labels.to(device),
            masks={},
            batch=None if self.batch is None else self.batch.to(device),
        )
        self._elsewhere[place] = found
        return found

    @functools.cached_property
    def _elsewhere(self) -> "WeakValueDictionary[tuple[torch.device, torch.dtype], Graph]":
        return WeakValueDictionary()

    def __getstate__(self) -> dict[str, object]:
        """Values without copies of other types and what was derived, which need not be stored."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


@dataclass(frozen=True, eq=False)
class GraphSplit(LabelledSplit):
    """Examples that are nodes of a graph; all nodes of the graph remain visible as context.

    An example has features ``x``, a label ``y`` and the number of its node, ``node``. Methods that
    use edges read them from :attr:`graph`; other methods learn from the features alone.

    Args:
        graph: Graph of one client.
        nodes: Numbers of the nodes that are examples.

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

    @property
    def places(self) -> Int64[Tensor, " n"]:
        """Row of every example in the output of a network, which has one row per node."""
        return self.nodes

    @functools.cached_property
    def labels(self) -> Int64[Tensor, " n"]:
        """Label of every example."""
        return self.graph.labels[self.nodes]

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


def pair_ranks(pairs: Int64[Tensor, "2 n"]) -> Int64[Tensor, " n"]:
    r"""Numbers of unordered pairs of different nodes, which do not depend on their direction.

    .. math:: k = j (j - 1) / 2 + i, \quad i < j

    Example:
        >>> pair_ranks(torch.tensor([[0, 0, 1, 3], [1, 2, 2, 0]]))
        tensor([0, 1, 2, 3])
    """
    low, high = pairs.amin(0), pairs.amax(0)
    return high * (high - 1) // 2 + low


def simple_edges(edges: Int64[Tensor, "2 _"], num_nodes: int) -> Int64[Tensor, "2 ends"]:
    """Both directions of every edge, once and in ascending order, without self loops.

    Args:
        edges: Edges in one direction or both; repetitions are allowed.
        num_nodes: Number of nodes, at least 0.

    Raises:
        ValueError: If an edge ends at a node that does not exist.

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


def _refuse_other_batches(batch: Tensor, edges: Tensor, num_nodes: int) -> None:
    whole = len(batch) == num_nodes and (not num_nodes or int(batch[0]) == 0)
    if not whole or ((batch.diff() != 0) & (batch.diff() != 1)).any():
        raise ValueError(
            "batch must number the graph of every node in ascending order from 0, without a gap"
        )
    if (batch[edges[0]] != batch[edges[1]]).any():
        raise ValueError("an edge joins nodes of two graphs of the batch: graphs are disjoint")
