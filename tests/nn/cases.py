"""One test case for every hyperbolic layer and every variant; a layer listed here is tested."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from fedbolic.manifolds import Curvature, Euclidean, Lorentz, Poincare
from fedbolic.nn import (
    MLR,
    BusemannHead,
    BusemannLinear,
    CentroidPool,
    CentroidPool2d,
    ChangeCurvature,
    Conv2d,
    GyroBatchNorm,
    HyperbolicBatchNorm,
    HyperbolicEmbedding,
    HyperbolicLayerNorm,
    HyperbolicResidual,
    HyperbolicRMSNorm,
    Linear,
    LorentzAttention,
    LorentzDecoderBlock,
    LorentzEncoderBlock,
    LorentzFC,
    LorentzPositions,
    LorentzTransformer,
    LorentzViT,
    PatchEmbedding,
    PrototypeHead,
    SpaceActivation,
    TangentActivation,
    TangentDropout,
    TangentLinear,
    ToManifold,
)
from fedbolic.nn.graph.convolution import HGCN, CentroidConv, HGCNConv

DIM = 4
KINDS = (Lorentz, Poincare)


@dataclass(frozen=True)
class Case:
    """A layer, given by a function that builds it from a manifold.

    Args:
        build: Class of the layer, or a function from a manifold to the layer.
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

    @property
    def model(self) -> type[Lorentz] | type[Poincare]:
        """Model of the layer."""
        return self.kind if self.kind in KINDS else self.gives or Lorentz

    def make(self, c: Curvature | float = 1.0, *, seed: int = 0) -> nn.Module:
        """The layer in float64, with random noise so that no parameter has a special value."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layer = self.build(self.model(c)).double()
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


def change_curvature(manifold):
    return ChangeCurvature(type(manifold)(1.0), manifold)


def residual(manifold):
    return HyperbolicResidual(manifold, Linear(manifold, DIM, DIM))


def widened(manifold):
    """A residual connection whose branch and shortcut change the width."""
    branch, shortcut = (Linear(manifold, DIM, 3) for _ in range(2))
    return HyperbolicResidual(manifold, branch, shortcut=shortcut)


EDGES = torch.tensor([[0, 1, 2, 3, 3, 1], [1, 2, 0, 1, 3, 2]])
"""Edges of a graph of five nodes: one is doubled, one is a loop, and the last node has none."""


def build(layer, /, *args, **settings):
    """A function from a manifold to the layer."""
    return lambda manifold: layer(manifold, *args, **settings)


def on_graph(make):
    """A graph convolution that is called with the points only; a hook adds the edges."""

    def made(manifold):
        layer = make(manifold)
        layer.register_forward_pre_hook(with_edges)
        return layer

    return made


def hgcn_to(manifold):
    """An ``HGCNConv`` with an output curvature, here the same as that of its inputs."""
    return HGCNConv(manifold, DIM, 3, out_manifold=manifold)


def hgcn(manifold):
    """Two layers that hand tangents on."""
    first = HGCNConv(manifold, DIM, 5, local=False, activation=torch.tanh)
    return HGCN(first, HGCNConv(manifold, 5, 3, local=False))


def with_edges(layer, args):
    return *args, EDGES


def decoder(manifold):
    """A decoder block that is called with the points only; a hook adds them as the memory."""
    block = LorentzDecoderBlock(manifold, DIM, 2, hidden_dim=6, rotary_base=100.0)
    block.register_forward_pre_hook(with_memory)
    return block


def with_memory(block, args):
    return *args, args[0]


def attention(layer=LorentzAttention, **settings):
    """Attention, or a block with it; squares of points far out are differences."""
    return Case(build(layer, DIM, 2, **settings), Lorentz, Lorentz, reach=0.25)


def on_nodes(make, *, kind: Any = Lorentz, raw="linear.curvature.raw"):
    return Case(on_graph(make), kind, kind, 3, shape=(5,), raw=raw)


def images(*, kind, **settings):
    """A convolution of two images of 3 x 4 pixels."""
    return Case(build(Conv2d, DIM, 3, 2, padding=1, **settings), kind, kind, 3, shape=(2, 3, 4))


CASES = {
    "LorentzConv2d": images(kind=Lorentz, dilation=2),
    "LorentzConv2d of hyperplanes": images(
        kind=Lorentz, stride=2, layer=LorentzFC, concatenation="log_radius"
    ),
    "PoincareConv2d": images(kind=Poincare, stride=2),
    "PoincareConv2d without bias": images(kind=Poincare, bias=False),
    "LorentzFC with an activation": Case(
        build(LorentzFC, DIM, 3, activation=torch.tanh), Lorentz, Lorentz, 3
    ),
    "LorentzFC": Case(build(LorentzFC, DIM, 3), Lorentz, Lorentz, 3),
    "LorentzFC without bias": Case(build(LorentzFC, DIM, 3, bias=False), Lorentz, Lorentz, 3),
    "TangentLinear without bias": Case(
        build(TangentLinear, DIM, 3, bias=False), Lorentz, Lorentz, 3
    ),
    "LorentzAttention": attention(),
    "LorentzAttention with positions": attention(rotary_base=100.0),
    "LorentzAttention of tangents": attention(stream="tangents"),
    "LorentzEncoderBlock": attention(LorentzEncoderBlock, hidden_dim=6),
    "LorentzEncoderBlock of tangents": attention(
        LorentzEncoderBlock, hidden_dim=6, stream="tangents"
    ),
    "LorentzDecoderBlock": Case(decoder, Lorentz, Lorentz, reach=0.25),
    "LorentzPositions": Case(build(LorentzPositions, 6, DIM), Lorentz, Lorentz, reach=0.5),
    "PatchEmbedding": Case(build(PatchEmbedding, 3, 2, DIM), Euclidean, Lorentz, shape=(2, 3, 2)),
    "LorentzTransformer": Case(
        build(LorentzTransformer, DIM, DIM, 2, 1, causal=True, hidden_dim=6), None, Lorentz
    ),
    "LorentzViT": Case(
        build(LorentzViT, 4, 2, DIM, 2, 1, 6, hidden_dim=6), Euclidean, None, 6, shape=(2, 3, 4)
    ),
    "LorentzConv without loops": on_nodes(
        build(CentroidConv, DIM, 3, normalize=False, add_self_loops=False)
    ),
    "HGCNConv": on_nodes(build(HGCNConv, DIM, 3, activation=torch.tanh)),
    "HGCNConv at the origin": on_nodes(build(HGCNConv, DIM, 3, local=False)),
    "HGCNConv with an output curvature": on_nodes(hgcn_to),
}
for kind in KINDS:
    at_origin = partial(build, HGCNConv, DIM, 3, local=False)
    BOTH = {
        "Linear": Case(build(Linear, DIM, 3), kind, kind, 3),
        "Linear without bias": Case(build(Linear, DIM, 3, bias=False), kind, kind, 3),
        "Linear with an activation": Case(
            build(Linear, DIM, 3, activation=torch.tanh), kind, kind, 3
        ),
        "MLR": Case(build(MLR, DIM, 6), kind, None, 6),
        "CentroidConv": on_nodes(build(CentroidConv, DIM, 3), kind=kind),
        "HGCN": on_nodes(hgcn, kind=kind, raw="layers.0.linear.curvature.raw"),
        "HGCNConv with softmax": on_nodes(at_origin(attention="softmax"), kind=kind),
        "HGCNConv with sigmoid": on_nodes(at_origin(attention="sigmoid"), kind=kind),
        "TangentLinear": Case(build(TangentLinear, DIM, 3), kind, kind, 3),
        "ToManifold": Case(ToManifold, Euclidean, kind),
        "ToManifold, soft": Case(build(ToManifold, mode="soft"), Euclidean, kind),
        "ToManifold, space": Case(build(ToManifold, mode="space"), Euclidean, kind),
        "PrototypeHead": Case(build(PrototypeHead, DIM, 6), kind, None, 6),
        "BusemannHead": Case(build(BusemannHead, DIM, 6), kind, None, 6),
        "BusemannLinear": Case(build(BusemannLinear, DIM, 3), kind, kind, 3),
        "BusemannLinear with both biases": Case(
            build(BusemannLinear, DIM, 3, activation=torch.tanh, gyro_bias=True), kind, kind, 3
        ),
        "SpaceActivation": Case(build(SpaceActivation, torch.tanh), kind, kind),
        "TangentActivation": Case(build(TangentActivation, nn.Softplus()), kind, kind),
        "TangentDropout": Case(TangentDropout, kind, kind),
        "HyperbolicBatchNorm": Case(build(HyperbolicBatchNorm, DIM), kind, kind),
        "HyperbolicBatchNorm in training": Case(
            build(HyperbolicBatchNorm, DIM), kind, kind, training=True
        ),
        "HyperbolicBatchNorm without affine": Case(
            build(HyperbolicBatchNorm, DIM, affine=False), kind, kind
        ),
        "GyroBatchNorm": Case(build(GyroBatchNorm, DIM), kind, kind),
        "GyroBatchNorm in training": Case(build(GyroBatchNorm, DIM), kind, kind, training=True),
        "HyperbolicLayerNorm": Case(build(HyperbolicLayerNorm, DIM), kind, kind),
        "HyperbolicRMSNorm": Case(build(HyperbolicRMSNorm, DIM), kind, kind),
        "HyperbolicEmbedding": Case(build(HyperbolicEmbedding, DIM, DIM), None, kind),
        "CentroidPool": Case(CentroidPool, kind, kind),
        "CentroidPool outwards": Case(build(CentroidPool, power=2.0), kind, kind, reach=0.25),
        "CentroidPool2d": Case(
            build(CentroidPool2d, 3, stride=1, padding=1), kind, kind, shape=(2, 3, 4)
        ),
        "HyperbolicResidual": Case(residual, kind, kind),
        "HyperbolicResidual with a shortcut": Case(widened, kind, kind, 3),
        "ChangeCurvature": Case(change_curvature, kind, kind),
    }
    CASES |= {f"{kind.__name__} {name}": case for name, case in BOTH.items()}
