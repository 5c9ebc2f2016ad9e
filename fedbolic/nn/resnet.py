"""Residual networks for images, as a frozen recipe."""

import functools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import relu
from typing_extensions import override

from fedbolic import check
from fedbolic.nn.backbone import Backbone, image_shape
from fedbolic.types import Meta

GROUP = 16
"""Channels of a group of group norm."""


@dataclass(frozen=True)
class ResNet(Backbone):
    """A residual network of two-layer blocks; by default ResNet-18, with a linear layer to ``dim``.

    A stage is a row of blocks of one width; each stage after the first halves height and width and
    doubles the channels. Convolutions start by He's rule.

    HyperFed's authors train ``ResNet(norm="batch_untracked")`` on CIFAR. With the ImageNet stem the
    maps of a 32x32 image are 8, 4, 2 and 1 wide in the four stages, with the CIFAR stem 32 to 4 and
    15 times the multiplications.

    Args:
        dim: Width of the features.
        blocks: Number of blocks of every stage; (2, 2, 2, 2) is ResNet-18, (3, 4, 6, 3) ResNet-34.
        width: Channels of the first stage.
        stem: ``imagenet``: a 7x7 convolution of stride 2 and 3x3 max pooling of stride 2;
            ``cifar``: a 3x3 convolution.
        norm: ``batch``: batch norm with running statistics, which are shared like parameters.
            ``batch_untracked``: batch norm by the batch at hand, in evaluation too: **its accuracy
            depends on which examples are evaluated together**, and one example alone cannot be
            evaluated where the last maps are 1x1. ``group``: group norm of 16 channels a group, or
            of all where 16 does not divide them; an output depends on its own input only.

    Raises:
        ValueError: If there is no stage, a number is below 1, or a name is not among these.

    References:
        He et al. (2016), arXiv:1512.03385; He et al. (2015), Eq. (14),
        arXiv:1502.01852; Wu and He (2018), arXiv:1803.08494; Liao et al. (2023), Sec. 5.1,
        arXiv:2307.14384.

    Example:
        >>> network = ResNet(dim=5, blocks=(1, 1), width=4).build(Meta(10, (3, 32, 32), 1))
        >>> sum(value.numel() for value in network.parameters())
        1889
    """

    dim: int = 20
    blocks: tuple[int, ...] = (2, 2, 2, 2)
    width: int = 64
    stem: Literal["imagenet", "cifar"] = "imagenet"
    norm: Literal["batch", "batch_untracked", "group"] = "batch"

    def __post_init__(self) -> None:
        check.at_least(1, dim=self.dim, num_stages=len(self.blocks), width=self.width)
        check.at_least(1, fewest_blocks=min(self.blocks))
        check.one_of(_STEMS, stem=self.stem)
        check.one_of(NORMS, norm=self.norm)

    @property
    @override
    def num_features(self) -> int:
        return self.dim

    @override
    def build(self, meta: Meta) -> nn.Module:
        in_channels, _, _ = image_shape(meta, "ResNet")
        norm = NORMS[self.norm]
        layers = OrderedDict(stem=_STEMS[self.stem](in_channels, self.width, norm))
        channels = self.width
        for i, num_blocks in enumerate(self.blocks):
            outputs = self.width * 2**i
            first = ResidualBlock(channels, outputs, norm, stride=min(i, 1) + 1)
            others = [ResidualBlock(outputs, outputs, norm) for _ in range(num_blocks - 1)]
            layers[f"stage{i + 1}"] = nn.Sequential(first, *others)
            channels = outputs
        layers["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        layers["linear"] = nn.Linear(channels, self.dim)
        return nn.Sequential(layers)


Normed = Callable[[int], nn.Module]
"""Makes a normalisation from the number of channels."""


class ResidualBlock(nn.Module):
    """``relu(branch(x) + shortcut(x))``, the branch being two 3x3 convolutions.

    The shortcut is the identity where the shape stays, else a 1x1 convolution (option B).
    """

    def __init__(self, inputs: int, outputs: int, norm: Normed, *, stride: int = 1) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            _conv(inputs, outputs, 3, stride), norm(outputs), nn.ReLU(),
            _conv(outputs, outputs, 3), norm(outputs),
        )  # fmt: skip
        self.shortcut = (
            nn.Identity()
            if (inputs, stride) == (outputs, 1)
            else nn.Sequential(_conv(inputs, outputs, 1, stride), norm(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        """The maps of the next block, of height and width divided by the stride, rounded up."""
        return relu(self.branch(x) + self.shortcut(x))


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias, as a normalisation follows, that starts by He's rule."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def _imagenet_stem(inputs: int, outputs: int, norm: Normed) -> nn.Module:
    conv = _conv(inputs, outputs, 7, stride=2)
    return nn.Sequential(conv, norm(outputs), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))


def _cifar_stem(inputs: int, outputs: int, norm: Normed) -> nn.Module:
    return nn.Sequential(_conv(inputs, outputs, 3), norm(outputs), nn.ReLU())


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(1 if channels % GROUP else channels // GROUP, channels)


_STEMS = {"imagenet": _imagenet_stem, "cifar": _cifar_stem}
NORMS: dict[str, Normed] = {
    "batch": nn.BatchNorm2d,
    "batch_untracked": functools.partial(nn.BatchNorm2d, track_running_stats=False),
    "group": _group_norm,
}
