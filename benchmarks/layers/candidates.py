"""Layers of this library and others, as ``benchmarks.layers`` times them."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold
from torch_geometric.nn import GCNConv

from benchmarks.geometry.libraries import hypll_ball, space_of
from benchmarks.layers import blocks, hgcn
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn import (
    MLR,
    BusemannHead,
    BusemannLinear,
    CentroidPool2d,
    Conv2d,
    GyroBatchNorm,
    HyperbolicBatchNorm,
    Linear,
    LorentzFC,
)
from fedbolic.nn.graph.convolution import CentroidConv, HGCNConv
from fedbolic.nn.layers.image_convolution import beta_scale

BATCH, DIM, CLASSES = 1024, 128, 100
IMAGES, SIDE, CHANNELS = 16, 16, 32
Function: TypeAlias = Callable[[Tensor], Tensor]
Built: TypeAlias = tuple[Function, list[Tensor], Tensor]
"""A function to time, its parameters and its input."""


@dataclass(frozen=True)
class Candidate:
    """A layer of a library."""

    group: str
    name: str
    library: str
    build: Callable[[str], Built]
    paper: str = ""

    @property
    def key(self) -> str:
        """Name of the candidate in tables."""
        return f"{self.group}: {self.library} {self.name}"


def vectors(device: str) -> Tensor:
    """Tangents at the origin of length about 1.1."""
    return (torch.randn(BATCH, DIM, generator=torch.Generator().manual_seed(0)) / 10).to(device)


def ball(device: str) -> Tensor:
    """Points of the ball of curvature 1."""
    return Poincare().expmap0(vectors(device) / 2)


def lorentz(device: str) -> Tensor:
    """The same points on the hyperboloid."""
    return Lorentz().expmap0(Lorentz().lift(vectors(device)))


def images(device: str) -> Tensor:
    """Images with channels first, whose pixels are tangents of length about 0.6."""
    shape = IMAGES, CHANNELS, SIDE, SIDE
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) / 10).to(device)


def ball_images(device: str) -> Tensor:
    """The pixels as points of the ball of curvature 1, along the last axis."""
    return Poincare().expmap0(images(device).movedim(1, -1) / 2).contiguous()


def lorentz_images(device: str) -> Tensor:
    """The same points on the hyperboloid."""
    return Lorentz().expmap0(Lorentz().lift(images(device).movedim(1, -1)))


def in_space(layer: Callable[..., nn.Module], points: Callable[[str], Tensor]) -> Any:
    """A layer in the space of its points; a flat one as it is."""
    for space, names in ((Lorentz(), (lorentz, lorentz_images)), (Poincare(), (ball, ball_images))):
        if points in names:
            return partial(layer, space)
    return layer


def of(
    layer: Callable[..., nn.Module],
    points: Callable[[str], Tensor],
    *sizes: int,
    edges: bool = False,
) -> Callable[[str], Built]:
    """Builder of a candidate that is a module of some sizes, in the space of its points.

    With ``edges``, it is a graph convolution on a random graph with 8 edges per node.
    """

    def build(device: str) -> Built:
        made = in_space(layer, points)(*sizes).to(device)
        ends = torch.randint(BATCH, (2, 8 * BATCH), generator=torch.Generator().manual_seed(1))
        call = partial(_with_edges, made, ends.to(device)) if edges else made
        return call, list(made.parameters()), points(device)

    return build


def _with_edges(layer: nn.Module, edges: Tensor, x: Tensor) -> Tensor:
    return layer(x, edges)


def geoopt_convolution(device: str) -> Built:
    """Beta-concatenation of windows and the Möbius linear layer, from geoopt's operations."""
    space = space_of("geoopt", "ball", device=device)
    plain = nn.Linear(9 * CHANNELS, CHANNELS).to(device)
    weight, bias = plain.weight, nn.Parameter(space.expmap0(plain.bias.detach() * 1e-3))

    def function(x: Tensor) -> Tensor:
        tangents = space.logmap0(x).movedim(-1, 1)
        windows = unfold(tangents, 3, padding=1).mT.unflatten(1, (SIDE, SIDE))
        z = space.expmap0(beta_scale(CHANNELS, 9) * windows)
        return space.mobius_add(space.mobius_matvec(weight, z), bias)

    return function, [weight, bias], ball_images(device)


def hypll_convolution(device: str) -> Built:
    """The convolution of hypll on its own tensors, channels first."""
    space = hypll_ball()
    layer = importlib.import_module("hypll.nn").HConvolution2d(
        CHANNELS, CHANNELS, 3, space, padding=1
    )
    if device != "cpu":
        layer = layer.to(device)
    wrap = importlib.import_module("hypll.tensors").ManifoldTensor

    def function(x: Tensor) -> Tensor:
        return layer(wrap(x, manifold=space, man_dim=1)).tensor

    points = ball_images(device).movedim(-1, 1).contiguous()
    return function, [layer.weights.tensor, layer.bias], points


def folded(manifold: Lorentz, in_features: int, out_features: int) -> nn.Module:
    """A layer of hyperplanes for inference; its weights train here, to be timed like the others."""
    return LorentzFC(manifold, in_features, out_features).folded().requires_grad_()


def behind_column(device: str) -> Built:
    """A linear map of points, with its outputs appended to the time coordinate of the inputs.

    Every layer of the hyperboloid that leaves the matrix product to torch has at least this cost.
    """
    plain, x = nn.Linear(DIM + 1, DIM).to(device), lorentz(device)
    return (lambda x: torch.cat((x[:, :1], plain(x)), -1)), list(plain.parameters()), x


def geoopt_linear(device: str) -> Built:
    """The Möbius linear layer of geoopt's examples, from its operations."""
    space = space_of("geoopt", "ball", device=device)
    plain = nn.Linear(DIM, DIM).to(device)
    weight, bias = plain.weight, nn.Parameter(space.expmap0(plain.bias.detach() * 1e-3))

    def function(x: Tensor) -> Tensor:
        return space.mobius_add(space.mobius_matvec(weight, x), bias)

    return function, [weight, bias], ball(device)


def geoopt_classifier(device: str) -> Built:
    """Signed distances by geoopt's ``dist2plane``, scaled by the lengths of the normals."""
    space = space_of("geoopt", "ball", device=device)
    normal = nn.Parameter(nn.Linear(DIM, CLASSES).to(device).weight.detach())
    point = nn.Parameter(space.expmap0(normal.detach() * 1e-2))

    def function(x: Tensor) -> Tensor:
        return space.dist2plane(x.unsqueeze(-2), point, normal, signed=True, scaled=True)

    return function, [normal, point], ball(device)


def hypll_linear(device: str) -> Built:
    """The layer of hypll on its own tensors."""
    space = hypll_ball()
    layer = importlib.import_module("hypll.nn").HLinear(DIM, DIM, space)
    if device != "cpu":
        layer = layer.to(device)
    wrap = importlib.import_module("hypll.tensors").ManifoldTensor

    def function(x: Tensor) -> Tensor:
        return layer(wrap(x, manifold=space, man_dim=-1)).tensor

    return function, [layer.z.tensor, layer.bias], ball(device)


def hypll_classifier(device: str) -> Built:
    """Signed distances to hyperplanes by hypll, whose normals are as long as its ``z``."""
    linalg = importlib.import_module("hypll.manifolds.poincare_ball.math.linalg")
    c = torch.tensor(1.0, device=device)
    plain = nn.Linear(DIM, CLASSES).to(device)
    z, r = nn.Parameter(plain.weight.detach().mT.contiguous()), plain.bias

    def function(x: Tensor) -> Tensor:
        return linalg.poincare_hyperplane_dists(x, z, r, c)

    return function, [z, r], ball(device)


conv = partial(Conv2d, in_features=CHANNELS, out_features=CHANNELS, kernel_size=3, padding=1)
HNN2, HCNN, FGG, HGCN = "2006.08210", "2303.15919", "2601.21529", "1910.12933"
RESNET, BUSEMANN, ILNN, CENTROID = "2303.14027", "2602.18858", "2602.23981", "2105.14686"

OURS, GEOOPT, ONES = "fedbolic", "1805.09112", (DIM, CLASSES)

ROWS: dict[str, tuple[tuple[str, str, Callable[[str], Built], str], ...]] = {
    "linear": (
        ("Linear", "torch", of(nn.Linear, vectors, DIM, DIM), ""),
        ("Linear behind a column", "torch", behind_column, ""),
        ("Linear, hyperboloid", OURS, of(Linear, lorentz, DIM, DIM), CENTROID),
        ("LorentzFC", OURS, of(LorentzFC, lorentz, DIM, DIM), FGG),
        ("LorentzFC, folded", OURS, of(folded, lorentz, DIM, DIM), FGG),
        ("Linear, ball", OURS, of(Linear, ball, DIM, DIM), HNN2),
        ("BusemannLinear, Lorentz", OURS, of(BusemannLinear, lorentz, DIM, DIM), BUSEMANN),
        ("BusemannLinear, ball", OURS, of(BusemannLinear, ball, DIM, DIM), BUSEMANN),
        ("Mobius linear", "geoopt", geoopt_linear, GEOOPT),
        ("HLinear", "hypll", hypll_linear, HNN2),
    ),
    "classifier": (
        ("Linear", "torch", of(nn.Linear, vectors, *ONES), ""),
        ("MLR, hyperboloid", OURS, of(MLR, lorentz, *ONES), HCNN),
        ("MLR, ball", OURS, of(MLR, ball, *ONES), HNN2),
        ("BusemannHead, Lorentz", OURS, of(BusemannHead, lorentz, *ONES), BUSEMANN),
        ("dist2plane", "geoopt", geoopt_classifier, GEOOPT),
        ("hyperplane_dists", "hypll", hypll_classifier, HNN2),
    ),
    "graph": (
        ("GCNConv", "torch_geometric", of(GCNConv, vectors, DIM, DIM, edges=True), ""),
        ("CentroidConv", OURS, of(CentroidConv, lorentz, DIM, DIM, edges=True), CENTROID),
        ("HGCNConv", OURS, of(HGCNConv, lorentz, DIM, DIM, edges=True), HGCN),
        (
            "HGCNConv at the origin",
            OURS,
            of(partial(HGCNConv, local=False), lorentz, DIM, DIM, edges=True),
            HGCN,
        ),
    ),
    "convolution": (
        ("Conv2d", "torch", of(partial(nn.Conv2d, padding=1), images, CHANNELS, CHANNELS, 3), ""),
        ("Conv2d, hyperboloid", OURS, of(conv, lorentz_images), HCNN),
        (
            "Conv2d of LorentzFC, log-radius",
            OURS,
            of(partial(conv, layer=LorentzFC, concatenation="log_radius"), lorentz_images),
            ILNN,
        ),
        ("Conv2d, ball", OURS, of(conv, ball_images), RESNET),
        ("windows, Mobius linear", "geoopt", geoopt_convolution, GEOOPT),
        ("HConvolution2d", "hypll", hypll_convolution, RESNET),
    ),
    "norm": (
        ("BatchNorm2d", "torch", of(nn.BatchNorm2d, images, CHANNELS), ""),
        (
            "HyperbolicBatchNorm, Lorentz",
            OURS,
            of(HyperbolicBatchNorm, lorentz_images, CHANNELS),
            HCNN,
        ),
        ("GyroBatchNorm, Lorentz", OURS, of(GyroBatchNorm, lorentz_images, CHANNELS), ILNN),
        ("GyroBatchNorm, ball", OURS, of(GyroBatchNorm, ball_images, CHANNELS), ILNN),
    ),
    "pool": (
        ("AvgPool2d", "torch", of(nn.AvgPool2d, images, 2), ""),
        ("CentroidPool2d, Lorentz", OURS, of(CentroidPool2d, lorentz_images, 2), HCNN),
        ("CentroidPool2d, ball", OURS, of(CentroidPool2d, ball_images, 2), RESNET),
    ),
    "block": blocks.ROWS,
    **{
        group: tuple(
            (title, library, partial(hgcn.built, f"{library} {title}", size), HGCN)
            for library, title in (name.split(" ", 1) for name in hgcn.ROWS)
        )
        for group, size in hgcn.SIZES.items()
    },
}
"""Names, libraries, builders and papers of the layers of every group, the reference first."""

CANDIDATES = tuple(Candidate(group, *row) for group, rows in ROWS.items() for row in rows)
FLOORS = {c.group: c.key for c in reversed(CANDIDATES) if c.library.startswith("torch")}
"""Key of the reference of each group, by whose time the others are divided."""
