# pyright: reportMissingImports=false, reportIndexIssue=false
"""Kernel of the sparse lift of FlyHash: the largest sum of each block of rows, in integers."""

import triton
from jaxtyping import Int32
from torch import Tensor
from triton import language as tl

from fedbolic.kernels.launch import Tile, launch

TILE = Tile(8, 64)
"""Blocks and examples of a program."""

LOWEST_SUM = tl.constexpr(-(2**31))


@triton.jit
def block_maximum_kernel(
    x, rows, out, n, dim, blocks,
    FAN_IN: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, EXAMPLES: tl.constexpr,
):  # fmt: skip
    """Maxima of a few blocks for a few examples, which are stored by feature."""
    across = tl.cdiv(blocks, BLOCKS)
    e = tl.program_id(0) // across * EXAMPLES + tl.arange(0, EXAMPLES)
    b = tl.program_id(0) % across * BLOCKS + tl.arange(0, BLOCKS)
    of_example = (e < n)[None, :]
    largest = tl.full([BLOCKS, EXAMPLES], LOWEST_SUM, tl.int32)
    for r in range(BLOCK):
        line = b.to(tl.int64) * BLOCK + r
        real = line < dim
        total = tl.zeros([BLOCKS, EXAMPLES], tl.int32)
        for k in range(FAN_IN):
            feature = tl.load(rows + line * FAN_IN + k, mask=real, other=0).to(tl.int64)
            total += tl.load(x + feature[:, None] * n + e[None, :], mask=of_example, other=0)
        largest = tl.maximum(largest, tl.where(real[:, None], total, LOWEST_SUM))
    place = out + e.to(tl.int64)[None, :] * blocks + b[:, None]
    tl.store(place, largest, mask=of_example & (b < blocks)[:, None])


def block_maximum(
    columns: Int32[Tensor, "d n"], rows: Int32[Tensor, "dim fan_in"], block: int
) -> Int32[Tensor, "n blocks"]:
    """The largest sum of each block of rows of the lift, by example; no sum is stored.

    Args:
        columns: Integers by feature, whose sums fit 32 bits.
        rows: Features of each sum.
        block: Rows in a block, at least 1; the last one may have fewer.
    """
    (_, n), (dim, fan_in) = columns.shape, rows.shape
    blocks = triton.cdiv(dim, block)
    out = columns.new_empty(n, blocks)
    programs = triton.cdiv(blocks, TILE.rows) * triton.cdiv(n, TILE.columns)
    launch(
        block_maximum_kernel, programs, out, columns.contiguous(), rows.contiguous(), out, n, dim,
        blocks, FAN_IN=fan_in, BLOCK=block, BLOCKS=TILE.rows, EXAMPLES=TILE.columns,
        num_warps=TILE.warps,
    )  # fmt: skip
    return out
