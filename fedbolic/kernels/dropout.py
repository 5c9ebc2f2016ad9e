# pyright: reportMissingImports=false, reportIndexIssue=false
"""Kernel of dropout by a counter: SplitMix64 of a seed and of the index of each element."""

import torch
import triton
from torch import Tensor
from triton import language as tl

from fedbolic.kernels.launch import WARPS, launch

DROPOUT_WORDS = 512
"""Words of a program, each the coins of two elements."""

STEP, FIRST, SECOND = map(
    tl.constexpr, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
"""The constants of SplitMix64."""


@triton.jit
def _mixed(bits):
    """The finaliser of SplitMix64, whose products are meant to overflow."""
    bits = (bits ^ (bits >> 30)) * FIRST
    bits = (bits ^ (bits >> 27)) * SECOND
    return bits ^ (bits >> 31)


@triton.jit
def dropout_kernel(x, seeds, out, n, least, FACTOR: tl.constexpr, WORDS: tl.constexpr):
    """Elements of a few words, times a factor or 0; the low half of a word comes first."""
    blocks = tl.cdiv(n, 2 * WORDS)
    row, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    start = tl.zeros([WORDS], tl.uint64) + tl.load(seeds + row).to(tl.uint64)
    words = block.to(tl.int64) * WORDS + tl.arange(0, WORDS)
    bits = _mixed(_mixed(start) + (words + 1).to(tl.uint64) * STEP)
    coins = tl.interleave(bits & 0xFFFFFFFF, bits >> 32).to(tl.int64)
    i = block.to(tl.int64) * (2 * WORDS) + tl.arange(0, 2 * WORDS)
    given = tl.load(x + row * n + i, mask=i < n, other=0.0)
    factor = tl.where(coins >= least, tl.full([2 * WORDS], FACTOR, given.dtype), 0.0)
    tl.store(out + row * n + i, given * factor, mask=i < n)


def masked(x: Tensor, seeds: Tensor, *, least: int, factor: float) -> Tensor:
    """Elements times a factor or 0, by coins of 32 bits.

    Args:
        x: Elements in float32 or float64; the leading axes are those of ``seeds``.
        seeds: Seeds, 64-bit integers.
        least: Coin from which an element is kept, below ``2**32``.
        factor: Factor of the elements that are kept, a number of the dtype of ``x``.
    """
    x, seeds = x.contiguous(), seeds.contiguous()
    out = torch.empty_like(x)
    n = x.numel() // max(1, seeds.numel())
    launch(
        dropout_kernel, triton.cdiv(n, 2 * DROPOUT_WORDS) * seeds.numel(), x, x, seeds, out, n,
        least, FACTOR=factor, WORDS=DROPOUT_WORDS, num_warps=WARPS,
    )  # fmt: skip
    return out
