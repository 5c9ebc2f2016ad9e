"""Graph convolutional networks, Euclidean and Lorentzian, for one client or many at once.

The input of a network is a block of clients; its parameters may have a leading client axis.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn import functional
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.types import Meta
from fedbolic.formulas.analytic import sinhc
from fedbolic.formulas.numerics import square
from fedbolic.manifolds import Curvature, Lorentz
from fedbolic.nn.layers.dropout import Dropout
from flatland.graphs.blocks import GraphBlock, Mixing
from flatland.graphs.ricci import BOUNDS

FARTHEST = 10.0
r"""Largest distance of inputs from the origin, in radii of curvature; others are clamped to it.

The squared coordinates there are near :math:`\cosh^2 10 \approx 10^8`, so the Minkowski length of a
point has a relative error near 1e-8 in float64, where it is computed, and no digit in float32.
"""

Activation = Literal["relu", "elu"]

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "elu": functional.elu,
}
"""Activations by name."""


class GraphNetwork(ABC):
    """Configuration of a network from a block of graphs to one logit per class for each node."""

    @abstractmethod
    def build(self, meta: Meta) -> nn.Module:
        """A newly initialised network; a Lorentzian one has a parameter ``curvature.raw``."""


@dataclass(frozen=True)
class ConvolutionalNetwork(GraphNetwork):
    """Base of networks with graph convolutions.

    Args:
        widths: Output width of each convolution, at least one.
        dropout: Dropout probability after each convolution, in [0, 1).
        activation: Activation after each convolution.

    Raises:
        ValueError: If there is no convolution, one is empty, or the probability is not in [0, 1).
    """

    widths: tuple[int, ...] = (128, 128)
    dropout: float = 0.5
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        check.at_least(1, num_widths=len(self.widths))
        check.at_least(1, narrowest_width=min(self.widths))
        check.rate(below_one=True, dropout=self.dropout)


@dataclass(frozen=True)
class GCN(ConvolutionalNetwork):
    r"""Euclidean graph convolutions and a linear head.

    .. math:: H' = \mathrm{drop}(\sigma(D^{-1/2} (A + I) D^{-1/2} H M + b))

    Args:
        neighbours: ``symmetric`` for the weights above, ``mean`` for :math:`D^{-1} (A + I)`, the
            weights of ``LorentzGCN``.

    References:
        Kipf and Welling (2017), Eq. (2), arXiv:1609.02907.
    """

    neighbours: Mixing = "symmetric"

    @override
    def build(self, meta: Meta) -> nn.Module:
        sizes = widths_of(meta, self.widths)
        head = FlatHead(sizes[-1], meta.num_classes)
        return Flat(sizes, head, self.dropout, self.activation, neighbours=self.neighbours)


@dataclass(frozen=True)
class LorentzGCN(ConvolutionalNetwork):
    r"""Graph convolutions in the client's Lorentz space and a linear head.

    .. math::
        x &= \exp_o(v), \quad y_j = x_{j,s} M + x_{j,t} m + b, \\
        z_i &= \frac{1}{d_i + 1} \sum_{j \in N(i) \cup i}
            \Bigl(\sqrt{1 / c + |y_j|^2}, \; y_j\Bigr), \quad
            x'_{i,s} = \mathrm{drop}\Bigl(\sigma\Bigl(
            \frac{z_{i,s}}{\sqrt{-c \langle z_i, z_i \rangle}}\Bigr)\Bigr)

    with the time coordinate :math:`x_t = \sqrt{1 / c + |x_s|^2}` recomputed after every operation;
    logits are :math:`x_s M + x_t m + b`. The parameters of layer l are ``body.l.space`` (M),
    ``body.l.time`` (m) and ``body.l.bias``. Those of the head have the prefix ``head.`` instead,
    and the curvature is ``curvature.raw``.

    Departs from the paper: the row for the time coordinate (its v) is not a parameter, because the
    time coordinate is computed; activation and dropout act on space coordinates, so points stay on
    the hyperboloid.

    References:
        Liu et al. (2024), Eqs. (2) and (4), FedKDD; Chen et al. (2022), Eq. (10), arXiv:2105.14686,
        for the centroid.
    """

    @override
    def build(self, meta: Meta) -> nn.Module:
        sizes = widths_of(meta, self.widths)
        head = SpaceTimeLinear(sizes[-1], meta.num_classes)
        return LorentzNetwork(sizes, head, self.dropout, self.activation)


class _Network(nn.Module):
    """Base class of both networks: layers, head, dropout and activation."""

    def __init__(
        self,
        layer: Callable[[int, int], nn.Module],
        widths: tuple[int, ...],
        head: nn.Module,
        dropout: float,
        activation: Activation,
    ) -> None:
        super().__init__()
        self.body = nn.ModuleList(layer(*size) for size in itertools.pairwise(widths))
        self.head = head
        self.dropout = nn.ModuleList(Dropout(dropout) for _ in self.body)
        self.activation = ACTIVATIONS[activation]
        self.readout: Callable[..., Tensor] | None = None  # set by GraphReadout


class Flat(_Network):
    """Euclidean graph convolutions, followed by a head.

    Args:
        widths: Width of the inputs, then of each convolution.
        head: Module from one vector per node to logits.
        dropout: Dropout probability after each convolution, in [0, 1).
        activation: Activation after each convolution.
        layer: Linear layer of a convolution; ``None`` for ``SpaceLinear``.
        neighbours: Weights of the neighbours, as in ``GCN``.
    """

    def __init__(
        self,
        widths: tuple[int, ...],
        head: nn.Module,
        dropout: float,
        activation: Activation,
        layer: "Callable[[int, int], SpaceLinear] | None" = None,
        *,
        neighbours: Mixing = "symmetric",
    ) -> None:
        super().__init__(layer or SpaceLinear, widths, head, dropout, activation)
        self.neighbours: Mixing = neighbours

    def forward(self, block: GraphBlock) -> Float[Tensor, "clients n classes"]:
        """One logit per class for each node."""
        x = self.dropout[-1](self.activation(self.convolved(block)))
        return self.head(x if self.readout is None else self.readout(x, block))

    def convolved(self, block: GraphBlock) -> Float[Tensor, "clients n width"]:
        """Output of the last convolution, before its activation."""
        first, *others = cast("list[SpaceLinear]", list(self.body))  # ModuleList hides the class
        weights = block.symmetric if self.neighbours == "symmetric" else block.mean
        features = block.mixed(self.neighbours)
        if features is None:
            y = block.gather(weights, block.map_features(first.matrix))
        else:
            y = features @ first.matrix
        y = y + per_client(first.bias)
        for layer, drop in zip(others, self.dropout, strict=False):
            mixed = block.gather(weights, drop(self.activation(y)) @ layer.matrix)
            y = mixed + per_client(layer.bias)
        return y


class LorentzNetwork(_Network):
    """Graph convolutions in a Lorentz space, followed by a head.

    Args:
        widths: Width of the inputs, then of each convolution.
        head: Module from the time and space coordinates of one point per node, and the space, to
            logits.
        dropout: Dropout probability after each convolution, in [0, 1).
        activation: Activation after each convolution.
    """

    def __init__(
        self,
        widths: tuple[int, ...],
        head: nn.Module,
        dropout: float,
        activation: Activation,
    ) -> None:
        super().__init__(SpaceTimeLinear, widths, head, dropout, activation)
        self.curvature = Curvature(1.0, bounds=BOUNDS)

    def forward(self, block: GraphBlock) -> Float[Tensor, "clients n classes"]:
        """One logit per class for each node."""
        space = Lorentz(per_client(self.curvature.c.unsqueeze(-1)))
        factor, time = lifted(space, block.norms)
        first, *others = cast("list[SpaceTimeLinear]", list(self.body))  # ModuleList hides it
        y = torch.addcmul(first.at_origin(time), factor, block.map_features(first.space))
        for layer, drop in zip(others, self.dropout, strict=False):
            s = drop(self.activation(centroids(space, y, block)))
            y = layer(time_of(space, s), s)
        s = self.dropout[-1](self.activation(centroids(space, y, block)))
        s = s if self.readout is None else self.readout(s, block, space)
        return self.head(time_of(space, s), s, space)


def time_of(space: Lorentz, s: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch 1"]:
    """Time coordinates of the points with space coordinates ``s``."""
    return (1 / space.c + square(s)).sqrt()


def per_client(x: Float[Tensor, "*clients k"]) -> Float[Tensor, "*clients 1 k"]:
    """One vector per client, with an axis that broadcasts over the client's nodes."""
    return x.unsqueeze(-2)


class SpaceLinear(nn.Module):
    """Linear layer of a Euclidean convolution, which adds the bias after aggregation.

    The matrix ``M`` of ``x M`` has Glorot and Bengio's uniform initialization; the bias starts at
    0.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.space = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        nn.init.xavier_uniform_(self.space)

    @property
    def matrix(self) -> Float[Tensor, "*clients width out"]:
        """Matrix applied to the features."""
        return self.space


class FlatHead(SpaceLinear):
    """Linear classification head with logits :math:`x M + b`."""

    def forward(self, x: Float[Tensor, "*clients n width"]) -> Float[Tensor, "*clients n classes"]:
        """One logit per class for each node."""
        return x @ self.matrix + per_client(self.bias)


class SpaceTimeLinear(nn.Module):
    r"""Linear layer for points of the hyperboloid: space coordinates :math:`x_s M + x_t m + b`.

    Every Lorentz boost or rotation has this form. ``M`` has Glorot and Bengio's uniform
    initialization; ``m`` and ``b`` start at 0.

    References:
        Liu et al. (2024), Eq. (2), FedKDD.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.space = nn.Parameter(torch.empty(in_features, out_features))
        self.time = nn.Parameter(torch.zeros(out_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        nn.init.xavier_uniform_(self.space)

    def forward(
        self,
        time: Float[Tensor, "clients n 1"],
        s: Float[Tensor, "clients n width"],
        space: Lorentz | None = None,
    ) -> Float[Tensor, "clients n out"]:
        """New space coordinates of points, or their logits if the layer is a head."""
        del space
        weight = self.space.reshape(-1, *self.space.shape[-2:])
        return torch.baddbmm(self.at_origin(time), s, weight.expand(len(s), -1, -1))

    def at_origin(self, time: Float[Tensor, "clients n 1"]) -> Float[Tensor, "clients n out"]:
        """Part of the output that does not depend on the input's space coordinates."""
        return torch.addcmul(per_client(self.bias), time, per_client(self.time))


def lifted(
    space: Lorentz, norm: Float[Tensor, "*clients n 1"]
) -> tuple[Float[Tensor, "*clients n 1"], Float[Tensor, "*clients n 1"]]:
    r"""Factors from tangent vectors to space coordinates of their points, and time coordinates.

    The point of v is :math:`\exp_o(v)`, at distance :math:`|v|` from the origin, clamped to
    :data:`FARTHEST` radii of curvature. A factor only scales its vector, so sparse features stay
    sparse.

    Args:
        space: Lorentz space with one curvature, or one per client.
        norm: Norms of the vectors.
    """
    t, most = space.c * norm * norm, FARTHEST**2
    share = (most / t.clamp(min=most)).sqrt()
    factor = share * sinhc((share * norm).square(), space.c)
    return factor, (1 / space.c + (factor * norm).square()).sqrt()


def num_clamped(space: Lorentz, norm: Float[Tensor, "clients n 1"]) -> Float[Tensor, " clients"]:
    """Number of each client's vectors with norms ``norm`` that :func:`lifted` clamps."""
    return (space.c * norm * norm > FARTHEST**2).sum(dim=(1, 2), dtype=torch.float64)


def centroids(
    space: Lorentz, y: Float[Tensor, "clients n width"], block: GraphBlock
) -> Float[Tensor, "clients n width"]:
    """Space coordinates of the unweighted centroid of each node and its neighbours.

    Args:
        space: Lorentz space of the points; its curvature has axes for clients, nodes and width.
        y: Space coordinates of the points.
        block: Block that gives the neighbours.
    """
    return _Centroids.apply(y, torch.as_tensor(space.c, dtype=y.dtype), block)


class _Centroids(torch.autograd.Function):
    r"""The centroid's :math:`s / \sqrt{c (t^2 - |s|^2)}` for the mean :math:`(t, s)` of points.

    Computed in float64, because the Minkowski length of a mean cancels far from the origin. The
    gradient is written out, because autograd through the single operations would take most of a
    training step.
    """

    @staticmethod
    @override
    def forward(ctx: Any, y: Tensor, c: Tensor, block: GraphBlock) -> Tensor:
        points, c = y.double(), c.double()
        # vector_norm takes one pass; its undefined gradient at 0 is never used
        times = (1 / c + vector_norm(points, dim=-1, keepdim=True).square()).sqrt()
        s, t = (block.gather(block.neighbours, x) for x in (points, times))
        # the mean of points of the hyperboloid is at least as long as they are, up to rounding
        least = t.square() - vector_norm(s, dim=-1, keepdim=True).square()
        length = (c * least).clamp(min=1).sqrt()
        ctx.save_for_backward(points, times, s, t, length, c)
        ctx.block = block
        return (s / length).to(y.dtype)

    @staticmethod
    @override
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        points, times, s, t, length, c = ctx.saved_tensors
        block, dtype = ctx.block, grads[0].dtype
        grad = grads[0].double()
        of_square = -(grad * s).sum(-1, keepdim=True) / (2 * length**3)
        back = block.neighbours.transposed
        radial = 2 * c * of_square * t
        gathered = block.gather(back, radial)
        # for a node without neighbours, both terms are bitwise equal and cancel exactly
        to_s = grad.div(length).sub_(s * (radial / t))
        to_y = block.gather(back, to_s).add_(points * (gathered / times))
        to_c = of_square * (length * length / c) - gathered / (2 * c * c * times)
        return to_y.to(dtype), to_c.sum_to_size(c.shape).to(dtype), None


def widths_of(meta: Meta, widths: tuple[int, ...]) -> tuple[int, ...]:
    """Width of the inputs, followed by ``widths``.

    Raises:
        ValueError: If the examples of ``meta`` are not feature vectors.
    """
    if len(meta.input_shape) != 1:
        raise ValueError(
            f"nodes need rows of features, got examples of shape {meta.input_shape}: use Graphs"
        )
    return (*meta.input_shape, *widths)
