"""Graphs that somebody published, that are given, or that are generated."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.check import at_least, rate
from fedbolic.data import planetoid
from fedbolic.data.files import RemoteFile, locate
from fedbolic.data.graph import Graph, simple_edges
from fedbolic.rng import Rng

if TYPE_CHECKING:
    from torch_geometric.data import Data

SPARSE_BELOW = 0.1
"""Features with a smaller share of numbers that are not 0 are kept as a sparse tensor.

A row of a sparse product costs a look-up per number, of a dense one a multiplication per column,
which is about ten times as cheap.
"""

AMAZON = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
"""Where the networks of products are published."""


class GraphSet(ABC):
    """A graph with a label at every node."""

    @abstractmethod
    def read(self, rng: Rng, root: Path | None, *, download: bool) -> Graph:
        """The whole graph.

        Args:
            rng: The stream of a generated one.
            root: The folder to read from, and nothing else; ``None``: the folder named by
                ``FEDBOLIC_DATA`` if that is set, then the user's cache.
            download: Whether a file that is not there is downloaded into the cache; never with
                ``root``.

        Raises:
            FileNotFoundError: If a file is missing and may not be downloaded.
            ValueError: If the graph is none of labelled nodes with features.
        """


@dataclass(frozen=True)
class Planetoid(GraphSet):
    """A citation network: bags of words, and the field of every paper.

    Args:
        name: Which.

    References:
        Yang et al. (2016), arXiv:1603.08861.
    """

    name: Literal["Cora", "CiteSeer", "PubMed"] = "Cora"

    @override
    def read(self, rng: Rng, root: Path | None, *, download: bool) -> Graph:
        features, edges, labels = planetoid.read_planetoid(self.name, root, download=download)
        return Graph(compact_features(features), simple_edges(edges, len(features)), labels)


@dataclass(frozen=True)
class Amazon(GraphSet):
    """A network of products that are bought together: words of reviews, and the category.

    Args:
        name: Which.

    References:
        Shchur et al. (2018), arXiv:1811.05868.
    """

    name: Literal["Photo", "Computers"] = "Photo"

    @override
    def read(self, rng: Rng, root: Path | None, *, download: bool) -> Graph:
        from torch_geometric import io

        file = f"amazon_electronics_{self.name.lower()}.npz"
        # nobody states a checksum of this file; numpy reads its numbers without running code
        published = RemoteFile(f"amazon/{self.name}/raw/{file}", None, (f"{AMAZON}/{file}",))
        (path,) = locate(published, root=root, download=download)
        return from_data(io.read_npz(str(path), to_undirected=True))


@dataclass(frozen=True, eq=False)
class GivenGraph(GraphSet):
    """A PyG graph that the caller holds.

    Args:
        data: With ``x``, ``edge_index`` and one label per node in ``y``.

    Raises:
        ValueError: As for :func:`from_data`.
    """

    data: "Data"

    @override
    def read(self, rng: Rng, root: Path | None, *, download: bool) -> Graph:
        return from_data(self.data)


@dataclass(frozen=True)
class BlockModel(GraphSet):
    """A stochastic block model whose nodes have bags of words: generated, for quick runs.

    Two nodes of one class are joined with one rate, of different classes with another. A node has
    each word of its class's own share of the vocabulary with the rate ``topical``, and any other
    with ``stray``.

    Args:
        num_nodes: How many, at least ``num_classes``.
        num_classes: Of equal size up to 1, at least 1.
        num_words: Width of the features, at least ``num_classes``.
        within: Rate of edges within a class, in [0, 1].
        across: Rate of edges between classes, in [0, 1].
        topical: Rate of a word of the class, in [0, 1].
        stray: Rate of any other word, in [0, 1].

    References:
        Holland et al. (1983), doi:10.1016/0378-8733(83)90021-7.

    Example:
        >>> graph = BlockModel(num_nodes=60).read(Rng(0), None, download=False)
        >>> len(graph), tuple(graph.features.shape), graph.labels.unique().tolist()
        (60, (60, 64), [0, 1, 2, 3])
    """

    num_nodes: int = 240
    num_classes: int = 4
    num_words: int = 64
    within: float = 0.06
    across: float = 0.006
    topical: float = 0.15
    stray: float = 0.04

    def __post_init__(self) -> None:
        at_least(1, num_classes=self.num_classes)
        at_least(self.num_classes, num_nodes=self.num_nodes, num_words=self.num_words)
        rate(within=self.within, across=self.across, topical=self.topical, stray=self.stray)

    @override
    def read(self, rng: Rng, root: Path | None, *, download: bool) -> Graph:
        labels = torch.arange(self.num_nodes) % self.num_classes
        topics = torch.arange(self.num_words) % self.num_classes
        pairs = torch.rand(self.num_nodes, self.num_nodes, generator=rng.at("edges").generator())
        words = torch.rand(self.num_nodes, self.num_words, generator=rng.at("words").generator())
        rates = torch.where(labels[:, None] == labels, self.within, self.across)
        edges = (pairs < rates).triu(diagonal=1).nonzero().T
        own = labels[:, None] == topics
        bags = (words < torch.where(own, self.topical, self.stray)).float()
        return Graph(compact_features(bags), simple_edges(edges, self.num_nodes), labels)


def from_data(data: "Data") -> Graph:
    """The graph of PyG's ``Data``: undirected, without self loops and repeated edges.

    Raises:
        ValueError: If there are no features, one is no finite number, or there is not one label
            for every node, an integer from 0.
    """
    x, edges, y = data.x, data.edge_index, data.y
    if not isinstance(x, Tensor) or x.ndim != 2:
        raise ValueError("a graph needs features: x must be a tensor with one row per node")
    if not isinstance(edges, Tensor):
        raise ValueError("a graph needs edge_index of shape (2, edges)")
    if not isinstance(y, Tensor) or y.shape != x.shape[:1] or y.is_floating_point():
        raise ValueError("a graph needs labels: y must have one integer per node")
    if len(y) and y.min() < 0:
        raise ValueError(
            f"labels count from 0, got {int(y.min())}: leave out nodes without a label, as "
            "data.subgraph(data.y >= 0) does"
        )
    if not (x.to_dense() if x.is_sparse else x).isfinite().all():
        raise ValueError("features must be finite numbers: x has NaN or infinite ones")
    return Graph(compact_features(x.float()), simple_edges(edges, len(x)), y.long())


def compact_features(features: Tensor) -> Tensor:
    """The same numbers, as a sparse tensor if so few of them are not 0 that this is cheaper."""
    dense = features.to_dense() if features.is_sparse else features
    share = float((dense != 0).float().mean()) if dense.numel() else 1.0
    return dense.to_sparse().coalesce() if share < SPARSE_BELOW else dense
