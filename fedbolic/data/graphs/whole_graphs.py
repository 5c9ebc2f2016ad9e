"""Several graphs of one client as one disconnected graph, whose examples are whole graphs."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.data.contract.client import LabelledSplit
from fedbolic.data.graphs.graph import Graph


@dataclass(frozen=True, eq=False)
class WholeGraphs(LabelledSplit):
    """Examples that are whole graphs, held as one disconnected graph.

    An example has a label ``y``, the number of its graph, ``node``, and for methods that know no
    edges the mean ``x`` of the features of its nodes.

    Args:
        graph: Union of graphs, with its ``batch``; all nodes of a graph have its label.
        places: Numbers of the graphs that are examples.

    Raises:
        ValueError: If ``graph`` has no ``batch``.

    Example:
        >>> edge, numbers = torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 0, 1])
        >>> pair_and_point = Graph(torch.eye(3), edge, numbers, batch=numbers)
        >>> WholeGraphs(pair_and_point, torch.tensor([0])).all()["x"]
        tensor([[0.5000, 0.5000, 0.0000]])
    """

    graph: Graph
    places: Int64[Tensor, " n"]

    def __post_init__(self) -> None:
        if self.graph.batch is None:
            raise ValueError("the examples are graphs of a union: unite them with unite_graphs")

    @override
    def __len__(self) -> int:
        return len(self.places)

    @functools.cached_property
    def labels(self) -> Int64[Tensor, " n"]:
        """Label of every example."""
        return graph_labels(self.graph)[self.places]

    @functools.cached_property
    def _means(self) -> Float[Tensor, "graphs width"]:
        """Mean of the features of every graph of the union."""
        features = self.graph.features
        features = features.to_dense() if features.is_sparse else features
        batch, sizes = _batch(self.graph), graph_sizes(self.graph)
        sums = features.new_zeros(len(sizes), features.shape[1]).index_add(0, batch, features)
        return sums / sizes[:, None]

    @override
    def at(self, index: Tensor) -> dict[str, Tensor]:
        split = self.part(index)
        return {"x": self._means[split.places], "y": split.labels, "node": split.places}

    @override
    def part(self, index: Tensor) -> "WholeGraphs":
        return WholeGraphs(self.graph, self.places[index.to(self.places.device)])

    @override
    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "WholeGraphs":
        return WholeGraphs(self.graph.to(device, dtype), self.places.to(device))


def graph_sizes(graph: Graph) -> Int64[Tensor, " graphs"]:
    """Number of nodes of every graph of a union."""
    return _batch(graph).bincount()


def graph_labels(graph: Graph) -> Int64[Tensor, " graphs"]:
    """Label of every graph of a union, that of its first node."""
    sizes = graph_sizes(graph)
    return graph.labels[sizes.cumsum(0) - sizes]


def unite_graphs(graphs: Sequence[Graph]) -> Graph:
    """One graph of all nodes, numbered in order, with the graphs of all unions numbered in order.

    Features are sparse if all are.

    Args:
        graphs: At least one graph or union; features have one width.

    Raises:
        ValueError: If there is no graph, or widths differ.

    Example:
        >>> one = Graph(torch.eye(2), torch.tensor([[0, 1], [1, 0]]), torch.tensor([1, 1]))
        >>> unite_graphs([one, unite_graphs([one, one])]).batch
        tensor([0, 0, 1, 1, 2, 2])
    """
    widths = {graph.features.shape[1] for graph in graphs}
    if len(widths) != 1:
        raise ValueError(
            f"graphs of a union need features of one width, got widths {sorted(widths)}: use "
            "features='degrees', or leave some out"
        )
    features = [graph.features for graph in graphs]
    if not all(rows.is_sparse for rows in features):
        features = [rows.to_dense() if rows.is_sparse else rows for rows in features]
    together = torch.cat(features)
    edges, batches, nodes, number = [], [], 0, 0
    for graph in graphs:
        batch = torch.zeros_like(graph.labels) if graph.batch is None else graph.batch
        edges.append(graph.edges + nodes)
        batches.append(batch + number)
        nodes, number = nodes + len(graph), number + int(batch[-1]) + 1
    labels = torch.cat([graph.labels for graph in graphs])
    together = together.coalesce() if together.is_sparse else together
    return Graph(together, torch.cat(edges, dim=1), labels, batch=torch.cat(batches))


def check_widths(names: Sequence[object], graphs: Sequence[Graph], remedy: str) -> None:
    """Refuse graphs with other numbers of features than the first one.

    Raises:
        ValueError: If numbers differ; the message ends with the remedy.
    """
    widths = [graph.features.shape[1] for graph in graphs]
    for name, width in zip(names, widths, strict=True):
        if width != widths[0]:
            raise ValueError(
                f"{name} has {width} features per node and {names[0]} has {widths[0]}: {remedy}"
            )


def pick_graphs(union: Graph, index: Int64[Tensor, " some"]) -> Graph:
    """The union of some graphs of a union, in the given order.

    Example:
        >>> line = Graph(torch.eye(2), torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 0]))
        >>> point = Graph(torch.zeros(1, 2), torch.empty(2, 0, dtype=torch.long), torch.tensor([1]))
        >>> pick_graphs(unite_graphs([line, point]), torch.tensor([1, 0])).labels
        tensor([1, 0, 0])
    """
    sizes = graph_sizes(union)
    starts = sizes.cumsum(0) - sizes
    chosen = sizes[index]
    batch = torch.arange(len(index)).repeat_interleave(chosen)
    within = torch.arange(len(batch)) - (chosen.cumsum(0) - chosen)[batch]
    part = union.induced(starts[index][batch] + within)
    return Graph(part.features, part.edges, part.labels, batch=batch)


def _batch(graph: Graph) -> Int64[Tensor, " n"]:
    if graph.batch is None:
        raise ValueError("a graph is no union of graphs: unite them with unite_graphs")
    return graph.batch
