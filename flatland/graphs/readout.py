"""Readouts: networks that classify whole graphs, for clients that hold several."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.types import Meta
from fedbolic.formulas.analytic import asinhc
from fedbolic.formulas.numerics import root, square
from fedbolic.manifolds import Lorentz
from flatland.graphs.blocks import GraphBlock
from flatland.graphs.model import Flat, GraphNetwork, LorentzGCN, LorentzNetwork, lifted

Pooling = Literal["mean", "sum", "centroid"]


@dataclass(frozen=True)
class GraphReadout(GraphNetwork):
    r"""A graph network whose head receives one vector or point per graph instead of per node.

    For the points :math:`x_i` of a graph with n nodes, in a Lorentz space,

    .. math::
        \text{mean} = \exp_o \Bigl( \frac 1 n \sum_i \log_o x_i \Bigr), \quad
        \text{sum} = \exp_o \Bigl( \sum_i \log_o x_i \Bigr), \quad
        \text{centroid} = \frac{\sum_i x_i}{\sqrt{-c \langle \sum_i x_i, \sum_i x_i \rangle}}

    The map of the mean and of the sum clamps points to 10 radii of curvature, as that of the
    inputs does. In a Euclidean network, mean and sum are those of the vectors, and the centroid is
    the mean, so the same ``pooling`` gives a flat twin. Convolutions pass nothing between graphs.

    Args:
        network: Network with convolutions and a head: ``GCN``, ``LorentzGCN``, ``Frame`` or
            ``Twin``.
        pooling: Readout of a graph from its nodes.

    Raises:
        ValueError: If ``pooling`` is unknown.

    References:
        Liu, Nickel and Kiela (2019), arXiv:1910.12892, for graphs as examples; Chen et al. (2022),
        Eq. (10), arXiv:2105.14686, for the centroid.

    Example:
        >>> GraphReadout(LorentzGCN((16,)), "centroid").pooling
        'centroid'
    """

    network: GraphNetwork = LorentzGCN()
    pooling: Pooling = "mean"

    def __post_init__(self) -> None:
        check.one_of(get_args(Pooling), pooling=self.pooling)

    @override
    def build(self, meta: Meta) -> nn.Module:
        network = self.network.build(meta)
        flat, curved = _POOLINGS[self.pooling]
        cast("Flat", network).readout = curved if isinstance(network, LorentzNetwork) else flat
        return network


def mean_of_vectors(
    x: Float[Tensor, "*clients n width"], block: GraphBlock
) -> Float[Tensor, "clients graphs width"]:
    """Mean of the vectors of each graph; 0 for an empty one.

    Args:
        x: One vector per node.
        block: Block that gives the graphs of each client.
    """
    return (block.pool(x) / block.graph_sizes).to(x.dtype)


def sum_of_vectors(
    x: Float[Tensor, "*clients n width"], block: GraphBlock
) -> Float[Tensor, "clients graphs width"]:
    """Sum of the vectors of each graph; 0 for an empty one.

    Args:
        x: One vector per node.
        block: Block that gives the graphs of each client.
    """
    return block.pool(x).to(x.dtype)


def pooled_in_tangent_space(
    pool: Callable[[Tensor, GraphBlock], Tensor],
    s: Float[Tensor, "clients n width"],
    block: GraphBlock,
    space: Lorentz,
) -> Float[Tensor, "clients graphs width"]:
    """Space coordinates of the vectors of each graph, pooled in the tangent space at the origin.

    Args:
        pool: :func:`mean_of_vectors` or :func:`sum_of_vectors`.
        s: Space coordinates of the points of the nodes.
        block: Block that gives the graphs of each client.
        space: Lorentz space of the points; its curvature has axes for clients, nodes and width.
    """
    v = pool(asinhc(square(s), space.c) * s, block)  # logarithms without their time 0
    return lifted(space, root(square(v)))[0] * v


tangent_mean = functools.partial(pooled_in_tangent_space, mean_of_vectors)
tangent_sum = functools.partial(pooled_in_tangent_space, sum_of_vectors)


def centroid_of_graphs(
    s: Float[Tensor, "clients n width"], block: GraphBlock, space: Lorentz
) -> Float[Tensor, "clients graphs width"]:
    """Space coordinates of the unweighted centroid of each graph; 0 for an empty one.

    Args:
        s: Space coordinates of the points of the nodes.
        block: Block that gives the graphs of each client.
        space: Lorentz space of the points; its curvature has axes for clients, nodes and width.
    """
    # in float64, because the Minkowski length of a sum cancels far from the origin
    c, points = torch.as_tensor(space.c, device=s.device).double(), s.double()
    sums, times = (block.pool(x) for x in (points, (1 / c + square(points)).sqrt()))
    # n points of the hyperboloid add up to a vector of at least n times their length
    squares = (c * (times.square() - square(sums))).clamp(min=block.graph_sizes.square())
    return (sums / squares.sqrt()).to(s.dtype)


_POOLINGS: dict[Pooling, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "mean": (mean_of_vectors, tangent_mean),
    "sum": (sum_of_vectors, tangent_sum),
    "centroid": (mean_of_vectors, centroid_of_graphs),
}
"""Readout of vectors and of points by name."""
