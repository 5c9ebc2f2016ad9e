"""Report on a partition of a graph, before anything is trained."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbolic.data import Client, FederatedData, Graph, GraphSplit
from flatland.ricci import mean_ricci


@dataclass(frozen=True)
class Part:
    """One client's graph in numbers.

    Args:
        num_nodes: Of its graph.
        num_edges: Undirected, each counted once; tables of papers count both directions.
        clustering: The mean over nodes of the share of pairs of neighbours that are joined.
        ricci: The mean augmented Forman-Ricci curvature of the edges.
        sizes: Training, validation and test nodes.
        counts: Nodes of every class.
    """

    num_nodes: int
    num_edges: int
    clustering: float
    ricci: float
    sizes: tuple[int, int, int]
    counts: tuple[int, ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """Classes that no node of it has, ascending."""
        return tuple(k for k, count in enumerate(self.counts) if not count)

    @property
    def empty(self) -> tuple[str, ...]:
        """The splits without a node."""
        names = ("train", "validation", "test")
        return tuple(name for name, size in zip(names, self.sizes, strict=True) if not size)


@dataclass(frozen=True)
class PartitionReport:
    """All clients' graphs in numbers.

    Args:
        parts: By client.
        num_edges: Of the whole graph, each counted once; ``None`` if it is not known.
        heterogeneity: The median over pairs of clients of the Jensen-Shannon distance (natural
            logarithm) between their shares of classes, from 0 to 0.83; 0 of one client.

    References:
        Lin (1991), doi:10.1109/18.61115; Table 2 of FlatLand gives it without a definition, and
        this one agrees with its numbers.
    """

    parts: tuple[Part, ...]
    num_edges: int | None
    heterogeneity: float

    @property
    def cut(self) -> float | None:
        """The share of the edges that lie between clients and are lost."""
        if not self.num_edges:
            return None
        return 1 - sum(part.num_edges for part in self.parts) / self.num_edges

    def table(self) -> str:
        """The report in Markdown: a row for each client, then their means."""
        head = ["client", "nodes", "edges", "clustering", "Forman-Ricci", "missing classes",
                "train / validation / test"]  # fmt: skip
        rows = [
            [
                str(i),
                str(part.num_nodes),
                str(part.num_edges),
                f"{part.clustering:.3f}",
                f"{part.ricci:.2f}",
                " ".join(map(str, part.missing)) or "none",
                " / ".join(map(str, part.sizes)),
            ]
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
        rows.append(["mean", *means, ""])
        cut = "" if self.cut is None else f", {100 * self.cut:.1f} % of the edges cut"
        empty = sum(bool(part.empty) for part in self.parts)
        tail = f"Heterogeneity {self.heterogeneity:.3f}{cut}, {empty} clients with an empty split."
        return "\n".join([*_markdown([head, *rows]), "", tail])


def partition_report(data: FederatedData) -> PartitionReport:
    """The clients' graphs of a federation in numbers.

    Raises:
        ValueError: If a client has no graph.

    Example:
        >>> from fedbolic.data import IID, BlockModel, Graphs
        >>> from fedbolic.rng import Rng
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


def graph_of(client: Client) -> Graph:
    """The graph of a client.

    Raises:
        ValueError: If it has none.
    """
    if not isinstance(client.train, GraphSplit):
        raise ValueError(f"client {client.id} has no graph: use the source fedbolic.data.Graphs")
    return client.train.graph


def clustering(graph: Graph) -> float:
    """The mean clustering coefficient of the nodes; of a node with fewer than two neighbours 0.

    References:
        Watts and Strogatz (1998), doi:10.1038/30918.
    """
    ends = torch.zeros(len(graph), dtype=torch.float64)
    closed = ends.index_add(0, graph.edges[0], graph.triangles.double())
    pairs = (graph.degrees * (graph.degrees - 1)).double()
    return float((closed / pairs.clamp(min=1)).mean())


def heterogeneity(counts: Sequence[Tensor]) -> float:
    """The median over pairs of the Jensen-Shannon distance between histograms.

    Args:
        counts: A histogram for each client, none of zeros.
    """
    from scipy.spatial.distance import jensenshannon

    pairs = itertools.combinations([count.double().numpy() for count in counts], 2)
    return statistics.median([float(jensenshannon(p, q)) for p, q in pairs] or [0.0])


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *others = ("| " + " | ".join(row) + " |" for row in rows)
    return [head, "|" + " --- |" * len(rows[0]), *others]
