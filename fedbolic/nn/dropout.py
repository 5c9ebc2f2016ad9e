"""Dropout whose coins are a function of a number that the module carries."""

import torch
from torch import Tensor, nn

from fedbolic import check

SEED = "dropout_seed"
"""The name of the buffer, by which a federated engine finds it in any network."""


class Dropout(nn.Module):
    """``torch.nn.Dropout`` without the global random stream.

    Which elements are dropped is computed from a seed, a buffer of the module, and from the places
    of the elements: the same on every device, in every dtype, under ``vmap`` with a seed for each
    copy, and after a checkpoint was loaded. Every forward pass of training moves the seed on.
    A federated engine gives each client a seed of its own in each round, so that a client's coins
    depend neither on the engine nor on the other clients. A vector of seeds drops from every row of
    ``x`` what its seed alone would.

    Args:
        p: The share of elements that become 0, in [0, 1); the others are multiplied by
            ``1 / (1 - p)``. With 0 there is no seed.
        device: Where the seed is made.

    Raises:
        ValueError: If ``p`` is out of range.

    References:
        Srivastava et al. (2014), JMLR 15; Steele et al. (2014), doi:10.1145/2660193.2660195
        (SplitMix64, which mixes the seed and the places).

    Example:
        >>> layer = Dropout(p=0.5)
        >>> layer(torch.ones(1000)).unique()
        tensor([0., 2.])
        >>> layer.eval()(torch.ones(3))
        tensor([1., 1., 1.])
    """

    dropout_seed: Tensor

    def __init__(self, p: float = 0.5, *, device: torch.device | str | None = None) -> None:
        super().__init__()
        check.rate(below_one=True, p=p)
        self.p = p
        if p:
            self.register_buffer(SEED, torch.randint(2**63 - 1, (), device=device))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` with some elements dropped in training, and as it is in evaluation."""
        if not self.training or self.p == 0:
            return x
        seed = self.dropout_seed
        own = x.shape[seed.ndim :]
        words = torch.arange(1, own.numel() // 2 + 2, device=x.device).mul_(STEP)
        coins = _mixed(_mixed(seed).unsqueeze(-1) + words).view(torch.int32)  # two of each word
        self.dropout_seed = seed + 1
        least = min(round(self.p * 2**32), 2**32 - 1) - 2**31
        kept = coins.bitwise_xor_(-(2**31)) >= least  # as if compared without a sign
        kept = kept[..., : own.numel()].reshape(x.shape)
        return x * kept.to(x.dtype).div_(1 - self.p)

    def extra_repr(self) -> str:
        """The rate, for ``print``."""
        return f"p={self.p}"


# The constants of SplitMix64, as the signed integers of the same bits.
STEP = 0x9E3779B97F4A7C15 - 2**64
FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


def _mixed(bits: Tensor) -> Tensor:
    """The bits in disorder: each depends on all. Products wrap around, as they should."""
    for by, factor in zip((30, 27), FACTORS, strict=True):
        bits = _shifted(bits, by).bitwise_xor_(bits).mul_(factor)
    return _shifted(bits, 31).bitwise_xor_(bits)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """The bits moved down, with zeros moving in: torch moves in the sign."""
    return (bits >> by).bitwise_and_(2 ** (64 - by) - 1)
