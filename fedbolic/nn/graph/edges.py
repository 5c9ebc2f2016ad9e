"""Edges and edge weights of a graph, in the formats that PyG layers accept."""

from typing import Any, Generic, TypeAlias, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.typing import Adj, OptTensor
from torch_geometric.utils import add_remaining_self_loops, is_sparse, scatter, to_edge_index
from typing_extensions import override

from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.layers.linear import Linear
from fedbolic.nn.layers.tangent_linear import TangentLinear

NodePoints: TypeAlias = (
    Float[Tensor, "n ambient"] | tuple[Float[Tensor, "n ambient"], Float[Tensor, "m ambient"]]
)
"""Points of all nodes; for a bipartite graph, points of the sources and points of the targets."""

NodeTangents: TypeAlias = (
    Float[Tensor, "n dim"] | tuple[Float[Tensor, "n dim"], Float[Tensor, "m dim"]]
)
"""Tangents at the origin of all nodes, or of sources and targets."""


def ends(x: NodePoints | NodeTangents) -> tuple[Tensor, Tensor]:
    """Points of the source nodes and of the target nodes; one and the same tensor if not bipartite.

    Raises:
        ValueError: If ``x`` does not hold one point per node.
    """
    sources, targets = x if isinstance(x, tuple) else (x, x)
    for points in (sources, targets):
        if points.ndim != 2:
            raise ValueError(
                f"x must have the shape (nodes, coordinates), got shape {tuple(points.shape)}: "
                "join many graphs into one, as PyG's Batch does"
            )
    return sources, targets


def weighted(
    adj: Adj, weight: OptTensor, num_nodes: int | None, *, normalize: bool, add_self_loops: bool
) -> tuple[Tensor, OptTensor]:
    """Edges and their weights in float64, with the weights ``None`` if all are 1.

    Args:
        adj: Edges of shape (2, edges), or the transposed adjacency matrix as a sparse tensor.
        weight: One number per edge; ``None`` for a sparse matrix, which holds its own weights.
        num_nodes: Number of nodes; ``None`` for a bipartite graph.
        normalize: See ``CentroidConv``.
        add_self_loops: See ``CentroidConv``.

    Raises:
        ValueError: If edges or weights have the wrong shape or dtype, a sparse matrix comes with
            ``weight``, or a bipartite graph with ``normalize`` or ``add_self_loops``.
    """
    if is_sparse(adj):
        if weight is not None:
            raise ValueError("edge_weight must be None for a sparse tensor, which has its own")
        rows, weight = to_edge_index(adj)
        edges = rows.flip(0)
    else:
        edges = _checked(adj, weight)
    weight = None if weight is None else weight.double()
    if num_nodes is None:
        if normalize or add_self_loops:
            raise ValueError(
                "a bipartite graph can have neither normalised weights nor self loops: make the "
                "layer with normalize=False, add_self_loops=False"
            )
        return edges, weight
    if add_self_loops:
        looped: Any = add_remaining_self_loops(edges, weight, 1.0, num_nodes)
        edges, weight = looped
    if normalize:
        normed: Any = gcn_norm(edges, weight, num_nodes, add_self_loops=False, dtype=torch.float64)
        edges, weight = normed
    return edges, weight


def _checked(edges: Adj, weight: OptTensor) -> Tensor:
    """Edges after a check of their shape and dtype and of the shape of their weights."""
    if not isinstance(edges, Tensor):
        raise ValueError(f"edge_index must be a tensor, got {type(edges).__name__}")
    if edges.ndim != 2 or len(edges) != 2 or edges.dtype != torch.int64:
        raise ValueError(
            f"edge_index must be int64 of shape (2, edges), got {edges.dtype} of shape "
            f"{tuple(edges.shape)}: its first row holds sources, its second targets"
        )
    if weight is not None and weight.shape != edges.shape[1:]:
        raise ValueError(
            f"edge_weight must have one number for each of the {edges.shape[1]} edges, got shape "
            f"{tuple(weight.shape)}"
        )
    return edges


def transposed(edges: Tensor, weight: OptTensor, num_targets: int, num_sources: int) -> Tensor:
    """Edge weights as a sparse matrix with one row per target node."""
    values = torch.ones_like(edges[0], dtype=torch.float64) if weight is None else weight
    matrix = torch.sparse_coo_tensor(
        edges.flip(0), values, (num_targets, num_sources), check_invariants=False
    )
    return matrix.coalesce().to_sparse_csr()


def edge_shares(target: Tensor, weight: OptTensor, x: Tensor) -> Tensor:
    """Edge weights divided by their sum over the edges to the same target; 0 if the sum is 0."""
    weight = torch.ones_like(target, dtype=x.dtype) if weight is None else weight.to(x.dtype)
    total = scatter(weight, target, dim_size=len(x))
    return weight / torch.where(total > 0, total, 1.0)[target]


LinearMap = TypeVar("LinearMap", bound=Linear | TangentLinear)


class GraphConvolution(MessagePassing, Generic[LinearMap]):
    """Base of the convolutions, with their linear map and the handling of edges."""

    def __init__(self, linear: LinearMap, *, normalize: bool, add_self_loops: bool) -> None:
        super().__init__(aggr="sum")
        self.linear: LinearMap = linear
        self.normalize, self.add_self_loops = normalize, add_self_loops

    @property
    def manifold(self) -> Lorentz | Poincare:
        """Space of the inputs at the current curvature."""
        return self.linear.manifold

    def read(
        self, x: NodePoints | NodeTangents, edge_index: Adj, edge_weight: OptTensor
    ) -> tuple[Tensor, Tensor, Tensor, OptTensor]:
        """Rows of the sources, rows of the targets, edges and edge weights.

        Raises:
            ValueError: If points, edges or weights have the wrong shape or dtype, or if the graph
                is bipartite and the layer normalises or adds self loops.
        """
        sources, targets = ends(x)
        edges, weight = weighted(
            edge_index,
            edge_weight,
            len(targets) if targets is sources else None,
            normalize=self.normalize,
            add_self_loops=self.add_self_loops,
        )
        return sources, targets, edges, weight

    @override  # PyG passes a hook the arguments that its signature names
    def message(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x_j: Tensor, edge_weight: OptTensor
    ) -> Tensor:
        return x_j if edge_weight is None else edge_weight.unsqueeze(-1) * x_j

    @override
    def extra_repr(self) -> str:
        return f"normalize={self.normalize}, add_self_loops={self.add_self_loops}"

    __repr__ = nn.Module.__repr__  # PyG's shows the numbers of channels only
