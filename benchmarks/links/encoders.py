"""Encoders of nodes and decoders of links: the rows of ``benchmarks.links``.

Every encoder has two layers with a ReLU between them and gives tangents at the origin, whose length
is the distance of a node from it. A flat decoder reads them as vectors, a hyperbolic one as points
of the hyperboloid.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv
from typing_extensions import override

from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn import FermiDirac, SpaceActivation, TangentLinear
from fedbolic.nn.functional.tangent import points_to_tangents, tangents_to_points
from fedbolic.nn.graph.convolution import CentroidConv, HGCNConv

DIM = 16
"""Width of both layers."""

LORENTZ = Lorentz(1.0)
"""Space of the hyperbolic decoders and of ``CentroidConv``."""


class TwoLayers(nn.Module):
    """Two layers and the way from features and edges through them."""

    def __init__(self, first: nn.Module, second: nn.Module, way: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.way = first, second, way

    @override
    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.way(self.first, self.second, x, edges)


def flat_convolutions(width: int) -> TwoLayers:
    """Two layers of PyG."""
    layers = GCNConv(width, DIM), GCNConv(DIM, DIM)
    return TwoLayers(*layers, lambda first, second, x, edges: second(first(x, edges).relu(), edges))


def tangent_convolutions(width: int, c: float = 1.0, *, normalize: bool = False) -> TwoLayers:
    """Two ``HGCNConv`` that hand tangents on; at curvature 0 the same network in flat space.

    With ``normalize`` the mean has the weights of ``CentroidConv``: those of a GCN.
    """
    make = partial(HGCNConv, Poincare(c), local=False, normalize=normalize)
    layers = make(width, DIM, activation=torch.relu), make(DIM, DIM)

    def way(first: HGCNConv, second: HGCNConv, x: Tensor, edges: Tensor) -> Tensor:
        return second.tangents(first.tangents(x, edges), edges)

    return TwoLayers(*layers, way)


def lorentz_convolutions(width: int) -> TwoLayers:
    """Two ``CentroidConv`` with a ReLU of space coordinates between them."""
    relu = SpaceActivation(LORENTZ, torch.relu)

    def way(first: nn.Module, second: nn.Module, x: Tensor, edges: Tensor) -> Tensor:
        points = relu(first(tangents_to_points(LORENTZ, x), edges))
        return points_to_tangents(LORENTZ, second(points, edges))

    layers = CentroidConv(LORENTZ, width, DIM), CentroidConv(LORENTZ, DIM, DIM)
    return TwoLayers(*layers, way)


def perceptron(width: int) -> TwoLayers:
    """Two layers of torch on the features of each node alone."""
    layers = nn.Linear(width, DIM), nn.Linear(DIM, DIM)
    return TwoLayers(*layers, lambda first, second, x, edges: second(first(x).relu()))


def tangent_perceptron(width: int, c: float = 1.0) -> TwoLayers:
    """Two ``TangentLinear`` on the features of each node alone; at curvature 0 in flat space."""
    make = partial(TangentLinear, Poincare(c))

    def way(first: TangentLinear, second: TangentLinear, x: Tensor, edges: Tensor) -> Tensor:
        return second.tangents(first.tangents(x).relu())

    return TwoLayers(make(width, DIM), make(DIM, DIM), way)


class Decoder(nn.Module):
    """Logits of the distances, or of another function, of the points of two nodes."""

    def __init__(
        self,
        distance: Callable[[Tensor, Tensor], Tensor],
        points: Callable[[Tensor], Tensor] = lambda v: v,
        *,
        fermi_dirac: bool = True,
    ) -> None:
        super().__init__()
        self.distance, self.points = distance, points
        self.logits = FermiDirac(2.0, 1.0, squared=True) if fermi_dirac else nn.Identity()

    @override
    def forward(self, v: Tensor, pairs: Tensor) -> Tensor:
        points = self.points(v)
        return self.logits(self.distance(points[pairs[0]], points[pairs[1]]))


def flat_distance(x: Tensor, y: Tensor) -> Tensor:
    """The Euclidean distance."""
    return torch.linalg.vector_norm(x - y, dim=-1)


def in_unit_ball(v: Tensor) -> Tensor:
    """Vectors of which longer ones are scaled to length 1, as the authors' code does."""
    return v / torch.linalg.vector_norm(v, dim=-1, keepdim=True).clamp(min=1)


class LinkModel(nn.Module):
    """An encoder and a decoder: one logit per pair of nodes."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    @override
    def forward(self, x: Tensor, edges: Tensor, pairs: Tensor) -> Tensor:
        return self.decoder(self.encoder(x, edges), pairs)


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    graph: str
    encoder: str
    decoder: str
    build: Callable[[int], nn.Module]
    decode: Callable[[], nn.Module]

    @property
    def name(self) -> str:
        """Encoder and decoder."""
        return f"{self.encoder} / {self.decoder}"

    def model(self, num_features: int) -> LinkModel:
        """A newly initialised model."""
        return LinkModel(self.build(num_features), self.decode())


DECODERS: dict[str, Callable[[], nn.Module]] = {
    "inner product": lambda: Decoder(lambda x, y: (x * y).sum(-1), fermi_dirac=False),
    "flat distance": lambda: Decoder(flat_distance),
    "flat distance, unit ball": lambda: Decoder(flat_distance, in_unit_ball),
    "hyperboloid distance": lambda: Decoder(LORENTZ.dist, partial(tangents_to_points, LORENTZ)),
}
FLAT = ("inner product", "flat distance", "flat distance, unit ball")
DISTANCES = ("flat distance", "hyperboloid distance")
HYPERBOLOID = DISTANCES[1:]

ENCODERS: dict[str, tuple[str, Callable[[int], nn.Module], Sequence[str]]] = {
    "GCNConv": ("yes", flat_convolutions, FLAT),
    "HGCNConv at c = 0": ("yes", lambda n: tangent_convolutions(n, 0.0), DISTANCES),
    "HGCNConv at c = 0, weights of a GCN": (
        "yes",
        lambda n: tangent_convolutions(n, 0.0, normalize=True),
        DISTANCES,
    ),
    "HGCNConv": ("yes", tangent_convolutions, HYPERBOLOID),
    "CentroidConv": ("yes", lorentz_convolutions, HYPERBOLOID),
    "MLP": ("no", perceptron, (*FLAT, *HYPERBOLOID)),
    "TangentLinear at c = 0": ("no", lambda n: tangent_perceptron(n, 0.0), DISTANCES),
    "TangentLinear": ("no", tangent_perceptron, HYPERBOLOID),
}
"""Use of the graph, constructor and decoders of every encoder."""

ROWS = tuple(
    Row(graph, encoder, decoder, build, DECODERS[decoder])
    for encoder, (graph, build, decoders) in ENCODERS.items()
    for decoder in decoders
)
