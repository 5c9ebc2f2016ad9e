"""Hyperbolic graph convolutions built on PyG's ``MessagePassing``."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch_geometric.utils import is_sparse, spmm
from typing_extensions import override

from fedbolic.formulas.numerics import square
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.coordinates import hyperboloid_point, on_hyperboloid
from fedbolic.nn.functional.tangent import points_at
from fedbolic.nn.graph.edges import Adj, GraphConvolution, NodePoints, OptTensor, transposed
from fedbolic.nn.graph.hgcn import HGCN, HGCNConv
from fedbolic.nn.layers.linear import Linear

__all__ = ["HGCN", "CentroidConv", "HGCNConv"]


class CentroidConv(GraphConvolution[Linear]):
    r"""Graph convolution: a linear map, then the Lorentzian centroid of the neighbours.

    .. math:: y_j = \mathrm{Linear}(x_j), \quad
        z_i = \sum_{j \in N(i)} w_{ij} \, y_j, \quad
        x'_i = \frac{z_i}{\sqrt{-c \langle z_i, z_i \rangle}}

    on the hyperboloid. In the ball it is the corresponding point, the Einstein midpoint:

    .. math:: z_i = \sum_{j \in N(i)} w_{ij} \, \lambda_j \, y_j, \quad
        t_i = \sum_{j \in N(i)} w_{ij} \, (\lambda_j - 1), \quad
        x'_i = \frac{z_i}{t_i + \sqrt{t_i^2 - c \, |z_i|^2}}

    with :math:`\lambda_j = 2 / (1 - c \, |y_j|^2)`; in flat space (``c = 0``) the weighted mean.

    A centroid does not depend on the scale of its weights, so unit weights are equivalent to a
    row-normalised adjacency matrix. One ``propagate`` sums the points in float64, because the
    Minkowski length of a sum suffers cancellation far from the origin: from 8 radii on in float32,
    from 18 in float64. The result lies on the space in any case. A node without an incoming edge of
    positive weight gets :math:`x'_i = y_i`.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)`` of inputs and outputs; ``c`` may be a
            ``Curvature``, which layers may share.
        in_features: Dimensions of the input space, without time.
        out_features: Dimensions of the output space, without time.
        bias: Whether the linear map learns a bias.
        normalize: Whether to multiply edge weights by :math:`1 / \sqrt{d_i d_j}` as in a GCN, with
            :math:`d_i` the sum of the weights of the edges to :math:`i`.
        add_self_loops: Whether to add a self loop of weight 1 to each node without one.

    Shapes:
        Points ``(nodes, in_features)``, edges ``(2, edges)`` and weights ``(edges)`` to points
        ``(nodes, out_features)``; on the hyperboloid points have one more coordinate, time first.

    Raises:
        ValueError: If a number of features is below 1 or the space is refused.

    References:
        Chen et al. (2022), arXiv:2105.14686, for the centroid; Shimizu et al. (2021),
        arXiv:2006.08210, for that of the ball; Kipf and Welling (2017), arXiv:1609.02907, for the
        weights.

    Example:
        >>> layer, edges = CentroidConv(Lorentz(c=1.0), 3, 2), torch.tensor([[0, 1, 2], [1, 2, 3]])
        >>> layer(layer.manifold.origin(4, 4), edges).shape
        torch.Size([4, 3])
        >>> CentroidConv(Poincare(c=1.0), 3, 2)(torch.zeros(4, 3), edges).shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        manifold: Lorentz | Poincare,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        normalize: bool = True,
        add_self_loops: bool = True,
    ) -> None:
        linear = Linear(manifold, in_features, out_features, bias=bias)
        super().__init__(linear, normalize=normalize, add_self_loops=add_self_loops)

    @override
    def forward(
        self, x: NodePoints, edge_index: Adj, edge_weight: OptTensor = None
    ) -> Float[Tensor, "m ambient_out"]:
        """Map all points, then take the centroid of each node's neighbours.

        Args:
            x: One point per node; for a bipartite graph, the points of the sources and those of the
                targets, given to a layer that neither normalises nor adds self loops.
            edge_index: Sources and targets of the edges, or the transposed adjacency matrix as a
                sparse tensor, which is multiplied without a message per edge.
            edge_weight: One number per edge, 0 or more; ``None`` for a sparse tensor, which holds
                its own weights.

        Raises:
            ValueError: If points, edges or weights have the wrong shape or dtype, or if the graph
                is bipartite and the layer normalises or adds self loops.
        """
        sources, targets, edges, weight = self.read(x, edge_index, edge_weight)
        y = self.linear(sources)
        own = y if targets is sources else self.linear(targets)
        space = self.manifold
        if is_sparse(edge_index):
            edges = transposed(edges, weight, len(targets), len(sources))
        z = self.propagate(
            edges,
            x=functional.pad(_timed(space, y), (1, 0), value=1.0),
            edge_weight=weight,
            size=(len(sources), len(targets)),
        )
        centroid, reached = _centroid(space, z)
        return torch.where(reached, self.linear.rounded(centroid, y), own)

    @override
    def message_and_aggregate(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, adj_t: Adj, x: Tensor
    ) -> Tensor:
        return spmm(adj_t, x, reduce="sum")


def _timed(space: Lorentz | Poincare, x: Tensor) -> Tensor:
    """Time, in units of length on the hyperboloid and in radii for the ball, and space, float64."""
    if isinstance(space, Lorentz):
        return hyperboloid_point(space, x[:, 1:].double())
    return torch.cat(on_hyperboloid(space, x.double()), -1)


def _centroid(space: Lorentz | Poincare, z: Tensor) -> tuple[Tensor, Tensor]:
    """Centroids from weighted sums of points, and a mask of the sums with positive total weight.

    The first coordinate of ``z`` is the total weight, the others are the weighted sum.
    """
    total = z[:, :1]
    reached = total > 0
    mean = z[:, 1:] / torch.where(reached, total, 1.0)
    time, s = mean[:, :1], mean[:, 1:]
    square_time = time * time * (space.c if isinstance(space, Lorentz) else 1.0)
    # the mean of points is at least as long as each of them: a smaller value is rounding
    length = (square_time - space.c * square(s)).clamp(min=1).sqrt()
    return points_at(space, s / length), reached
