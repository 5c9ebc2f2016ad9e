"""Dropout layers whose masks are a function of a seed in the module's state."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from typing_extensions import override

from fedbolic import kernels
from fedbolic.core import check
from fedbolic.formulas.registrar import mapped, replaced_by
from fedbolic.nn.functional.recomputed import seed_of_pass

SEED = "dropout_seed"
"""Name of the seed buffer; a federated engine looks for it in any network."""

_OLD = torch.__version__ < "2.13"  # a version, compared as such


class _Coins(nn.Module, ABC):
    """Dropout rate, seed, and the masks that the seed determines."""

    dropout_seed: Tensor

    def __init__(self, p: float = 0.5, *, device: torch.device | str | None = None) -> None:
        super().__init__()
        check.rate(below_one=True, p=p)
        self.p = p
        if p:
            self.register_buffer(SEED, torch.randint(2**63 - 1, (), device=device))

    @override
    def forward(self, x: Tensor) -> Tensor:
        """``x`` with random elements dropped in training, and unchanged in evaluation."""
        return self._dropped(x) if self.training and self.p else x

    @abstractmethod
    def _dropped(self, x: Tensor) -> Tensor:
        """``x`` with random elements dropped."""

    @property
    def _least(self) -> int:
        """The coin of 32 bits from which an element is kept."""
        return min(round(self.p * 2**32), 2**32 - 1)

    def _next_seed(self) -> Tensor:
        """The seed of a pass; a new pass advances the buffer."""
        return seed_of_pass(self, self._advance)

    def _advance(self) -> Tensor:
        seed = self.dropout_seed
        self.dropout_seed = seed + 1
        return seed

    def _kept(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A mask of 1 with probability ``1 - p``, else 0; advances the seed."""
        seed = self._next_seed()
        own = torch.Size(shape[seed.ndim :])
        words = torch.arange(1, own.numel() // 2 + 2, device=device).mul_(_STEP)
        words = mixed_bits(mixed_bits(seed).unsqueeze(-1) + words)  # of two coins each
        # torch 2.13's code for such a view corrupts memory, and torch 2.11 does not map it
        if torch.compiler.is_compiling() or (_OLD and is_batchedtensor(words)):
            coins = torch.stack((words << 32 >> 32, words >> 32), dim=-1).flatten(-2)
        else:
            coins = words.view(torch.int32)
        # an unsigned comparison on signed integers
        kept = coins.bitwise_xor_(-(2**31)) >= self._least - 2**31
        return kept[..., : own.numel()].reshape(shape).to(dtype)

    @override
    def extra_repr(self) -> str:
        return f"p={self.p}"


class _Masked(torch.autograd.Function):
    """Elements times a mask by the kernel, which stores no mask: its gradient draws it again.

    The product is its own gradient and keeps no elements for it, as the registrar would.
    """

    @staticmethod
    def forward(x: Tensor, seed: Tensor, least: int, factor: float) -> Tensor:
        from fedbolic.kernels.dropout import masked

        return masked(x, seed, least=least, factor=factor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _, seed, ctx.least, ctx.factor = inputs
        ctx.save_for_backward(seed)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (seed,) = ctx.saved_tensors
        return _Masked.apply(grad_outputs[0], seed, ctx.least, ctx.factor), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[Tensor, int]:
        return _Masked.apply(*mapped(info, in_dims[:2], inputs[:2]), *inputs[2:]), 0


def _masked_by_kernel(layer: "Dropout", x: Tensor) -> Tensor:
    return _Masked.apply(x, layer._next_seed(), layer._least, _factor(layer.p, x.dtype))


def _takes(layer: "Dropout", x: Tensor) -> bool:
    """True if the kernel reads elements in the order in which they lie; torch keeps others."""
    del layer
    return x.dtype in (torch.float32, torch.float64) and kernels.run_on(x) and x.is_contiguous()


class Dropout(_Coins):
    """``torch.nn.Dropout`` that does not use the global random stream.

    The mask is computed from a seed, a buffer of the module, and from the index of each element.
    It is the same on every device and in every dtype, under ``vmap`` with one seed per copy, and
    after a checkpoint is loaded. Every forward pass in training advances the seed, except one that
    ``torch.utils.checkpoint`` computes again: it has the mask of the first pass. A federated
    engine sets a separate seed for each client and round, so the mask of a client depends neither
    on the engine nor on other clients. With a vector of seeds, each row of ``x`` is masked by its
    own seed.

    Args:
        p: Fraction of elements set to 0, in [0, 1); the others are multiplied by ``1 / (1 - p)``.
            With 0 there is no seed.
        device: Device of the seed.

    Shapes:
        A tensor of any shape to one of the same shape.

    Raises:
        ValueError: If ``p`` is out of range.

    References:
        Srivastava et al. (2014), JMLR 15; Steele et al. (2014), doi:10.1145/2660193.2660195
        (SplitMix64, which mixes the seed and the indices).

    Example:
        >>> layer = Dropout(p=0.5)
        >>> layer(torch.ones(1000)).unique()
        tensor([0., 2.])
        >>> layer.eval()(torch.ones(3))
        tensor([1., 1., 1.])
    """

    @override
    @replaced_by(_masked_by_kernel, _takes)
    def _dropped(self, x: Tensor) -> Tensor:
        return x * self._kept(x.shape, x.dtype, x.device).div_(1 - self.p)


class ChannelDropout(_Coins):
    """``torch.nn.Dropout1d``, ``2d`` or ``3d`` with masks drawn as in :class:`Dropout`.

    Args:
        p: Fraction of channels set to 0, in [0, 1); the others are multiplied by ``1 / (1 - p)``.
            With 0 there is no seed.
        num_axes: Trailing axes of a channel: 1, 2 or 3. With 2, an input of three axes is read as
            examples, channels and one more axis, as torch does.
        device: Device of the seed.

    Raises:
        ValueError: If ``p`` is out of range or ``num_axes`` is below 1.

    References:
        Tompson et al. (2015), arXiv:1411.4280.

    Example:
        >>> ChannelDropout(p=0.5, num_axes=2)(torch.ones(1, 99, 4, 4)).sum((2, 3)).unique()
        tensor([ 0., 32.])
    """

    def __init__(
        self, p: float = 0.5, *, num_axes: int, device: torch.device | str | None = None
    ) -> None:
        super().__init__(p, device=device)
        check.at_least(1, num_axes=num_axes)
        self.num_axes = num_axes

    @override
    def _dropped(self, x: Tensor) -> Tensor:
        num_axes = 1 if (self.num_axes, x.ndim) == (2, 3) else self.num_axes
        channels = (*x.shape[:-num_axes], *[1] * num_axes)
        return x * self._kept(channels, x.dtype, x.device).div_(1 - self.p)

    @override
    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, num_axes={self.num_axes}"


class AlphaDropout(_Coins):
    r"""``torch.nn.AlphaDropout`` with masks drawn as in :class:`Dropout`.

    .. math:: y = a \, (m \odot x + (1 - m) \, s) + b, \quad a = ((1 - p)(1 + p s^2))^{-1/2},
        \quad b = -a p s

    with the mask :math:`m` and the limit :math:`s` of SELU towards minus infinity. A mean of 0 and
    a variance of 1 are preserved.

    Args:
        p: Fraction of elements replaced by :math:`s`, in [0, 1). With 0 there is no seed.
        device: Device of the seed.

    Raises:
        ValueError: If ``p`` is out of range.

    References:
        Klambauer et al. (2017), arXiv:1706.02515.

    Example:
        >>> AlphaDropout(p=0.5)(torch.zeros(1000)).unique()
        tensor([-0.7792,  0.7792])
    """

    @override
    def _dropped(self, x: Tensor) -> Tensor:
        a = ((1 - self.p) * (1 + self.p * SATURATED**2)) ** -0.5
        kept = self._kept(x.shape, x.dtype, x.device)
        return a * (x * kept + SATURATED * (1 - kept)) - a * self.p * SATURATED


SATURATED = -1.0507009873554805 * 1.6732632423543772
"""Limit of SELU towards minus infinity: minus its scale times its alpha."""

# The constants of SplitMix64 as signed integers with the same bits.
_STEP = 0x9E3779B97F4A7C15 - 2**64
FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


@functools.cache
def _factor(p: float, dtype: torch.dtype) -> float:
    """``1 / (1 - p)`` as torch rounds it."""
    return torch.ones((), dtype=dtype).div_(1 - p).item()


def mixed_bits(bits: Tensor) -> Tensor:
    """The finaliser of SplitMix64: every output bit depends on all input bits.

    The products are meant to overflow.

    Args:
        bits: Integers of 64 bits.
    """
    for by, factor in zip((30, 27), FACTORS, strict=True):
        bits = _shifted(bits, by).bitwise_xor_(bits).mul_(factor)
    return _shifted(bits, 31).bitwise_xor_(bits)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """A logical right shift; torch shifts in the sign bit instead of zeros."""
    return (bits >> by).bitwise_and_(2 ** (64 - by) - 1)
