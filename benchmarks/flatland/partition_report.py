"""Statistics of a graph partition, without training."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.table import head, line
from fedbolic.data import Client, FederatedData, Graph, GraphSplit
from flatland.graphs.ricci import mean_ricci


@dataclass(frozen=True)
class Part:
    """Statistics of one client's graph.

    Args:
        num_nodes: Number of nodes.
        num_edges: Number of undirected edges, each counted once; papers count both directions.
        clustering: Mean clustering coefficient of the nodes.
        ricci: Mean augmented Forman-Ricci curvature of the edges.
        sizes: Numbers of training, validation and test nodes.
        counts: Number of nodes of each class.
    """

    num_nodes: int
    num_edges: int
    clustering: float
    ricci: float
    sizes: tuple[int, int, int]
    counts: tuple[int, ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """Classes without a node in this graph, ascending."""
        return tuple(k for k, count in enumerate(self.counts) if not count)

    @property
    def empty(self) -> tuple[str, ...]:
        """Names of the splits without a node."""
        names = ("train", "validation", "test")
        return tuple(name for name, size in zip(names, self.sizes, strict=True) if not size)


@dataclass(frozen=True)
class PartitionReport:
    """Statistics of all clients' graphs.

    Args:
        parts: Statistics of each client's graph.
        num_edges: Number of edges of the whole graph, each counted once; ``None`` if unknown.
        heterogeneity: Median over pairs of clients of the Jensen-Shannon distance (natural
            logarithm) between their class distributions, from 0 to 0.83; 0 for a single client.

    References:
        Lin (1991), doi:10.1109/18.61115. Table 2 of FlatLand reports heterogeneity without a
        definition; this one reproduces its numbers.
    """

    parts: tuple[Part, ...]
    num_edges: int | None
    heterogeneity: float

    @property
    def cut(self) -> float | None:
        """Fraction of edges that the partition cuts; ``None`` if their number is unknown or 0."""
        if not self.num_edges:
            return None
        return 1 - sum(part.num_edges for part in self.parts) / self.num_edges

    def table(self) -> str:
        """The report as a Markdown table: one row for each client, then their means."""
        columns = "client", "nodes", "edges", "clustering", "Forman-Ricci", "missing classes"
        rows = [
            line(
                *(i, part.num_nodes, part.num_edges, f"{part.clustering:.3f}", f"{part.ricci:.2f}"),
                *(" ".join(map(str, part.missing)) or "none", " / ".join(map(str, part.sizes))),
            )
            for i, part in enumerate(self.parts)
        ]
        means = [
            f"{statistics.fmean(values):.{digits}f}"
            for values, digits in (
                ([part.num_nodes for part in self.parts], 1),
                ([part.num_edges for part in self.parts], 1),
                ([part.clustering for part in self.parts], 3),
                ([part.ricci for part in self.parts], 2),
                ([len(part.missing) for part in self.parts], 1),
            )
        ]
        rows.append(line("mean", *means, ""))
        cut = "" if self.cut is None else f", {100 * self.cut:.1f} % of the edges cut"
        empty = sum(bool(part.empty) for part in self.parts)
        tail = f"Heterogeneity {self.heterogeneity:.3f}{cut}, {empty} clients with an empty split."
        return "\n".join([head(*columns, "train / validation / test"), *rows, "", tail])


def partition_report(data: FederatedData) -> PartitionReport:
    """Statistics of all clients' graphs in a federation.

    Raises:
        ValueError: If a client has no graph.

    Example:
        >>> from fedbolic.data import IID, BlockModel, Graphs
        >>> from fedbolic.core.rng import Rng
        >>> report = partition_report(Graphs(BlockModel(), IID(2)).load(Rng(0)))
        >>> len(report.parts), report.cut > 0.3
        (2, True)
    """
    graphs = [graph_of(client) for client in data.clients]
    counts = [graph.labels.bincount(minlength=data.meta.num_classes) for graph in graphs]
    parts = tuple(
        Part(
            num_nodes=len(graph),
            num_edges=graph.num_edges,
            clustering=clustering(graph),
            ricci=mean_ricci(graph),
            sizes=(len(client.train), len(client.validation), len(client.test)),
            counts=tuple(count.tolist()),
        )
        for client, graph, count in zip(data.clients, graphs, counts, strict=True)
    )
    whole = None if data.holdout is None else graph_of(data.holdout).num_edges
    return PartitionReport(parts, whole, heterogeneity(counts))


def class_counts(data: FederatedData) -> list[Tensor]:
    """Number of examples of every class of each client, in all of its splits."""
    splits = [(client.train, client.validation, client.test) for client in data.clients]
    labels = [torch.cat([part.all()["y"] for part in of if len(part)]) for of in splits]
    return [y.bincount(minlength=data.meta.num_classes) for y in labels]


def graph_of(client: Client) -> Graph:
    """Graph of a client.

    Raises:
        ValueError: If the client has no graph.
    """
    if not isinstance(client.train, GraphSplit):
        raise ValueError(f"client {client.id} has no graph: use the source fedbolic.data.Graphs")
    return client.train.graph


def clustering(graph: Graph) -> float:
    """Mean clustering coefficient of the nodes; 0 for nodes with fewer than two neighbours.

    References:
        Watts and Strogatz (1998), doi:10.1038/30918.
    """
    ends = torch.zeros(len(graph), dtype=torch.float64)
    closed = ends.index_add(0, graph.edges[0], graph.triangles.double())
    pairs = (graph.degrees * (graph.degrees - 1)).double()
    return float((closed / pairs.clamp(min=1)).mean())


def heterogeneity(counts: Sequence[Tensor]) -> float:
    """Median Jensen-Shannon distance over pairs of histograms; 0 without a pair.

    Args:
        counts: One histogram per client, each with at least one count above 0.
    """
    from scipy.spatial.distance import jensenshannon

    pairs = itertools.combinations([count.double().numpy() for count in counts], 2)
    return statistics.median([float(jensenshannon(p, q)) for p, q in pairs] or [0.0])
