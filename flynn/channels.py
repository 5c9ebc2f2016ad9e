"""Channels of the hash: features as they are, with random signs, or next to their negatives."""

from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Int32
from torch import Tensor

from fedbolic import check
from fedbolic.rng import Rng

Channels: TypeAlias = Literal["plain", "signed", "on-off"]


def check_channels(channels: str) -> None:
    """Refuse a name of no channels.

    Raises:
        ValueError: If it is not one of :data:`Channels`.
    """
    check.one_of(get_args(Channels), channels=channels)


def width(channels: Channels, num_inputs: int) -> int:
    """Number of values that the lift adds up: twice the features for ``on-off``.

    Args:
        channels: Which.
        num_inputs: Number of features ``d``.
    """
    return 2 * num_inputs if channels == "on-off" else num_inputs


def channel_signs(
    channels: Channels, num_inputs: int, seed: int
) -> Int32[Tensor, "num_channels d"] | None:
    r"""The sign of every feature in each channel; `None` for ``plain``, which has no signs.

    .. math:: x \mapsto x, \quad x \mapsto \sigma \odot x, \quad x \mapsto (x, -x)

    A row of the lift adds up features, so ``plain`` cannot see what is added to all of them alike:
    ``h(x + b) = h(x)``. With ``signed`` every feature has a sign, fair and fixed, and a row takes
    differences as well as sums. ``on-off`` has the ON and OFF cells of vision and smell: a row
    takes a feature, its negative, or both, which cancel.

    Args:
        channels: Which.
        num_inputs: Number of features ``d``.
        seed: Of the hash. Signs are drawn from its stream named ``signs``, so that they are
            independent of the connections.

    Example:
        >>> channel_signs("on-off", 3, seed=0).tolist()
        [[1, 1, 1], [-1, -1, -1]]
        >>> channel_signs("signed", 3, seed=0).abs().tolist()
        [[1, 1, 1]]
    """
    if channels == "plain":
        return None
    if channels == "on-off":
        return torch.tensor([[1], [-1]], dtype=torch.int32).repeat(1, num_inputs)
    words = np.random.Philox(key=Rng(seed).at("signs").number()).random_raw(num_inputs)
    heads = (words >> np.uint64(63)).astype(np.int32)
    return torch.from_numpy(2 * heads - 1)[None]
