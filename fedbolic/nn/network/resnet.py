"""Residual networks for images."""

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import relu
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.types import Meta
from fedbolic.nn.functional.convolution import StackableConv2d
from fedbolic.nn.network.backbone import Backbone, image_shape

GROUP = 16
"""Channels per group of group norm."""


@dataclass(frozen=True)
class ResNet(Backbone):
    """Residual network of two-layer blocks and a linear layer to ``dim``; by default ResNet-18.

    A stage is a sequence of blocks of one width; each stage after the first halves height and width
    and doubles the channels. Convolutions are initialised by He's rule.

    The authors of HyperFed train ``ResNet(norm="batch_untracked")`` on CIFAR. For 32x32 images, the
    feature maps of the four stages are 8, 4, 2 and 1 wide with the ImageNet stem. With the CIFAR
    stem they are 32 to 4 wide, at 15 times the multiplications.

    Args:
        dim: Width of the features, at least 1.
        blocks: Number of blocks in each stage; (2, 2, 2, 2) is ResNet-18, (3, 4, 6, 3) ResNet-34.
        width: Channels of the first stage, at least 1.
        stem: ``imagenet``: a 7x7 convolution of stride 2 and 3x3 max pooling of stride 2;
            ``cifar``: a 3x3 convolution.
        norm: ``batch``: batch norm with running statistics, which are shared like parameters.
            ``batch_untracked``: batch norm with the statistics of the current batch, in evaluation,
            too: **accuracy then depends on which examples are evaluated together**, and a single
            example cannot be evaluated if the last feature maps are 1x1. ``group``: group norm with
            16 channels per group, or one group where 16 does not divide the channels; an output
            depends on its own input only.

    Raises:
        TypeError: If ``blocks`` is no tuple.
        ValueError: If ``blocks`` is empty, a number is below 1, or ``stem`` or ``norm`` is unknown.

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
        check.instance(tuple, "(2, 2, 2, 2)", blocks=self.blocks)
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
        layers |= stages(self.blocks, self.width, functools.partial(ResidualBlock, norm=norm))
        layers["pool"] = GlobalMean()
        layers["linear"] = nn.Linear(self.width * 2 ** (len(self.blocks) - 1), self.dim)
        return nn.Sequential(layers)


def stages(
    blocks: Sequence[int], width: int, block: Callable[..., nn.Module]
) -> dict[str, nn.Module]:
    """Stages of a residual network by name; each after the first halves height and width.

    Args:
        blocks: Number of blocks in each stage.
        width: Width of the first stage, doubled in each later one.
        block: Builds a block from its inputs, its outputs and, by name, its stride.
    """
    made, inputs = {}, width
    for i, num_blocks in enumerate(blocks):
        outputs = width * 2**i
        first = block(inputs, outputs, stride=min(i, 1) + 1)
        others = [block(outputs, outputs, stride=1) for _ in range(num_blocks - 1)]
        made[f"stage{i + 1}"] = nn.Sequential(first, *others)
        inputs = outputs
    return made


Normed = Callable[[int], nn.Module]
"""Builds a normalisation layer from the number of channels."""


class GlobalMean(nn.Module):
    """The mean of each feature map, by an operation with a rule for ``vmap`` in any layout."""

    def forward(self, x: Tensor) -> Tensor:
        """One number for each channel."""
        return x.mean((-2, -1))


class ResidualBlock(nn.Module):
    """Residual block, ``relu(branch(x) + shortcut(x))``, with a branch of two 3x3 convolutions.

    The shortcut is the identity if the shape is unchanged, otherwise a 1x1 convolution (option B).
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
        """Feature maps whose height and width are divided by the stride and rounded up."""
        return relu(self.branch(x) + self.shortcut(x))


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution initialised by He's rule, without bias because a normalisation follows."""
    conv = StackableConv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
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
