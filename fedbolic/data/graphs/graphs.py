"""Federated node classification on one graph partitioned among clients."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.core.check import one_of
from fedbolic.core.rng import Rng
from fedbolic.data.contract.client import HOLDOUT, Client, FederatedData, Meta
from fedbolic.data.contract.partition import Partition
from fedbolic.data.contract.source import Source
from fedbolic.data.graphs.graph import Graph, GraphSplit
from fedbolic.data.graphs.graph_sets import BlockModel, GraphSet
from fedbolic.data.graphs.metis import GraphPartition, Metis, parts_of
from fedbolic.data.graphs.node_roles import (
    TEST,
    TRAIN,
    NodeSplit,
    check_split,
    masked_roles,
    node_splits,
    random_roles,
)

Scale = Literal["none", "l1", "l2", "standardised"]


@dataclass(frozen=True)
class Graphs(Source):
    """Node classification on one graph whose nodes are partitioned among clients.

    A client holds the subgraph induced by its nodes; edges between clients are lost. Nodes are
    split into training, validation and test nodes before the graph is partitioned: uniformly at
    random without stratification, or by the graph's own masks. A client may therefore lack classes,
    or have no validation or test nodes and no score on them. The server's own test set is the whole
    graph with all of its test nodes.

    Args:
        graph: Graph data set to read.
        partition: Partition of the nodes among clients. A partition by labels, such as ``IID`` or
            ``Dirichlet``, ignores the edges.
        train_rate: Fraction of the nodes used for training, in (0, 1); for a random split.
        test_rate: Fraction of the nodes used for testing, in [0, 1); the rest is for validation.
        scale: Scaling of the features of the whole graph, as in :func:`scaled`: rows of norm 1
            (``l1`` or ``l2``), ``standardised`` columns, or ``none``.
        largest_component: Whether to keep only the largest connected component.
        root: Folder to read from, in the layout of PyG; nothing is downloaded then. By default,
            the folder named by the environment variable FEDBOLIC_DATA, then the user's cache.
        download: Whether to download missing files into the cache.
        split: ``random`` to draw the nodes of the splits by the rates; ``masks`` to use the graph's
            ``train_mask``, ``val_mask`` and ``test_mask`` instead. Nodes in no mask are context.

    Raises:
        ValueError: If a rate is out of range, the rates sum to more than 1, or the scale is
            unknown.

    References:
        Baek et al. (2023), Sec. 5.1, arXiv:2206.10206, for the protocol.

    Example:
        >>> from fedbolic.data.contract.partition import IID
        >>> data = Graphs(partition=IID(4), largest_component=False).load(Rng(0))
        >>> data.meta.num_clients, sum(data.sizes), len(data.holdout.test)
        (4, 48, 96)
    """

    graph: GraphSet = field(default_factory=BlockModel)
    partition: GraphPartition | Partition = field(default_factory=Metis)
    train_rate: float = 0.2
    test_rate: float = 0.4
    scale: Scale = "l1"
    largest_component: bool = True
    root: Path | None = None
    download: bool = True
    split: NodeSplit = "random"

    def __post_init__(self) -> None:
        one_of(get_args(Scale), scale=self.scale)
        check_split(self.split, train_rate=self.train_rate, test_rate=self.test_rate)

    @override
    def load(self, rng: Rng) -> FederatedData:
        whole = self.graph.read(rng.at("graph"), self.root, download=self.download)
        roles = masked_roles(whole, str(self.graph)) if self.split == "masks" else None
        if self.largest_component:
            nodes = largest_component(whole)
            whole = whole.induced(nodes)
            roles = None if roles is None else roles[nodes]
        whole = Graph(scaled(whole.features, self.scale), whole.edges, whole.labels)
        if roles is None:
            rates = {"train_rate": self.train_rate, "test_rate": self.test_rate}
            roles = random_roles(len(whole), rng.at("split"), **rates)
        parts = parts_of(self.partition, whole, rng.at("partition"))
        splits = [_splits(whole, nodes, roles, client_id) for client_id, nodes in enumerate(parts)]
        meta = Meta(
            num_classes=int(whole.labels.max()) + 1,
            input_shape=tuple(whole.features.shape[1:]),
            num_clients=len(splits),
        )
        clients = tuple(Client(client_id, *of, meta=meta) for client_id, of in enumerate(splits))
        empty = GraphSplit(whole, torch.arange(0))
        test = GraphSplit(whole, (roles == TEST).nonzero().flatten())
        holdout = Client(HOLDOUT, empty, empty, test, meta) if len(test) else None
        return FederatedData(clients, meta, holdout)


def _splits(
    whole: Graph, nodes: Tensor, roles: Tensor, client_id: int
) -> tuple[GraphSplit, GraphSplit, GraphSplit]:
    """A client's training, validation and test nodes in the subgraph induced by its nodes."""
    own = roles[nodes]
    if not bool((own == TRAIN).any()):
        raise ValueError(
            f"client {client_id} has {len(nodes)} nodes but no training node: use fewer clients, "
            "a larger train_rate or another partition"
        )
    return node_splits(whole.induced(nodes), own)


def largest_component(graph: Graph) -> Int64[Tensor, " some"]:
    """Nodes of the largest connected component, ascending; the first one in case of a tie.

    Example:
        >>> edges = torch.tensor([[1, 2], [2, 1]])
        >>> largest_component(Graph(torch.eye(3), edges, torch.zeros(3, dtype=torch.long)))
        tensor([1, 2])
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    rows, columns = graph.edges.numpy()
    adjacency = csr_array(([1] * len(rows), (rows, columns)), shape=(len(graph), len(graph)))
    _, component = connected_components(adjacency, directed=False)
    component = torch.as_tensor(component, dtype=torch.int64)
    return (component == component.bincount().argmax()).nonzero().flatten()


def scaled(features: Float[Tensor, "n width"], scale: Scale) -> Float[Tensor, "n width"]:
    """Scale rows to norm 1, or columns to mean 0 and variance 1.

    Rows of zeros and constant columns become zero. Sparse features stay sparse under ``l1`` and
    ``l2``; ``standardised`` ones are dense. The statistics are those of all rows, as node
    classification sees the features of all nodes.

    Args:
        features: One row per node.
        scale: Norm of the rows (``l1`` or ``l2``), ``standardised``, or ``none``.

    Example:
        >>> scaled(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), "l2")
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
        >>> scaled(torch.tensor([[3.0, 4.0], [1.0, 4.0]]), "standardised")
        tensor([[ 1.,  0.],
                [-1.,  0.]])
    """
    if scale == "none":
        return features
    if scale == "standardised":
        return _standardised(features.to_dense() if features.is_sparse else features)
    power = 1 if scale == "l1" else 2
    if not features.is_sparse:
        norm = features.norm(p=power, dim=1, keepdim=True)
        return features / torch.where(norm > 0, norm, 1.0)
    index, values = features.indices(), features.values()
    sums = torch.zeros(len(features), dtype=values.dtype, device=values.device)
    norm = sums.index_add(0, index[0], values.abs() ** power) ** (1 / power)
    values = values / norm[index[0]]  # an empty row has no entry, so its norm of 0 is not used
    return torch.sparse_coo_tensor(
        index, values, features.shape, is_coalesced=True, check_invariants=False
    )


def _standardised(features: Tensor) -> Tensor:
    deviation, mean = torch.std_mean(features, dim=0, correction=0)
    constant = features.amin(dim=0) == features.amax(dim=0)  # rounding may leave a deviation
    return (features - mean).masked_fill(constant, 0) / torch.where(constant, 1.0, deviation)
