"""Residual networks for images whose feature maps are points of a hyperbolic space."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.types import Meta
from fedbolic.manifolds import Curvature, Lorentz, Poincare
from fedbolic.nn.functional.space import HyperbolicModule
from fedbolic.nn.functional.tangent import points_to_tangents
from fedbolic.nn.layers.activation import SpaceActivation
from fedbolic.nn.layers.image_convolution import Conv2d
from fedbolic.nn.layers.linear import Linear
from fedbolic.nn.layers.normalize import GyroBatchNorm, HyperbolicBatchNorm, HyperbolicLayerNorm
from fedbolic.nn.layers.pool import CentroidPool
from fedbolic.nn.layers.residual import HyperbolicResidual
from fedbolic.nn.layers.to_manifold import ToManifold
from fedbolic.nn.network.backbone import Backbone, image_shape
from fedbolic.nn.network.resnet import stages


@dataclass(frozen=True)
class HyperbolicResNet(Backbone):
    """Residual network on the hyperboloid or in the ball; by default ResNet-20.

    The values of a pixel are the space coordinates of a point. Convolutions, norms, ReLU on space
    coordinates, residual connections by centroids and the global pool, a centroid, keep to the
    space. The last layer is a linear one to ``dim`` dimensions, and its points are given as
    tangents at the origin: a method adds its own head, flat or hyperbolic, as to any backbone.

    Stages are those of ``ResNet`` with the CIFAR stem, which is the flat twin:
    ``ResNet(blocks=(3, 3, 3), width=16, stem="cifar")`` for the default.

    Args:
        dim: Width of the features, at least 1.
        blocks: Number of blocks in each stage; (3, 3, 3) with ``width=16`` is ResNet-20,
            (2, 2, 2, 2) with ``width=64`` ResNet-18.
        width: Dimensions of the points of the first stage, at least 1; doubled in each later stage.
        model: ``lorentz`` or ``poincare``.
        c: Minus the sectional curvature, above 0.
        learnable: Whether to learn one curvature for the whole network, from ``c`` on.
        norm: ``batch``: batch norm of all pixels, with running statistics. ``gyro``: the same with
            one scale for all coordinates, ``GyroBatchNorm``. ``layer``: layer norm of the
            coordinates of each pixel; an output depends on its own input only.

    Raises:
        TypeError: If ``blocks`` is no tuple.
        ValueError: If ``blocks`` is empty, a number is out of range, or ``model`` or ``norm`` is
            unknown.

    References:
        Bdeir et al. (2024), arXiv:2303.15919, for the hyperboloid; van Spengler et al. (2023),
        arXiv:2303.14027, for the ball; He et al. (2016), Sec. 4.2, arXiv:1512.03385, for the
        stages.

    Example:
        >>> network = HyperbolicResNet(5, blocks=(1, 1), width=4).build(Meta(10, (3, 8, 8), 1))
        >>> network(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 5])
    """

    dim: int = 64
    blocks: tuple[int, ...] = (3, 3, 3)
    width: int = 16
    model: Literal["lorentz", "poincare"] = "lorentz"
    c: float = 1.0
    learnable: bool = False
    norm: Literal["batch", "gyro", "layer"] = "batch"

    def __post_init__(self) -> None:
        check.instance(tuple, "(3, 3, 3)", blocks=self.blocks)
        check.at_least(1, dim=self.dim, num_stages=len(self.blocks), width=self.width)
        check.at_least(1, fewest_blocks=min(self.blocks))
        check.positive(c=self.c)
        check.one_of(_MODELS, model=self.model)
        check.one_of(_NORMS, norm=self.norm)

    @property
    @override
    def num_features(self) -> int:
        return self.dim

    @override
    def build(self, meta: Meta) -> nn.Module:
        channels, _, _ = image_shape(meta, "HyperbolicResNet")
        space = _MODELS[self.model](Curvature(self.c) if self.learnable else self.c)
        parts = _Parts(space, self.norm)
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            entry=PixelsToPoints(space),
            stem=nn.Sequential(*parts.convolution(channels, self.width, 3), parts.relu()),
        )
        layers |= stages(self.blocks, self.width, parts.block)
        layers["pool"] = nn.Sequential(nn.Flatten(1, 2), CentroidPool(space))
        layers["linear"] = Linear(space, self.width * 2 ** (len(self.blocks) - 1), self.dim)
        layers["exit"] = ToTangents(space)
        return nn.Sequential(layers)


class PixelsToPoints(nn.Module):
    """Images of points from torch's images, whose channels become space coordinates, now last.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``.

    Example:
        >>> PixelsToPoints(Lorentz(c=1.0))(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 8, 8, 4])
    """

    def __init__(self, manifold: Lorentz | Poincare) -> None:
        super().__init__()
        self.entry = ToManifold(manifold, mode="space")

    @override
    def forward(
        self, x: Float[Tensor, "*batch channels height width"]
    ) -> Float[Tensor, "*batch height width ambient"]:
        return self.entry(x.movedim(-3, -1))


class ToTangents(HyperbolicModule[Lorentz | Poincare]):
    """Tangents at the origin of points, whose lengths are the distances: a logarithm.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``.

    Example:
        >>> x = Lorentz(c=1.0).expmap0(torch.tensor([0.0, 0.3, 0.4]))
        >>> ToTangents(Lorentz(c=1.0))(x)
        tensor([0.3000, 0.4000])
    """

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch n"]:
        self.check(x)
        return points_to_tangents(self.manifold, x).to(x.dtype)


@dataclass(frozen=True)
class _Parts:
    """Layers of one network, which share a space.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``.
        norm: Key of the norm.
    """

    manifold: Lorentz | Poincare
    norm: str

    def convolution(
        self, inputs: int, outputs: int, size: int, stride: int = 1
    ) -> tuple[nn.Module, nn.Module]:
        """A convolution without bias, because the norm that follows has one."""
        space, padding = self.manifold, size // 2
        return (
            Conv2d(space, inputs, outputs, size, stride=stride, padding=padding, bias=False),
            _NORMS[self.norm](space, outputs),
        )

    def relu(self) -> nn.Module:
        """ReLU of space coordinates."""
        return SpaceActivation(self.manifold, torch.relu)

    def block(self, inputs: int, outputs: int, *, stride: int) -> nn.Module:
        """Residual block with a branch of two 3x3 convolutions, and a ReLU after the centroid."""
        branch = nn.Sequential(
            *self.convolution(inputs, outputs, 3, stride),
            self.relu(),
            *self.convolution(outputs, outputs, 3),
        )
        same = (inputs, stride) == (outputs, 1)
        shortcut = None if same else nn.Sequential(*self.convolution(inputs, outputs, 1, stride))
        residual = HyperbolicResidual(self.manifold, branch, shortcut=shortcut)
        return nn.Sequential(OrderedDict(residual=residual, relu=self.relu()))


_MODELS: dict[str, type[Lorentz] | type[Poincare]] = {"lorentz": Lorentz, "poincare": Poincare}
_NORMS = {"batch": HyperbolicBatchNorm, "gyro": GyroBatchNorm, "layer": HyperbolicLayerNorm}
