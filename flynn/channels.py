"""Input channels of the hash: features, randomly signed features, or features and negatives."""

from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Int32
from torch import Tensor

from fedbolic.core import check
from fedbolic.core.rng import Rng

Channels: TypeAlias = Literal["plain", "signed", "on-off"]


def check_channels(channels: str) -> None:
    """Check the name of the channels.

    Raises:
        ValueError: If the name is not one of :data:`Channels`.
    """
    check.one_of(get_args(Channels), channels=channels)


def width(channels: Channels, num_inputs: int) -> int:
    """Number of inputs of the lift: twice the number of features for ``on-off``.

    Args:
        channels: Kind of channels.
        num_inputs: Number of features ``d``.
    """
    return 2 * num_inputs if channels == "on-off" else num_inputs


def channel_signs(
    channels: Channels, num_inputs: int, seed: int
) -> Int32[Tensor, "num_channels d"] | None:
    r"""Sign of each feature in each channel; ``None`` for ``plain``, which has no signs.

    .. math:: x \mapsto x, \quad x \mapsto \sigma \odot x, \quad x \mapsto (x, -x)

    A row of the lift sums features, so ``plain`` is invariant to a constant added to all of them:
    ``h(x + b) = h(x)``. With ``signed``, every feature has a fixed, uniformly drawn sign, and a row
    computes differences as well as sums. ``on-off`` models the ON and OFF cells of vision and
    smell: a row may contain a feature, its negative, or both, which cancel.

    Args:
        channels: Kind of channels.
        num_inputs: Number of features ``d``.
        seed: Seed of the hash. Signs come from its stream ``signs``, so they are independent of the
            connections.

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
