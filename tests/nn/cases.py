"""One test case for every hyperbolic layer and every variant; a layer listed here is tested."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from fedbolic.manifolds import Curvature, Euclidean, Lorentz, Poincare
from fedbolic.nn import (
    BusemannHead,
    BusemannLinear,
    CentroidPool,
    CentroidPool2d,
    ChangeCurvature,
    GyroBatchNorm,
    HyperbolicBatchNorm,
    HyperbolicEmbedding,
    HyperbolicLayerNorm,
    HyperbolicResidual,
    LorentzAttention,
    LorentzConv2d,
    LorentzFC,
    LorentzLinear,
    LorentzMLR,
    PoincareConv2d,
    PoincareLinear,
    PoincareMLR,
    PrototypeHead,
    SpaceActivation,
    TangentActivation,
    TangentDropout,
    TangentLinear,
    ToManifold,
)
from fedbolic.nn.graph.convolution import HGCN, HGCNConv, LorentzConv, PoincareConv

DIM = 4
KINDS = (Lorentz, Poincare)
LINEAR = {Lorentz: LorentzLinear, Poincare: PoincareLinear}


@dataclass(frozen=True)
class Case:
    """A layer, given by a function that builds it from a curvature.

    Args:
        build: Function that takes ``curvature`` and returns the layer.
        kind: Manifold of the inputs, ``Euclidean`` for features; ``None`` for indices.
        gives: Manifold of the outputs; ``None`` for real numbers.
        num: Number of output features.
        training: Mode in which the layer is tested.
        reach: Share of the floats' largest radius beyond which derivatives may overflow, in (0, 1].
        shape: Shape of the batch of input points.
        raw: Name of the parameter that holds a learnable curvature.
    """

    build: Callable[..., nn.Module]
    kind: Any
    gives: Any
    num: int = DIM
    training: bool = False
    reach: float = 1.0
    shape: tuple[int, ...] = (2, 5)
    raw: str = "curvature.raw"

    def make(self, curvature: Curvature | float = 1.0, *, seed: int = 0) -> nn.Module:
        """The layer in float64, with random noise so that no parameter has a special value."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layer = self.build(curvature=curvature).double()
            for name, value in [*layer.named_parameters(), *layer.named_buffers()]:
                if value.is_floating_point() and not name.endswith("raw"):
                    with torch.no_grad():
                        value.add_(0.2 * torch.rand_like(value))
        return layer.train(self.training)

    def inputs(self, c: float = 1.0, *, seed: int = 0, radius: float = 1.0) -> torch.Tensor:
        """Points at about the given radius, in float64; by default two sets of five."""
        generator = torch.Generator().manual_seed(seed)
        if self.kind is None:
            return torch.randint(0, DIM, self.shape, generator=generator)
        v = torch.randn(*self.shape, DIM, generator=generator, dtype=torch.float64)
        return points(self.kind, c, radius * v / math.sqrt(DIM))


def points(kind, c, v):
    """Points at the distances ``|v|`` from the origin, in the directions of ``v``."""
    if kind is Euclidean:
        return v
    space = kind(c)
    return space.expmap0(space.lift(v) if kind is Lorentz else v / 2)


def change_curvature(kind, curvature):
    return ChangeCurvature(kind, old=1.0, new=curvature)


def residual(kind, curvature):
    return HyperbolicResidual(
        kind, LINEAR[kind](DIM, DIM, curvature=curvature), curvature=curvature
    )


def widened(kind, curvature):
    """A residual connection whose branch and shortcut change the width."""
    branch, shortcut = (LINEAR[kind](DIM, 3, curvature=curvature) for _ in range(2))
    return HyperbolicResidual(kind, branch, shortcut=shortcut, curvature=curvature)


EDGES = torch.tensor([[0, 1, 2, 3, 3, 1], [1, 2, 0, 1, 3, 2]])
"""Edges of a graph of five nodes: one is doubled, one is a loop, and the last node has none."""


def on_graph(convolution, *args, curvature, **settings):
    """A graph convolution that is called with the points only; a hook adds the edges."""
    layer = convolution(*args, curvature=curvature, **settings)
    layer.register_forward_pre_hook(with_edges)
    return layer


def hgcn_to(curvature):
    """An ``HGCNConv`` with an output curvature, here the same as that of its inputs."""
    return on_graph(HGCNConv, DIM, 3, curvature=curvature, out_curvature=curvature)


def hgcn(curvature, *, kind):
    """Two layers that hand tangents on."""
    first = HGCNConv(DIM, 5, kind=kind, local=False, activation=torch.tanh, curvature=curvature)
    network = HGCN(first, HGCNConv(5, 3, kind=kind, local=False, curvature=curvature))
    network.register_forward_pre_hook(with_edges)
    return network


def with_edges(layer, args):
    return *args, EDGES


def convolution(layer, *, space=Lorentz, reach=1.0, **settings):
    return Case(
        partial(on_graph, layer, DIM, 3, **settings), space, space, 3,
        reach=reach, shape=(5,), raw="linear.curvature.raw",
    )  # fmt: skip


def images(of, *, space, **settings):
    """A convolution of two images of 3 x 4 pixels."""
    build = partial(of, DIM, 3, 2, padding=1, **settings)
    return Case(build, space, space, 3, shape=(2, 3, 4))


CASES = {
    "LorentzConv2d": images(LorentzConv2d, space=Lorentz, dilation=2),
    "LorentzConv2d of hyperplanes": images(
        LorentzConv2d, space=Lorentz, stride=2, layer=LorentzFC, concatenation="log_radius"
    ),
    "PoincareConv2d": images(PoincareConv2d, space=Poincare, stride=2),
    "PoincareConv2d without bias": images(PoincareConv2d, space=Poincare, bias=False),
    "LorentzFC with an activation": Case(
        partial(LorentzFC, DIM, 3, activation=torch.tanh), Lorentz, Lorentz, 3
    ),
    "LorentzLinear": Case(partial(LorentzLinear, DIM, 3), Lorentz, Lorentz, 3),
    "LorentzLinear without bias": Case(
        partial(LorentzLinear, DIM, 3, bias=False), Lorentz, Lorentz, 3
    ),
    "LorentzFC": Case(partial(LorentzFC, DIM, 3), Lorentz, Lorentz, 3),
    "LorentzFC without bias": Case(partial(LorentzFC, DIM, 3, bias=False), Lorentz, Lorentz, 3),
    "PoincareLinear": Case(partial(PoincareLinear, DIM, 3), Poincare, Poincare, 3),
    "PoincareLinear without bias": Case(
        partial(PoincareLinear, DIM, 3, bias=False), Poincare, Poincare, 3
    ),
    "TangentLinear without bias": Case(
        partial(TangentLinear, DIM, 3, bias=False), Lorentz, Lorentz, 3
    ),
    "LorentzMLR": Case(partial(LorentzMLR, DIM, 6), Lorentz, None, 6),
    "PoincareMLR": Case(partial(PoincareMLR, DIM, 6), Poincare, None, 6),
    "LorentzAttention": Case(partial(LorentzAttention, DIM, 2), Lorentz, Lorentz, reach=0.25),
    "LorentzConv": convolution(LorentzConv),
    "LorentzConv without loops": convolution(LorentzConv, normalize=False, add_self_loops=False),
    "HGCNConv": convolution(HGCNConv, activation=torch.tanh),
    "HGCNConv at the origin": convolution(HGCNConv, local=False),
    "HGCNConv with an output curvature": replace(convolution(HGCNConv), build=hgcn_to),
    "PoincareConv": convolution(PoincareConv, space=Poincare),
}
for kind in KINDS:
    at_origin = partial(convolution, HGCNConv, space=kind, kind=kind, local=False)
    BOTH = {
        "HGCN": replace(
            convolution(HGCN, space=kind),
            build=partial(hgcn, kind=kind),
            raw="layers.0.linear.curvature.raw",
        ),
        "HGCNConv with softmax": at_origin(attention="softmax"),
        "HGCNConv with sigmoid": at_origin(attention="sigmoid"),
        "TangentLinear": Case(partial(TangentLinear, DIM, 3, kind=kind), kind, kind, 3),
        "ToManifold": Case(partial(ToManifold, kind), Euclidean, kind),
        "ToManifold, soft": Case(partial(ToManifold, kind, mode="soft"), Euclidean, kind),
        "ToManifold, space": Case(partial(ToManifold, kind, mode="space"), Euclidean, kind),
        "PrototypeHead": Case(partial(PrototypeHead, kind, DIM, 6), kind, None, 6),
        "BusemannHead": Case(partial(BusemannHead, kind, DIM, 6), kind, None, 6),
        "BusemannLinear": Case(partial(BusemannLinear, kind, DIM, 3), kind, kind, 3),
        "BusemannLinear with both biases": Case(
            partial(BusemannLinear, kind, DIM, 3, activation=torch.tanh, gyro_bias=True),
            kind,
            kind,
            3,
        ),
        "SpaceActivation": Case(partial(SpaceActivation, kind, torch.tanh), kind, kind),
        "TangentActivation": Case(partial(TangentActivation, kind, nn.Softplus()), kind, kind),
        "TangentDropout": Case(partial(TangentDropout, kind), kind, kind),
        "HyperbolicBatchNorm": Case(partial(HyperbolicBatchNorm, kind, DIM), kind, kind),
        "HyperbolicBatchNorm in training": Case(
            partial(HyperbolicBatchNorm, kind, DIM), kind, kind, training=True
        ),
        "HyperbolicBatchNorm without affine": Case(
            partial(HyperbolicBatchNorm, kind, DIM, affine=False), kind, kind
        ),
        "GyroBatchNorm": Case(partial(GyroBatchNorm, kind, DIM), kind, kind),
        "GyroBatchNorm in training": Case(
            partial(GyroBatchNorm, kind, DIM), kind, kind, training=True
        ),
        "HyperbolicLayerNorm": Case(partial(HyperbolicLayerNorm, kind, DIM), kind, kind),
        "HyperbolicEmbedding": Case(partial(HyperbolicEmbedding, kind, DIM, DIM), None, kind),
        "CentroidPool": Case(partial(CentroidPool, kind), kind, kind),
        "CentroidPool2d": Case(
            partial(CentroidPool2d, kind, 3, stride=1, padding=1), kind, kind, shape=(2, 3, 4)
        ),
        "HyperbolicResidual": Case(partial(residual, kind), kind, kind),
        "HyperbolicResidual with a shortcut": Case(partial(widened, kind), kind, kind, 3),
        "ChangeCurvature": Case(partial(change_curvature, kind), kind, kind),
    }
    CASES |= {f"{kind.__name__} {name}": case for name, case in BOTH.items()}
