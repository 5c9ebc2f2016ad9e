"""Hyperbolic graph convolutions, on PyG's ``MessagePassing``."""

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
    """Base of the convolutions: a linear map to points, edge handling, printing."""

    def __init__(
        self, linear: LorentzLinear | TangentLinear, *, normalize: bool, add_self_loops: bool
    ) -> None:
        super().__init__(aggr="sum")
        self.linear, self.normalize, self.add_self_loops = linear, normalize, add_self_loops

    @property
    def manifold(self) -> Lorentz:
        """The hyperboloid of the inputs at the present curvature."""
        return self.linear.manifold

    def _read(
        self, x: NodePoints, edge_index: Adj, edge_weight: OptTensor
    ) -> tuple[Tensor, Tensor, Tensor, OptTensor]:
        """Points of the sources and the targets, the edges, and their weights."""
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

    __repr__ = nn.Module.__repr__  # PyG's has numbers of channels only


class LorentzConv(_Convolution):
    r"""A graph convolution on the hyperboloid: a linear map, then the centroid of the neighbours.

    .. math:: y_j = \mathrm{LorentzLinear}(x_j), \quad
        z_i = \sum_{j \in N(i)} w_{ij} \, y_j, \quad
        x'_i = \frac{z_i}{\sqrt{-c \langle z_i, z_i \rangle}}

    A centroid does not see the scale of its weights, so edges that all count 1 are a row-normalised
    adjacency matrix. The points are summed in one ``propagate``, in float64: the Minkowski length
    of a sum cancels far out, in float32 from 8 radii on (in float64 from 18; the result stays on
    the hyperboloid even so). A node with no edge to it, or none of weight above 0, keeps its own
    :math:`y_i`.

    Args:
        in_features: Dimensions of the hyperboloid of the inputs, which have one coordinate more.
        out_features: Dimensions of the hyperboloid of the outputs.
        bias: Whether the linear map has a bias.
        normalize: Whether edges also weigh :math:`1 / \sqrt{d_i d_j}` as in a GCN, with
            :math:`d_i` the sum of the weights of the edges to :math:`i`.
        add_self_loops: Whether a node without an edge to itself gets one, of weight 1.
        curvature: Of inputs and outputs; layers may share a module.

    Raises:
        ValueError: If a number of features is below 1, or ``curvature`` is invalid.

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
        """The centroids of the neighbours, mapped.

        Args:
            x: One point per node. A bipartite graph gives a pair, to a layer that neither
                normalises nor adds self loops.
            edge_index: Sources and targets of the edges; or the transposed adjacency matrix as a
                sparse tensor, which is multiplied without a message per edge.
            edge_weight: One number per edge, 0 or more; a sparse tensor has its own.

        Raises:
            ValueError: If points, edges or weights have another shape or type, or a bipartite
                graph meets a layer that normalises or adds self loops.
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

    @override  # a hook of PyG is given what it names
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
    r"""A layer of the hyperbolic graph convolutional network, by means in tangent spaces.

    .. math::
        h_j &= \exp_{\hat x_j}(P_{o \to \hat x_j}(b)), \quad
            \hat x_j = \exp_o(W \log_o(x_j)) \\
        y_i &= \exp_{h_i} \Bigl(\sum_{j \in N(i)} w_{ij} \log_{h_i}(h_j)\Bigr), \quad
            \sum_{j \in N(i)} w_{ij} = 1 \\
        x'_i &= \exp'_o(\sigma(\log_o(y_i)))

    with :math:`\exp'` at the curvature of the outputs: tangents at the origin are the same for
    every curvature. A node that no edge reaches keeps its own :math:`h_i`.

    Departs from the paper: weights are those of the edges, over their sum for each node (as in the
    authors' code without attention), not learnt by attention.

    Args:
        in_features: Dimensions of the hyperboloid of the inputs, which have one coordinate more.
        out_features: Dimensions of the hyperboloid of the outputs.
        bias: Whether there is a :math:`b`.
        normalize: As of ``LorentzConv``, before weights are divided by their sum.
        add_self_loops: Whether a node without an edge to itself gets one, of weight 1.
        local: Whether the mean is taken in the tangent space at the node itself, as in the paper;
            else in that at the origin, which costs less and is the authors' default.
        activation: What maps tangents at the origin, such as ``torch.relu``; ``None``: the
            identity.
        curvature: Of the inputs; layers may share a module.
        out_curvature: Of the outputs; by default that of the inputs.

    Raises:
        ValueError: If a number of features is below 1, or a curvature is invalid.

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
        """The hyperboloid of the outputs at the present curvature."""
        return self.manifold if self.out is None else self.out.manifold

    @override
    def forward(
        self, x: NodePoints, edge_index: Adj, edge_weight: OptTensor = None
    ) -> Float[Tensor, "m ambient_out"]:
        """The means of the neighbours, mapped; arguments and errors are those of ``LorentzConv``.

        A sparse tensor is read as edges: a mean in the tangent space at a node has a message per
        edge.
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
    """The points on the rays through sums, whose first coordinate is the sum of the weights.

    And for which of them that is above 0.
    """
    total = z[:, :1]
    reached = total > 0
    mean = z[:, 1:] / torch.where(reached, total, 1.0)
    time, s = mean[:, :1], mean[:, 1:]
    # a mean of points of the hyperboloid has at least their length: less is rounding
    length = (space.c * (time * time - square(s))).clamp(min=1).sqrt()
    return hyperboloid_point(space, s / length), reached
