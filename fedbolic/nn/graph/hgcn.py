"""The hyperbolic graph convolutional network, computed in the tangent space at the origin."""

import itertools
from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedbolic.core import check
from fedbolic.manifolds import Curvature, Lorentz, Poincare
from fedbolic.nn.functional.coordinates import from_tangent, to_tangent
from fedbolic.nn.functional.space import HyperbolicModule, wide
from fedbolic.nn.functional.tangent import points_to_tangents, tangents_to_points
from fedbolic.nn.graph.edges import (
    Adj,
    GraphConvolution,
    NodePoints,
    NodeTangents,
    OptTensor,
    edge_shares,
    ends,
    scatter,
)
from fedbolic.nn.layers.dropout import Dropout
from fedbolic.nn.layers.tangent_linear import TangentLinear

EdgeScore: TypeAlias = Literal["softmax", "sigmoid"]
"""Weights of edges from the scores of attention."""


class HGCNConv(GraphConvolution[TangentLinear]):
    r"""Layer of the hyperbolic graph convolutional network: mean aggregation in tangent spaces.

    .. math::
        h_j &= \exp_{\hat x_j}(P_{o \to \hat x_j}(b)), \quad
            \hat x_j = \exp_o(W \log_o(x_j)) \\
        y_i &= \exp_{h_i} \Bigl(\sum_{j \in N(i)} w_{ij} \log_{h_i}(h_j)\Bigr), \quad
            \sum_{j \in N(i)} w_{ij} = 1 \\
        x'_i &= \exp'_o(\sigma(\log_o(y_i)))

    with :math:`\exp'` at the curvature of the outputs; tangents at the origin are the same for
    every curvature and in both models. A node without an incoming edge of positive weight has
    :math:`y_i = h_i`. With ``local=False`` the mean is taken at the origin: :math:`\log_o y_i =
    \sum_j w_{ij} \log_o h_j`. Logarithms of exponentials at the origin are not computed, so such a
    layer takes one logarithm and one exponential map, and between the layers of an ``HGCN`` none.

    Without attention the weights are edge weights divided by their sum for each node. Attention
    scores an edge by :math:`e_{ij} = a \cdot (\log_o h_i \,\|\, \log_o h_j) + a_0`. With
    ``softmax``, edge weights are multiplied by :math:`\exp e_{ij}` before the division, as in the
    paper; with ``sigmoid``, by the logistic function of the score after it, as in the authors'
    code, so that the weights of a node sum to less than 1.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)`` of the inputs; ``c`` may be a ``Curvature``,
            which layers may share. Both give the same network.
        in_features: Dimensions of the input space, without time.
        out_features: Dimensions of the output space, without time.
        bias: Whether to learn the bias :math:`b`.
        normalize: As in ``CentroidConv``, before the weights are divided by their sum.
        add_self_loops: Whether to add a self loop of weight 1 to each node without one.
        local: Whether to take the mean in the tangent space at the node itself, as in the paper, or
            at the origin, which costs less and is the default of the authors' code.
        attention: ``softmax``, ``sigmoid`` or ``None``.
        drop_connect: Probability that a weight of :math:`W` is dropped in training, in [0, 1); the
            dropout of the authors' code.
        edge_dropout: Probability that a weight :math:`w_{ij}` is dropped in training, in [0, 1).
        activation: Function :math:`\sigma` of tangents at the origin, such as ``torch.relu``;
            ``None`` for the identity.
        out_manifold: Space of the outputs, of the same model; by default that of the inputs.

    Shapes:
        Points ``(nodes, in_features)``, edges ``(2, edges)`` and weights ``(edges)`` to points
        ``(nodes, out_features)``; on the hyperboloid points have one more coordinate, time first.

    Raises:
        ValueError: If a number is out of range, ``attention`` is unknown or a space is refused.

    References:
        Chami et al. (2019), arXiv:1910.12933; Wan et al. (2013), PMLR 28, for DropConnect;
        Veličković et al. (2018), arXiv:1710.10903, for dropout of edge weights.

    Example:
        >>> layer = HGCNConv(Lorentz(c=1.0), 3, 2, out_manifold=Lorentz(c=0.5))
        >>> x = layer.manifold.origin(4, 4)
        >>> layer.out_manifold.contains(layer(x, torch.tensor([[0, 1, 2], [1, 2, 3]])))
        tensor([True, True, True, True])
    """

    def __init__(
        self,
        manifold: Lorentz | Poincare,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        normalize: bool = False,
        add_self_loops: bool = True,
        local: bool = True,
        attention: EdgeScore | None = None,
        drop_connect: float = 0.0,
        edge_dropout: float = 0.0,
        activation: Callable[[Tensor], Tensor] | None = None,
        out_manifold: Lorentz | Poincare | None = None,
    ) -> None:
        linear = TangentLinear(
            manifold, in_features, out_features, bias=bias, drop_connect=drop_connect
        )
        super().__init__(linear, normalize=normalize, add_self_loops=add_self_loops)
        self.local, self.activation = local, activation
        self.attention = None if attention is None else EdgeAttention(out_features, attention)
        self.edge_dropout = Dropout(edge_dropout)
        self.out = None if out_manifold is None else HyperbolicModule(out_manifold)
        if self.out is not None and self.out.model is not linear.model:
            raise ValueError(
                f"out_manifold must be {linear.model.__name__} as manifold is, got {out_manifold}"
            )

    @property
    def out_manifold(self) -> Lorentz | Poincare:
        """Space of the outputs at the current curvature."""
        return self.manifold if self.out is None else self.out.manifold

    @override
    def forward(
        self, x: NodePoints, edge_index: Adj, edge_weight: OptTensor = None
    ) -> Float[Tensor, "m ambient_out"]:
        """Map all points, then take the mean of each node's neighbours.

        Arguments and errors are those of ``CentroidConv``. A sparse tensor is converted to edges.
        """
        v = self.logarithm(x)
        return self.exponential(self.tangents(v, edge_index, edge_weight), x)

    def tangents(
        self, v: NodeTangents, edge_index: Adj, edge_weight: OptTensor = None
    ) -> Float[Tensor, "m out"]:
        """The layer from tangents to tangents at the origin, in float32 or float64.

        Args:
            v: One tangent per node, as long as the distance of its point from the origin.
            edge_index: As in ``CentroidConv``.
            edge_weight: As in ``CentroidConv``.
        """
        sources, targets, edges, weight = self.read(v, edge_index, edge_weight)
        h = self.linear.tangents(sources)
        own = h if targets is sources else self.linear.tangents(targets)
        y = (
            self._local_mean(h, own, edges, weight)
            if self.local
            else self._mean(h, own, edges, weight)
        )
        return y if self.activation is None else self.activation(y)

    def logarithm(self, x: NodePoints) -> NodeTangents:
        """Tangents at the origin of the inputs, after a check."""
        sources, targets = ends(x)
        for points in (sources,) if targets is sources else (sources, targets):
            self.linear.check(points, self.linear.in_features, self.linear.weight)
        v = points_to_tangents(self.manifold, sources)
        return v if targets is sources else (v, points_to_tangents(self.manifold, targets))

    def exponential(self, v: Tensor, x: NodePoints) -> Tensor:
        """Points of tangents at the origin, in the dtype for the inputs ``x``."""
        last = self.linear if self.out is None else self.out
        return last.rounded(tangents_to_points(last.manifold, v), ends(x)[0], self.linear.weight)

    def _mean(self, h: Tensor, own: Tensor, edges: Tensor, weight: OptTensor) -> Tensor:
        """Mean at the origin of the neighbours of each node, as a tangent."""
        size, target = (len(h), len(own)), edges[1]
        if weight is None and self.attention is None and self.edge_dropout.p == 0:
            ones = torch.ones_like(target, dtype=h.dtype)
            degree = scatter(ones, target, dim_size=len(own)).unsqueeze(-1)
            total = self.propagate(edges, x=(h, own), edge_weight=None, size=size)
            mean = total / degree.clamp(min=1)
            return mean if self.add_self_loops else torch.where(degree > 0, mean, own)
        shares, reached = self._shares(h, own, edges, weight)
        mean = self.propagate(edges, x=(h, own), edge_weight=shares, size=size)
        return torch.where(reached, mean, own)

    def _local_mean(self, h: Tensor, own: Tensor, edges: Tensor, weight: OptTensor) -> Tensor:
        """Mean in the tangent space at each node, as a tangent at the origin."""
        space, (source, target) = self.manifold, edges
        shares, _ = self._shares(h, own, edges, weight)
        points = from_tangent(space, h)
        centre = points if own is h else from_tangent(space, own)
        toward = space.logmap(centre.index_select(0, target), points.index_select(0, source))
        mean = scatter(shares.unsqueeze(-1) * toward, target, dim_size=len(own))
        return to_tangent(space, space.expmap(centre, mean))

    def _shares(
        self, h: Tensor, own: Tensor, edges: Tensor, weight: OptTensor
    ) -> tuple[Tensor, Tensor]:
        """Weights of the edges in the mean, and a mask of the nodes that any edge reaches."""
        if self.attention is None:
            shares = edge_shares(edges[1], weight, own)
            reached = scatter(shares, edges[1], dim_size=len(own)) > 0
        else:
            shares, reached = self.attention(h, own, edges, weight)
        return self.edge_dropout(shares), reached.unsqueeze(-1)

    @override
    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, local={self.local}"


class EdgeAttention(nn.Module):
    r"""Weights of the edges of ``HGCNConv`` from the tangents at their ends.

    Parameters start as those of ``nn.Linear`` on both tangents.

    Args:
        features: Dimensions of the tangents.
        score: ``softmax`` or ``sigmoid``.
    """

    def __init__(self, features: int, score: EdgeScore) -> None:
        super().__init__()
        check.one_of(("softmax", "sigmoid"), attention=score)
        self.score = score
        self.linear = nn.Linear(2 * features, 1)

    @override
    def forward(
        self, h: Tensor, own: Tensor, edges: Tensor, weight: OptTensor
    ) -> tuple[Tensor, Tensor]:
        """Weights of the edges, and a mask of the targets with an edge of positive weight.

        Args:
            h: Tangents of the sources.
            own: Tangents of the targets.
            edges: Sources and targets of the edges.
            weight: One number of 0 or more per edge; ``None`` for 1.
        """
        source, target = edges
        at_target, at_source = self.linear.weight.chunk(2, dim=1)
        of_target = functional.linear(own.to(at_target.dtype), at_target, self.linear.bias)
        of_source = functional.linear(h.to(at_source.dtype), at_source)
        score = (wide(of_target)[target] + wide(of_source)[source]).squeeze(-1)
        if self.score == "softmax":
            top = scatter(score.detach(), target, dim_size=len(own), reduce="max")
            factor = (score - top[target]).exp()
            shares = edge_shares(target, factor if weight is None else factor * weight, own)
            return shares, scatter(shares, target, dim_size=len(own)) > 0
        shares = edge_shares(target, weight, own)
        return shares * score.sigmoid(), scatter(shares, target, dim_size=len(own)) > 0

    @override
    def extra_repr(self) -> str:
        return f"score={self.score}"


class HGCN(nn.Module):
    """Layers of ``HGCNConv`` that hand tangents at the origin on, from points to points.

    The results are those of calling one layer after the other, without the exponential map and the
    logarithm between them.

    Args:
        *layers: At least one layer; each takes the space that the one before gives.

    Shapes:
        Points of the first layer's inputs ``(nodes, coordinates)``, with edges and weights as in
        ``HGCNConv``, to points of the last layer's outputs.

    Raises:
        ValueError: If there is no layer, or the space of a layer is not the output space of the
            layer before.

    References:
        Chami et al. (2019), arXiv:1910.12933.

    Example:
        >>> space = Lorentz(c=1.0)
        >>> first = HGCNConv(space, 3, 4, local=False, activation=torch.relu)
        >>> network = HGCN(first, HGCNConv(space, 4, 2, local=False))
        >>> network(network.manifold.origin(4, 4), torch.tensor([[0, 1, 2], [1, 2, 3]])).shape
        torch.Size([4, 3])
    """

    def __init__(self, *layers: HGCNConv) -> None:
        super().__init__()
        if not layers:
            raise ValueError("HGCN needs a layer, got none")
        for number, (one, other) in enumerate(itertools.pairwise(layers), 2):
            given = _output(one)
            taken = other.linear.model, other.linear.in_features, other.linear.curvature
            if given != taken:
                raise ValueError(
                    f"layer {number} must take what the layer before gives, {_shown(*given)}, got "
                    f"{_shown(*taken)}: share one Curvature, or set out_manifold before it"
                )
        self.layers = nn.ModuleList(layers)

    @property
    def manifold(self) -> Lorentz | Poincare:
        """Space of the inputs at the current curvature."""
        return self._stack[0].manifold

    @property
    def out_manifold(self) -> Lorentz | Poincare:
        """Space of the outputs at the current curvature."""
        return self._stack[-1].out_manifold

    @property
    def _stack(self) -> list[HGCNConv]:
        return [layer for layer in self.layers if isinstance(layer, HGCNConv)]

    @override
    def forward(
        self, x: Float[Tensor, "n ambient"], edge_index: Adj, edge_weight: OptTensor = None
    ) -> Float[Tensor, "n ambient_out"]:
        """Outputs of the last layer; arguments and errors are those of ``HGCNConv``."""
        first, *others = layers = self._stack
        v = first.tangents(first.logarithm(x), edge_index, edge_weight)
        for layer in others:
            v = layer.tangents(v, edge_index, edge_weight)
        return layers[-1].exponential(v, x)


def _output(layer: HGCNConv) -> tuple[type, int, Curvature | float]:
    """Model, dimensions and curvature of the outputs of a layer."""
    last = layer.linear if layer.out is None else layer.out
    return last.model, layer.linear.out_features, last.curvature


def _shown(model: type, features: int, curvature: Curvature | float) -> str:
    value = "a learnt curvature" if isinstance(curvature, Curvature) else f"curvature {curvature}"
    return f"{features} dimensions of {model.__name__} with {value}"
