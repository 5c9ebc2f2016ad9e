"""A small network on a hyperboloid of learnable curvature."""

import math
from dataclasses import dataclass

from torch import nn
from typing_extensions import override

from fedbolic.core.types import Meta
from fedbolic.manifolds import Curvature, Lorentz
from fedbolic.nn.network.backbone import Backbone


class OnHyperboloid(nn.Module):
    """Directions and distances from the origin on a hyperboloid of learnable curvature."""

    def __init__(self, num_inputs, width):
        super().__init__()
        self.linear = nn.Linear(num_inputs, width)
        self.curvature = Curvature(0.5)

    def forward(self, x):
        lorentz = Lorentz(self.curvature.c)
        points = lorentz.expmap0(lorentz.lift(self.linear(x.flatten(1))))
        return points[..., 1:] * lorentz.dist0(points).unsqueeze(-1)


@dataclass(frozen=True)
class CurvedNet(Backbone):
    """A linear layer to a hyperboloid of learnable curvature."""

    width: int = 4

    @property
    @override
    def num_features(self) -> int:
        return self.width

    @override
    def build(self, meta: Meta) -> nn.Module:
        return OnHyperboloid(math.prod(meta.input_shape), self.width)
