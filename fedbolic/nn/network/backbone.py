"""Frozen configurations of networks that map inputs to features."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.types import Meta
from fedbolic.nn.functional.convolution import StackableConv2d
from fedbolic.nn.layers.dropout import Dropout


class Backbone(ABC):
    """Configuration of the network from inputs to features, the part that every method shares."""

    @property
    def num_features(self) -> int:
        """Width of the features.

        Raises:
            TypeError: If the width depends on the inputs, so that only :meth:`width_for` knows it.
        """
        raise TypeError(f"{type(self).__name__} has no num_features: define it, or width_for(meta)")

    def width_for(self, meta: Meta) -> int:
        """Width of the features for inputs of ``meta.input_shape``; ``num_features`` by default."""
        del meta
        return self.num_features

    @abstractmethod
    def build(self, meta: Meta) -> nn.Module:
        """Build a newly initialised network for inputs of ``meta.input_shape``."""


@dataclass(frozen=True)
class MLP(Backbone):
    """Fully connected layers, each followed by ReLU; inputs are flattened.

    Args:
        widths: Width of each layer, at least 1; the last is the width of the features.
        dropout: Fraction of every layer's outputs dropped in training, in [0, 1).
        dim: Width of a further linear layer without ReLU, at least 1, which gives features of
            either sign, as prototypes on a sphere need them; ``None`` for no such layer.

    Raises:
        TypeError: If ``widths`` is no tuple.
        ValueError: If ``widths`` is empty, a width is below 1 or ``dropout`` is out of range.
    """

    widths: tuple[int, ...] = (200,)
    dropout: float = 0.0
    dim: int | None = None

    def __post_init__(self) -> None:
        check.instance(tuple, "(200,)", widths=self.widths)
        check.at_least(1, num_widths=len(self.widths))
        check.at_least(1, narrowest_width=min(self.widths))
        check.rate(below_one=True, dropout=self.dropout)
        if self.dim is not None:
            check.at_least(1, dim=self.dim)

    @property
    @override
    def num_features(self) -> int:
        return self.dim or self.widths[-1]

    @override
    def build(self, meta: Meta) -> nn.Module:
        widths = (math.prod(meta.input_shape), *self.widths)
        layers: list[nn.Module] = [nn.Flatten()]
        for i in range(len(self.widths)):
            layers += [nn.Linear(widths[i], widths[i + 1]), nn.ReLU()]
            layers += [Dropout(self.dropout)] if self.dropout else []
        return nn.Sequential(*layers, *([nn.Linear(widths[-1], self.dim)] if self.dim else []))


def image_shape(meta: Meta, network: str) -> tuple[int, int, int]:
    """Channels, height and width of images for a network that halves height and width twice.

    Args:
        meta: Description of the federated data, with the input shape.
        network: Name of the network, for the error message.

    Raises:
        ValueError: If the inputs are not images, or are below 4 pixels in height or width, which
            usually means that the channels come last.
    """
    if len(meta.input_shape) != 3 or min(meta.input_shape[1:]) < 4:
        raise ValueError(
            f"{network} needs images of shape (channels, height >= 4, width >= 4), "
            f"got examples of shape {meta.input_shape}: use MLP for tables"
        )
    channels, height, width = meta.input_shape
    return channels, height, width


class ChannelsLast(nn.Module):
    """Converts images to channels-last memory layout; shape and values do not change.

    Small convolutions and pooling then take about 6/10 of the time on the CPU. Images with one
    channel are viewed, not copied. ``to(memory_format=...)`` is no substitute: it leaves images
    with one channel unchanged, and ``vmap`` does not support it.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The same images in channels-last layout."""
        n, *shape = x.shape[0], x.shape[2], x.shape[3], x.shape[1]
        pixels = x.permute(0, 2, 3, 1).reshape(n, math.prod(shape))  # gives every axis a stride
        return pixels.unflatten(1, shape).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class ConvNet(Backbone):
    """Two 5x5 convolutions (16 and 32 channels) with 2x2 max pooling and ReLU, then a linear layer.

    For 28x28 grey images and 20 features, this is the network of 44,628 parameters that the
    authors of HyperFed train on EMNIST and Fashion-MNIST.

    Args:
        dim: Width of the features, at least 1.

    Raises:
        ValueError: If ``dim`` is below 1.

    References:
        LeCun et al. (1998); Liao et al. (2023), Sec. 5.1, arXiv:2307.14384.
    """

    dim: int = 20

    def __post_init__(self) -> None:
        check.at_least(1, dim=self.dim)

    @property
    @override
    def num_features(self) -> int:
        return self.dim

    @override
    def build(self, meta: Meta) -> nn.Module:
        channels, height, width = image_shape(meta, "ConvNet")
        return nn.Sequential(
            ChannelsLast(),
            StackableConv2d(channels, 16, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
            StackableConv2d(16, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), self.dim),
        )  # fmt: skip
