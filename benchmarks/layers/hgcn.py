"""HGCN layers, as ``benchmarks.layers`` times them, beside the published sequence of operators.

Every row maps the same points with the same weights to the same points: a linear map of tangents, a
translation, the mean of the neighbours at the origin, ReLU. The published layer is written out
below as a sequence of torch operators; geoopt's is the same sequence of its operations.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch_geometric.utils import add_remaining_self_loops

from benchmarks.geometry.libraries import installed, space_of
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.tangent import tangents_to_points
from fedbolic.nn.graph.convolution import HGCN, HGCNConv

PUBLISHED = "torch published, ball"
ROWS = (
    *(PUBLISHED, "torch published, hyperboloid", "geoopt point by point, ball"),
    *("fedbolic HGCN, ball", "fedbolic HGCN, hyperboloid"),
)
"""Library and name of every row."""

Layer: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Points of all nodes, weight and bias to points."""


@dataclass(frozen=True)
class Size:
    """A random graph."""

    nodes: int
    dim: int
    degree: int
    layers: int


SIZES = {
    "hgcn 1024 x 128": Size(1024, 128, 8, 1),
    "hgcn 2665 x 16": Size(2665, 16, 2, 1),
    "hgcn 2665 x 16, two layers": Size(2665, 16, 2, 2),
}
"""A wide layer, and a layer and an encoder of the size of the Disease tree."""


class PublishedBall:
    """The operators of the published layer in the ball of curvature 1, in their order."""

    least, rim = 1e-15, 1 - 1e-3

    def __init__(self, adjacency: Tensor) -> None:
        self.adjacency = adjacency

    def norm(self, x: Tensor) -> Tensor:
        """Norms, kept away from 0."""
        return x.norm(dim=-1, keepdim=True).clamp_min(self.least)

    def inside(self, x: Tensor) -> Tensor:
        """Points pulled back to the largest radius."""
        length = self.norm(x)
        return torch.where(length > self.rim, x / length * self.rim, x)

    def exp(self, v: Tensor) -> Tensor:
        """The exponential map at the origin."""
        length = self.norm(v)
        return self.inside(length.clamp(-15, 15).tanh() * v / length)

    def log(self, x: Tensor) -> Tensor:
        """The logarithm at the origin."""
        length = self.norm(x)
        return artanh(length) / length * x

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """The Möbius sum."""
        xx, yy = x.pow(2).sum(-1, keepdim=True), y.pow(2).sum(-1, keepdim=True)
        xy = (x * y).sum(-1, keepdim=True)
        top = (1 + 2 * xy + yy) * x + (1 - xx) * y
        return self.inside(top / (1 + 2 * xy + xx * yy).clamp_min(self.least))

    def matvec(self, weight: Tensor, x: Tensor) -> Tensor:
        """The Möbius product with a matrix."""
        y = x @ weight.T
        before, after = self.norm(x), self.norm(y)
        scale = (after / before * artanh(before)).clamp(-15, 15).tanh() / after
        return self.inside(scale * y)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """One layer."""
        h = self.add(self.inside(self.matvec(weight, x)), self.exp(bias.view(1, -1)))
        y = self.exp(torch.spmm(self.adjacency, self.log(h)))
        return self.exp(torch.relu(self.log(y)))


def artanh(x: Tensor) -> Tensor:
    """The inverse hyperbolic tangent by logarithms, as published."""
    x = x.clamp(-1 + 1e-7, 1 - 1e-7)
    return (torch.log(1 + x) - torch.log(1 - x)) / 2


class PublishedHyperboloid:
    """The same layer on the hyperboloid, where the published code adds the bias by transport."""

    least = 1e-12

    def __init__(self, adjacency: Tensor) -> None:
        self.adjacency = adjacency

    def point(self, x: Tensor) -> Tensor:
        """Points with their time coordinates computed again."""
        s = x.narrow(-1, 1, x.shape[-1] - 1).renorm(p=2, dim=0, maxnorm=1e6)
        return torch.cat(((1 + s.pow(2).sum(-1, keepdim=True)).sqrt(), s), -1)

    def exp(self, v: Tensor) -> Tensor:
        """The exponential map at the origin, from space coordinates."""
        length = v.norm(dim=-1, keepdim=True).clamp_min(self.least)
        theta = length.clamp(-15, 15)
        return self.point(torch.cat((theta.cosh(), theta.sinh() * v / length), -1))

    def log(self, x: Tensor) -> Tensor:
        """Space coordinates of the logarithm at the origin."""
        s = x[:, 1:]
        unit = s / s.norm(dim=-1, keepdim=True).clamp_min(self.least)
        time = x[:, :1].clamp(min=1 + 1e-7)
        return (time + (time.pow(2) - 1).sqrt()).log() * unit

    def moved(self, x: Tensor, bias: Tensor) -> Tensor:
        """Points moved along the bias, a tangent at the origin transported to each."""
        time, s = x[:, :1], x[:, 1:]
        along = (s * bias).sum(-1, keepdim=True)
        u = torch.cat((along, bias + along / (1 + time) * s), -1)
        norm = ((u * u).sum(-1, keepdim=True) - 2 * u[:, :1].pow(2)).clamp(min=0).sqrt()
        norm = norm.clamp(min=self.least)
        return self.point(norm.cosh() * x + norm.sinh() * u / norm)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """One layer."""
        h = self.moved(self.exp(self.log(x) @ weight.T), bias)
        y = self.exp(torch.spmm(self.adjacency, self.log(h)))
        return self.exp(torch.relu(self.log(y)))


class GeooptBall:
    """The layer in geoopt's operations of the ball."""

    def __init__(self, adjacency: Tensor) -> None:
        self.adjacency = adjacency
        self.space = space_of("geoopt", "ball", device=str(adjacency.device))

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """One layer."""
        space = self.space
        h = space.mobius_add(space.mobius_matvec(weight, x), space.expmap0(bias))
        y = space.expmap0(torch.spmm(self.adjacency, space.logmap0(h)))
        return space.expmap0(torch.relu(space.logmap0(y)))


def graph(size: Size, device: str) -> tuple[Tensor, Tensor]:
    """Random edges, and the row-normalised adjacency matrix with self loops."""
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(size.nodes, (2, size.degree * size.nodes), generator=generator)
    looped: Any = add_remaining_self_loops(edges, num_nodes=size.nodes)
    source, target = looped[0]
    share = 1 / target.bincount(minlength=size.nodes).float()[target]
    shape = size.nodes, size.nodes
    matrix = torch.sparse_coo_tensor(
        torch.stack((target, source)), share, shape, check_invariants=True
    )
    return edges.to(device), matrix.coalesce().to(device)


def own_layers(size: Size, kind: type[Lorentz] | type[Poincare], edges: Tensor) -> Layer:
    """``HGCNConv`` with means at the origin, or ``HGCN`` of as many layers."""
    network = HGCN(
        *(
            HGCNConv(kind(), size.dim, size.dim, local=False, activation=torch.relu)
            for _ in range(size.layers)
        )
    ).to(edges.device)

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        given = {
            name: weight if name.endswith("weight") else bias
            for name, _ in network.named_parameters()
        }
        return torch.func.functional_call(network, given, (x, edges))

    return function


def repeated(layer: Layer, times: int) -> Layer:
    """A layer applied several times."""

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        for _ in range(times):
            x = layer(x, weight, bias)
        return x

    return function


@dataclass(frozen=True)
class Row:
    """A layer of the table.

    Args:
        layer: Function of points, weight and bias.
        kind: Model of its points.
        bias: Factor of the bias that it is given: 1/2 where tangents at the origin of the ball are
            as long as half of the distance.
    """

    layer: Layer
    kind: type[Lorentz] | type[Poincare]
    bias: float = 1.0

    def inputs(self, size: Size) -> tuple[Tensor, Tensor, Tensor]:
        """Points, weight and bias, which give the same points in every row."""
        x, weight, bias = tensors(size)
        return tangents_to_points(self.kind(), x), weight, self.bias * bias


def candidates(size: Size, device: str) -> dict[str, Row]:
    """All rows, by name."""
    edges, matrix = graph(size, device)
    written = {
        PUBLISHED: Row(PublishedBall(matrix), Poincare, bias=0.5),
        ROWS[1]: Row(PublishedHyperboloid(matrix), Lorentz),
    }
    if installed("geoopt"):
        written[ROWS[2]] = Row(GeooptBall(matrix), Poincare, bias=0.5)
    rows = {
        name: replace(row, layer=repeated(row.layer, size.layers)) for name, row in written.items()
    }
    for kind, name in ((Poincare, "ball"), (Lorentz, "hyperboloid")):
        rows[f"fedbolic HGCN, {name}"] = Row(own_layers(size, kind, edges), kind)
    return rows


def tensors(size: Size) -> tuple[Tensor, Tensor, Tensor]:
    """Tangents of length about 1, a weight that keeps lengths, and a bias."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size.nodes, size.dim, generator=generator) / size.dim**0.5
    weight = torch.randn(size.dim, size.dim, generator=generator) / size.dim**0.5
    return x, weight, torch.randn(size.dim, generator=generator) / 10


def built(name: str, size: Size, device: str) -> tuple[Callable, list[Tensor], Tensor]:
    """A row as a function of points, its weight and bias, and its points."""
    row = candidates(size, device)[name]
    x, weight, bias = (t.to(device).requires_grad_() for t in row.inputs(size))
    return (lambda x: row.layer(x, weight, bias)), [weight, bias], x
