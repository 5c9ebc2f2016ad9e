"""Hyperbolic graph convolutions built on PyG's ``MessagePassing``."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import MessagePassing
from torch_geometric.typing import Adj, OptTensor
from torch_geometric.utils import is_sparse, scatter, spmm
from typing_extensions import override

from fedbolic.manifolds import Curvature, Lorentz
from fedbolic.manifolds.numerics import square
from fedbolic.nn.coordinates import from_tangent, hyperboloid_point, to_tangent
from fedbolic.nn.edges import NodePoints, edge_shares, ends, transposed, weighted
from fedbolic.nn.linear import LorentzLinear
from fedbolic.nn.space import HyperbolicModule, wide
from fedbolic.nn.tangent_linear import TangentLinear


class _Convolution(MessagePassing):
    """Base of the convolutions, with their linear map and the handling of edges."""

    def __init__(
        self, linear: LorentzLinear | TangentLinear, *, normalize: bool, add_self_loops: bool
    ) -> None:
        super().__init__(aggr="sum")
        self.linear, self.normalize, self.add_self_loops = linear, normalize, add_self_loops

    @property
    def manifold(self) -> Lorentz:
        """Hyperboloid of the inputs at the current curvature."""
        return self.linear.manifold

    def _read(
        self, x: NodePoints, edge_index: Adj, edge_weight: OptTensor
    ) -> tuple[Tensor, Tensor, Tensor, OptTensor]:
        """Points of the sources, points of the targets, edges and edge weights."""
        sources, targets = ends(x)
        edges, weight = weighted(
            edge_index,
            edge_weight,
            len(targets) if targets is sources else None,
            normalize=self.normalize,
            add_self_loops=self.add_self_loops,
        )
        return sources, targets, edges, weight

    @override
    def extra_repr(self) -> str:
        return f"normalize={self.normalize}, add_self_loops={self.add_self_loops}"

    __repr__ = nn.Module.__repr__  # PyG's shows the numbers of channels only


class LorentzConv(_Convolution):
    r"""Graph convolution on the hyperboloid: a linear map, then the centroid of the neighbours.

    .. math:: y_j = \mathrm{LorentzLinear}(x_j), \quad
        z_i = \sum_{j \in N(i)} w_{ij} \, y_j, \quad
        x'_i = \frac{z_i}{\sqrt{-c \langle z_i, z_i \rangle}}

    A centroid does not depend on the scale of its weights, so unit weights are equivalent to a
    row-normalised adjacency matrix. One ``propagate`` sums the points in float64, because the
    Minkowski length of a sum suffers cancellation far from the origin: from 8 radii on in float32,
    from 18 in float64. The result lies on the hyperboloid in any case. A node without an incoming
    edge of positive weight gets :math:`x'_i = y_i`.

    Args:
        in_features: Dimensions of the input space; an input has one more coordinate, time.
        out_features: Dimensions of the output space.
        bias: Whether the linear map learns a bias.
        normalize: Whether to multiply edge weights by :math:`1 / \sqrt{d_i d_j}` as in a GCN, with
            :math:`d_i` the sum of the weights of the edges to :math:`i`.
        add_self_loops: Whether to add a self loop of weight 1 to each node without one.
        curvature: Minus the sectional curvature of inputs and outputs, a number or a ``Curvature``,
            which layers may share.

    Raises:
        ValueError: If a number of features is below 1 or ``curvature`` is invalid.

    References:
        Chen et al. (2022), arXiv:2105.14686, for the centroid; Kipf and Welling (2017),
        arXiv:1609.02907, for the weights.

    Example:
        >>> layer = LorentzConv(3, 2)
        >>> x = layer.manifold.origin(4, 4)
        >>> layer(x, torch.tensor([[0, 1, 2], [1, 2, 3]])).shape
        torch.Size([4, 3])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        normalize: bool = True,
        add_self_loops: bool = True,
        curvature: Curvature | float = 1.0,
    ) -> None:
        linear = LorentzLinear(in_features, out_features, bias=bias, curvature=curvature)
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
        sources, targets, edges, weight = self._read(x, edge_index, edge_weight)
        y = self.linear(sources)
        own = y if targets is sources else self.linear(targets)
        points = hyperboloid_point(self.manifold, y[:, 1:].double())
        if is_sparse(edge_index):
            edges = transposed(edges, weight, len(targets), len(sources))
        z = self.propagate(
            edges,
            x=functional.pad(points, (1, 0), value=1.0),
            edge_weight=weight,
            size=(len(sources), len(targets)),
        )
        centroid, reached = _centroid(self.manifold, z)
        return torch.where(reached, self.linear.rounded(centroid, y), own)

    @override  # PyG passes a hook the arguments that its signature names
    def message(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x_j: Tensor, edge_weight: OptTensor
    ) -> Tensor:
        return x_j if edge_weight is None else edge_weight.unsqueeze(-1) * x_j

    @override
    def message_and_aggregate(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, adj_t: Adj, x: Tensor
    ) -> Tensor:
        return spmm(adj_t, x, reduce="sum")


class HGCNConv(_Convolution):
    r"""Layer of the hyperbolic graph convolutional network: mean aggregation in tangent spaces.

    .. math::
        h_j &= \exp_{\hat x_j}(P_{o \to \hat x_j}(b)), \quad
            \hat x_j = \exp_o(W \log_o(x_j)) \\
        y_i &= \exp_{h_i} \Bigl(\sum_{j \in N(i)} w_{ij} \log_{h_i}(h_j)\Bigr), \quad
            \sum_{j \in N(i)} w_{ij} = 1 \\
        x'_i &= \exp'_o(\sigma(\log_o(y_i)))

    with :math:`\exp'` at the curvature of the outputs; tangents at the origin are the same for
    every curvature. A node without an incoming edge of positive weight has :math:`y_i = h_i`.

    Departure from the paper: the aggregation weights are edge weights divided by their sum for each
    node, as in the authors' code without attention. They are not learnt.

    Args:
        in_features: Dimensions of the input space; an input has one more coordinate, time.
        out_features: Dimensions of the output space.
        bias: Whether to learn the bias :math:`b`.
        normalize: As in ``LorentzConv``, before the weights are divided by their sum.
        add_self_loops: Whether to add a self loop of weight 1 to each node without one.
        local: Whether to take the mean in the tangent space at the node itself, as in the paper, or
            at the origin, which costs less and is the default of the authors' code.
        activation: Function :math:`\sigma` of tangents at the origin, such as ``torch.relu``;
            ``None`` for the identity.
        curvature: Minus the sectional curvature of the inputs, a number or a ``Curvature``, which
            layers may share.
        out_curvature: Minus the sectional curvature of the outputs, by default that of the inputs.

    Raises:
        ValueError: If a number of features is below 1 or a curvature is invalid.

    References:
        Chami et al. (2019), arXiv:1910.12933.

    Example:
        >>> layer = HGCNConv(3, 2, activation=torch.relu, out_curvature=0.5)
        >>> x = layer.manifold.origin(4, 4)
        >>> layer.out_manifold.contains(layer(x, torch.tensor([[0, 1, 2], [1, 2, 3]])))
        tensor([True, True, True, True])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        normalize: bool = False,
        add_self_loops: bool = True,
        local: bool = True,
        activation: Callable[[Tensor], Tensor] | None = None,
        curvature: Curvature | float = 1.0,
        out_curvature: Curvature | float | None = None,
    ) -> None:
        linear = TangentLinear(in_features, out_features, bias=bias, curvature=curvature)
        super().__init__(linear, normalize=normalize, add_self_loops=add_self_loops)
        self.local, self.activation = local, activation
        self.out = None if out_curvature is None else HyperbolicModule(Lorentz, out_curvature)

    @property
    def out_manifold(self) -> Lorentz:
        """Hyperboloid of the outputs at the current curvature."""
        return self.manifold if self.out is None else self.out.manifold

    @override
    def forward(
        self, x: NodePoints, edge_index: Adj, edge_weight: OptTensor = None
    ) -> Float[Tensor, "m ambient_out"]:
        """Map all points, then take the mean of each node's neighbours.

        Arguments and errors are those of ``LorentzConv``. A sparse tensor is converted to edges,
        because a mean in the tangent space at a node needs a message per edge.
        """
        sources, targets, edges, weight = self._read(x, edge_index, edge_weight)
        space, h = self.manifold, wide(self.linear(sources))
        own = h if targets is sources else wide(self.linear(targets))
        weight = edge_shares(edges[1], weight, own)
        size = (len(sources), len(targets))
        if self.local:
            mean = self.propagate(edges, x=(h, own), edge_weight=weight, size=size)
            y = space.expmap(own, mean)
        else:
            tangents = (space.logmap0(h), space.logmap0(own))
            mean = self.propagate(edges, x=tangents, edge_weight=weight, size=size)
            reached = scatter(weight, edges[1], dim_size=len(targets)).unsqueeze(-1) > 0
            y = torch.where(reached, space.expmap0(mean), own)
        last = self.linear if self.out is None else self.out
        if self.activation is not None or self.out is not None:
            v = to_tangent(space, y)
            y = from_tangent(last.manifold, v if self.activation is None else self.activation(v))
        return last.rounded(y, sources, self.linear.weight)

    @override
    def message(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x_i: Tensor, x_j: Tensor, edge_weight: Tensor
    ) -> Tensor:
        toward = self.manifold.logmap(x_i, x_j) if self.local else x_j
        return edge_weight.unsqueeze(-1) * toward

    @override
    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, local={self.local}"


def _centroid(space: Lorentz, z: Tensor) -> tuple[Tensor, Tensor]:
    """Centroids from weighted sums of points, and a mask of the sums with positive total weight.

    The first coordinate of ``z`` is the total weight, the others are the weighted sum.
    """
    total = z[:, :1]
    reached = total > 0
    mean = z[:, 1:] / torch.where(reached, total, 1.0)
    time, s = mean[:, :1], mean[:, 1:]
    # the mean of points is at least as long as each of them: a smaller value is rounding
    length = (space.c * (time * time - square(s))).clamp(min=1).sqrt()
    return hyperboloid_point(space, s / length), reached
