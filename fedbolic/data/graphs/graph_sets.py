"""Graph data sets: published, given by the caller, or generated."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core.check import at_least, rate
from fedbolic.core.reading import read_arrays
from fedbolic.core.rng import Rng
from fedbolic.data.contract.labelled import labels_from_array
from fedbolic.data.files.published_files import RemoteFile, locate
from fedbolic.data.graphs import planetoid
from fedbolic.data.graphs.graph import Graph, simple_edges
from fedbolic.data.graphs.node_roles import MASK_ROLES
from fedbolic.data.graphs.sparse_rows import sparse_rows, sparse_tensor

if TYPE_CHECKING:
    from torch_geometric.data import Data

SPARSE_BELOW = 0.1
"""Density of non-zero features below which they are stored as a sparse tensor.

A sparse product costs one lookup per non-zero entry, a dense product one multiplication per column,
and a multiplication is about ten times cheaper than a lookup.
"""

GRAPH_TENSORS = ("x", "edge_index", "y", *MASK_ROLES)
"""Names that PyG gives to the tensors that a graph is made from."""

AMAZON = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
"""Base URL of the Amazon co-purchase networks."""


class GraphSet(ABC):
    """A data set that is one graph with labelled nodes."""

    @abstractmethod
    def read(self, rng: Rng, root: Path | None, *, download: bool) -> Graph:
        """Read or generate the whole graph.

        Args:
            rng: Random stream; used by generated graphs only.
            root: As for :meth:`fedbolic.data.Dataset.read`.
            download: Likewise.

        Raises:
            FileNotFoundError: If a file is missing and may not be downloaded.
            ValueError: If nodes lack labels or features, or a file is damaged.
        """


@dataclass(frozen=True)
class Planetoid(GraphSet):
    """Citation networks with bags of words as features and the field of a paper as its label.

    The masks are those of the public split: 20 training nodes per class, 500 validation nodes and
    1000 test nodes.

    Args:
        name: Name of the network.

    References:
        Yang et al. (2016), arXiv:1603.08861.
    """

    name: Literal["Cora", "CiteSeer", "PubMed"] = "Cora"

    @override
    def read(self, rng: Rng, root: Path | None, *, download: bool) -> Graph:
        found = planetoid.read_planetoid(self.name, root, download=download)
        features, edges, labels, masks = found
        edges = simple_edges(edges, len(features))
        return Graph(compact_features(features), edges, labels, masks)


@dataclass(frozen=True)
class Amazon(GraphSet):
    """Amazon co-purchase networks: words of reviews as features, product categories as labels.

    Args:
        name: Name of the network.

    References:
        Shchur et al. (2018), arXiv:1811.05868.
    """

    name: Literal["Photo", "Computers"] = "Photo"

    @override
    def read(self, rng: Rng, root: Path | None, *, download: bool) -> Graph:
        file = f"amazon_electronics_{self.name.lower()}.npz"
        # no checksum is published for this file, whose arrays are read without running code
        published = RemoteFile(f"amazon/{self.name}/raw/{file}", None, (f"{AMAZON}/{file}",))
        (path,) = locate(published, root=root, download=download)
        arrays = read_arrays(path)
        words, links = (sparse_rows(arrays, name, path) for name in ("attr", "adj"))
        words.data = np.where(words.data > 0, np.float32(1), words.data)
        found = {
            "x": sparse_tensor(words),
            "edge_index": torch.from_numpy(np.stack(links.tocoo().coords)),
            "y": labels_from_array(arrays.get("labels", np.empty(0)), f"labels of {path}"),
        }
        try:
            return labelled_graph(found)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


@dataclass(frozen=True, eq=False)
class GivenGraph(GraphSet):
    """A graph given as PyG's ``Data``.

    Args:
        data: Graph with ``x``, ``edge_index`` and one label per node in ``y``; :meth:`read` raises
            the errors of :func:`from_data`.
    """

    data: "Data"

    @override
    def read(self, rng: Rng, root: Path | None, *, download: bool) -> Graph:
        return from_data(self.data)


@dataclass(frozen=True)
class BlockModel(GraphSet):
    """A generated stochastic block model with bags of words as features, for quick runs.

    Two nodes are connected with probability ``within`` if they have the same class and ``across``
    otherwise. Every class has its own part of the vocabulary; a node contains each of these words
    with probability ``topical`` and each other word with probability ``stray``.

    Args:
        num_nodes: Number of nodes, at least ``num_classes``.
        num_classes: Number of classes, at least 1; their sizes differ by at most 1.
        num_words: Size of the vocabulary and width of the features, at least ``num_classes``.
        within: Probability of an edge within a class, in [0, 1].
        across: Probability of an edge between classes, in [0, 1].
        topical: Probability of a word of the node's class, in [0, 1].
        stray: Probability of any other word, in [0, 1].

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
    """Convert PyG's ``Data`` to an undirected graph without self loops or repeated edges.

    Raises:
        ValueError: If :func:`labelled_graph` refuses the data's tensors.
    """
    return labelled_graph({name: getattr(data, name, None) for name in GRAPH_TENSORS})


def labelled_graph(found: Mapping[str, object]) -> Graph:
    """Convert tensors under PyG's names to an undirected graph without self loops.

    Args:
        found: Features ``x``, edges ``edge_index`` and labels ``y``; masks if there are any. Other
            names are ignored.

    Raises:
        ValueError: If there is no node, features or edges are missing or have another form, a
            feature is not finite, or ``y`` does not hold one integer label from 0 for every node.

    Example:
        >>> edges, y = torch.tensor([[0], [1]]), torch.tensor([0, 1])
        >>> labelled_graph({"x": torch.eye(2), "edge_index": edges, "y": y}).edges
        tensor([[0, 1],
                [1, 0]])
    """
    x, edges, y = (found.get(name) for name in ("x", "edge_index", "y"))
    if not isinstance(x, Tensor) or x.ndim != 2:
        raise ValueError("a graph needs features: x must be a tensor with one row per node")
    if not isinstance(edges, Tensor):
        raise ValueError("a graph needs edge_index of shape (2, edges)")
    if edges.shape[:-1] != (2,) or not _whole(edges) or edges.dtype == torch.bool:
        raise ValueError(
            f"edge_index must hold integers of shape (2, edges), got {edges.dtype} of shape "
            f"{tuple(edges.shape)}"
        )
    if not isinstance(y, Tensor) or y.shape != x.shape[:1] or not _whole(y):
        raise ValueError("a graph needs labels: y must have one integer per node")
    if not len(y):
        raise ValueError("a graph needs at least one node, got none")
    if y.min() < 0:
        raise ValueError(
            f"labels count from 0, got {int(y.min())}: leave out nodes without a label, as "
            "data.subgraph(data.y >= 0) does"
        )
    if x.is_complex():
        raise ValueError("features must be real numbers: x is complex")
    x = x.float()
    if not (x.coalesce().values() if x.is_sparse else x).isfinite().all():
        raise ValueError("features must be finite numbers: x contains NaN or infinity in float32")
    masks = {n: mask for n in MASK_ROLES if isinstance(mask := found.get(n), Tensor)}
    edges = simple_edges(edges.long(), len(x))
    return Graph(compact_features(x), edges, y.long(), masks)


def _whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def compact_features(features: Tensor) -> Tensor:
    """Features as a sparse tensor if their density is below :data:`SPARSE_BELOW`, else dense."""
    if features.is_sparse:
        features = features.coalesce()
        indices, values = features.indices(), features.values()
        filled = values != 0
        # a dense copy first would take memory for every zero
        if int(filled.sum()) >= SPARSE_BELOW * features.numel():
            return features.to_dense()
        return torch.sparse_coo_tensor(
            indices[:, filled],
            values[filled],
            features.shape,
            is_coalesced=True,
            check_invariants=True,
        )
    share = float((features != 0).float().mean()) if features.numel() else 1.0
    return features.to_sparse().coalesce() if share < SPARSE_BELOW else features
