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


class FlatConvolutions(nn.Module):
    """Two layers of PyG."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = GCNConv(width, DIM), GCNConv(DIM, DIM)

    @override
    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second(self.first(x, edges).relu(), edges)


class TangentConvolutions(nn.Module):
    """Two ``HGCNConv`` that hand tangents on; at curvature 0 the same network in flat space.

    With ``normalize`` the mean has the weights of ``CentroidConv``: those of a GCN.
    """

    def __init__(self, width: int, c: float = 1.0, *, normalize: bool = False) -> None:
        super().__init__()
        make = partial(HGCNConv, Poincare(c), local=False, normalize=normalize)
        self.first = make(width, DIM, activation=torch.relu)
        self.second = make(DIM, DIM)

    @override
    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second.tangents(self.first.tangents(x, edges), edges)


class LorentzConvolutions(nn.Module):
    """Two ``CentroidConv`` with a ReLU of space coordinates between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = CentroidConv(LORENTZ, width, DIM)
        self.second = CentroidConv(LORENTZ, DIM, DIM)
        self.activation = SpaceActivation(LORENTZ, torch.relu)

    @override
    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        points = self.first(tangents_to_points(LORENTZ, x), edges)
        return points_to_tangents(LORENTZ, self.second(self.activation(points), edges))


class Perceptron(nn.Module):
    """Two layers of torch on the features of each node alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, DIM), nn.Linear(DIM, DIM)

    @override
    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


class TangentPerceptron(nn.Module):
    """Two ``TangentLinear`` on the features of each node alone; at curvature 0 in flat space."""

    def __init__(self, width: int, c: float = 1.0) -> None:
        super().__init__()
        make = partial(TangentLinear, Poincare(c))
        self.first, self.second = make(width, DIM), make(DIM, DIM)

    @override
    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second.tangents(self.first.tangents(x).relu())


class InnerProduct(nn.Module):
    """Logits that are inner products."""

    @override
    def forward(self, v: Tensor, pairs: Tensor) -> Tensor:
        return (v[pairs[0]] * v[pairs[1]]).sum(-1)


class FlatDistance(nn.Module):
    """Fermi-Dirac logits of squared Euclidean distances."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = FermiDirac(2.0, 1.0, squared=True)

    @override
    def forward(self, v: Tensor, pairs: Tensor) -> Tensor:
        return self.logits(torch.linalg.vector_norm(v[pairs[0]] - v[pairs[1]], dim=-1))


class UnitBallDistance(FlatDistance):
    """The same after longer vectors are scaled to length 1, as the authors' code does."""

    @override
    def forward(self, v: Tensor, pairs: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
        return super().forward(v / length.clamp(min=1), pairs)


class HyperboloidDistance(nn.Module):
    """Fermi-Dirac logits of squared distances on the hyperboloid."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = FermiDirac(2.0, 1.0, squared=True)

    @override
    def forward(self, v: Tensor, pairs: Tensor) -> Tensor:
        points = tangents_to_points(LORENTZ, v)
        return self.logits(LORENTZ.dist(points[pairs[0]], points[pairs[1]]))


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
    """A row of the table.

    Args:
        graph: ``yes`` if the encoder passes messages along edges, else ``no``.
        encoder: Name of the encoder.
        decoder: Name of the decoder.
        build: Makes the encoder for a number of features.
        decode: Makes the decoder.
    """

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
    "inner product": InnerProduct,
    "flat distance": FlatDistance,
    "flat distance, unit ball": UnitBallDistance,
    "hyperboloid distance": HyperboloidDistance,
}
FLAT = ("inner product", "flat distance", "flat distance, unit ball")
DISTANCES = ("flat distance", "hyperboloid distance")
HYPERBOLOID = DISTANCES[1:]

ENCODERS: dict[str, tuple[str, Callable[[int], nn.Module], Sequence[str]]] = {
    "GCNConv": ("yes", FlatConvolutions, FLAT),
    "HGCNConv at c = 0": ("yes", lambda n: TangentConvolutions(n, 0.0), DISTANCES),
    "HGCNConv at c = 0, weights of a GCN": (
        "yes",
        lambda n: TangentConvolutions(n, 0.0, normalize=True),
        DISTANCES,
    ),
    "HGCNConv": ("yes", TangentConvolutions, HYPERBOLOID),
    "CentroidConv": ("yes", LorentzConvolutions, HYPERBOLOID),
    "MLP": ("no", Perceptron, (*FLAT, *HYPERBOLOID)),
    "TangentLinear at c = 0": ("no", lambda n: TangentPerceptron(n, 0.0), DISTANCES),
    "TangentLinear": ("no", TangentPerceptron, HYPERBOLOID),
}
"""Use of the graph, constructor and decoders of every encoder."""

ROWS = tuple(
    Row(graph, encoder, decoder, build, DECODERS[decoder])
    for encoder, (graph, build, decoders) in ENCODERS.items()
    for decoder in decoders
)
