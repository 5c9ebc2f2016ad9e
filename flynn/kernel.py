"""The two phases of the hash on the CPU, compiled; the only file that imports numba.

A tile of examples is laid out by feature, so that one row of the lift adds up whole lines of the
tile. Of the sums only the largest of each block of rows is kept. The second phase adds up again,
for one example after another, the rows of the few blocks that can hold a winner.

The first phase only has to leave out what cannot win. So it rounds: with its last bits cut off an
example's sums fit into 16 bits, of which a register holds twice as many, and a sum of s features is
off by fewer than s units. The second phase is exact.
"""

import importlib.util
from collections.abc import Callable
from typing import Any, no_type_check

import numpy as np
from numpy.typing import NDArray

FOUND = importlib.util.find_spec("numba") is not None
"""Whether there is a compiler: without it the hash is computed by torch, to the same bits."""

TILE_BYTES = 2**20
"""Of a tile: half of a second-level cache."""

LANES = 16
"""Examples of a tile that are looked at together for a block that can hold a winner."""

MOST_ROUNDED = 128
"""Features of a row up to which sums are rounded: of more too few bits would be left of each."""

MASK = 2**31 - 1


def njit(function: Callable) -> Callable:
    """The function compiled, where there is a compiler."""
    if not FOUND:
        return function
    from numba import njit as compiler

    return compiler(function, cache=True, nogil=True)


def aligned(rows: NDArray[np.int32], num_inputs: int) -> NDArray[Any]:
    """The lift in the fewest bits, its rows as long as a multiple of four.

    Args:
        rows: The features of every row of the lift, (dim, fan_in).
        num_inputs: Number of features; it stands for one more, which is always 0.
    """
    dtype = np.uint16 if num_inputs < 2**16 else np.uint32
    missing = -rows.shape[1] % 4
    return np.pad(rows.astype(dtype), ((0, 0), (0, missing)), constant_values=num_inputs)


def winners(
    x: NDArray[np.int32],
    rows: NDArray[Any],
    fan_in: int,
    block: int,
    found: NDArray[np.int32],
) -> None:
    """Write where the hashes are one, ascending by index.

    Args:
        x: Integers whose sums over a row fit into 32 bits, (n, d).
        rows: The lift, of :func:`aligned`.
        fan_in: Features of a row.
        block: Rows of a block.
        found: Where they go, (n, active).
    """
    if fan_in <= MOST_ROUNDED:
        dtype, cut = np.int16, _excess(x, (2**15 - MOST_ROUNDED) // fan_in)
    else:
        dtype, cut = np.int32, np.zeros(len(x), np.int32)
    fit = TILE_BYTES // (x.shape[1] * np.dtype(dtype).itemsize)
    # wider tiles are hardly faster, and the maxima of their blocks take memory
    tile = min(max(fit // 64, 1), 4, max(-(-len(x) // 64), 1)) * 64
    num_blocks = -(-len(rows) // block)
    group = 16  # blocks whose largest sum bounds what a winner needs from below
    while group > 1 and num_blocks < 4 * found.shape[1] * group:
        group //= 2
    _winners(x, (x >> cut[:, None]).astype(dtype), cut, rows, fan_in, block, group, tile, found)


def _excess(x: NDArray[np.int32], most: int) -> NDArray[np.int32]:
    """How many last bits every example has to lose, so that none of its values exceeds ``most``."""
    # of a negative value what is left is rounded away from zero
    largest = np.maximum(x.max(axis=1, initial=0), -(x.min(axis=1, initial=0).astype(np.int64)))
    cut = np.zeros(len(x), dtype=np.int32)
    while (beyond := -(-largest >> cut) > most).any():
        cut += beyond
    return cut


@njit
@no_type_check
def _winners(x, rounded, cut, rows, fan_in, block, group, tile, found):
    num_inputs, num_blocks = x.shape[1], -(-len(rows) // block)
    active = found.shape[1]
    num = min(active, num_blocks)
    columns = np.zeros((num_inputs + 1, tile), rounded.dtype)
    maxima = np.empty((num_blocks, tile), rounded.dtype)
    slack = np.zeros(tile, rounded.dtype)
    blocks = np.empty((tile, num * (group + 3)), np.int32)
    all_blocks = np.arange(num_blocks).astype(np.int32)
    keys = np.empty(num_blocks * block, np.int64)
    for start in range(0, len(x), tile):
        width = min(tile, len(x) - start)
        for j in range(num_inputs):
            for b in range(width):
                columns[j, b] = rounded[start + b, j]
        for b in range(width):
            slack[b] = fan_in - 1 if cut[start + b] else 0
        _lift(columns, rows, block, maxima)
        bounds = _bounds(maxima, group, num)
        filled = _candidates(maxima, bounds, slack, num, blocks)
        for b in range(width):
            some = blocks[b, : filled[b]] if filled[b] <= blocks.shape[1] else all_blocks
            # with fewer blocks than winners some of these lie below what every block reaches
            least = np.int64(bounds[b]) << cut[start + b] if num == active else -MASK
            _select(x[start + b], rows, fan_in, block, some, least, keys, found[start + b])


@njit
@no_type_check
def _lift(columns, rows, block, maxima):
    """The largest sum of each block of rows, by example."""
    dim, length = rows.shape
    width = columns.shape[1]
    sums = np.empty(width, columns.dtype)
    for i in range(dim):
        r = rows[i]
        c0, c1, c2, c3 = columns[r[0]], columns[r[1]], columns[r[2]], columns[r[3]]
        for b in range(width):
            sums[b] = c0[b] + c1[b] + c2[b] + c3[b]
        first = 4
        if length % 8 == 0:
            c0, c1, c2, c3 = columns[r[4]], columns[r[5]], columns[r[6]], columns[r[7]]
            for b in range(width):
                sums[b] += c0[b] + c1[b] + c2[b] + c3[b]
            first = 8
        for k in range(first, length, 8):  # eight lines at a time: sums are written less often
            c0, c1, c2, c3 = columns[r[k]], columns[r[k + 1]], columns[r[k + 2]], columns[r[k + 3]]
            k += 4
            c4, c5, c6, c7 = columns[r[k]], columns[r[k + 1]], columns[r[k + 2]], columns[r[k + 3]]
            for b in range(width):
                sums[b] += c0[b] + c1[b] + c2[b] + c3[b] + c4[b] + c5[b] + c6[b] + c7[b]
        best = maxima[i // block]
        if i % block == 0:
            best[:] = sums
        else:
            for b in range(width):
                best[b] = max(best[b], sums[b])


@njit
@no_type_check
def _bounds(maxima, group, num):
    """By example what at least ``num`` groups of blocks reach; by bisection of all together."""
    num_blocks, width = maxima.shape
    tops = np.empty((-(-num_blocks // group), width), maxima.dtype)
    for i in range(num_blocks):
        top = tops[i // group]
        if i % group == 0:
            top[:] = maxima[i]
        else:
            for b in range(width):
                top[b] = max(top[b], maxima[i, b])
    low, high = tops[0].copy(), tops[0].copy()  # the bound lies from low to high
    for i in range(1, len(tops)):
        for b in range(width):
            low[b], high[b] = min(low[b], tops[i, b]), max(high[b], tops[i, b])
    middle, reached = np.empty_like(low), np.empty(width, np.int32)
    while (low < high).any():
        for b in range(width):
            middle[b] = (np.int64(low[b]) + high[b] + 1) >> 1
            reached[b] = 0
        for i in range(len(tops)):
            for b in range(width):
                reached[b] += tops[i, b] >= middle[b]
        for b in range(width):
            if reached[b] >= num:
                low[b] = middle[b]
            elif low[b] < high[b]:
                high[b] = middle[b] - 1
    return low


@njit
@no_type_check
def _candidates(maxima, bounds, slack, num, blocks):
    """The blocks that can hold a winner, in order, and how many they are, by example.

    Those are all beyond the bound, and at it the first ``num``, behind which any other row comes.
    Where sums are rounded a winner's can lie below the bound by the slack, and all from there on
    are taken; if they are more than there is room for, their number alone is right.
    """
    num_blocks, width = maxima.shape
    filled, equal = np.zeros(width, np.int64), np.zeros(width, np.int64)
    lowest = bounds - slack
    for i in range(num_blocks):
        for first in range(0, width, LANES):
            hits = 0
            for b in range(first, first + LANES):
                hits += maxima[i, b] >= lowest[b]
            if hits == 0:
                continue
            for b in range(first, first + LANES):
                if maxima[i, b] < lowest[b]:
                    continue
                if slack[b] == 0 and maxima[i, b] == bounds[b]:
                    equal[b] += 1
                    if equal[b] > num:
                        continue
                if filled[b] < blocks.shape[1]:
                    blocks[b, filled[b]] = i
                filled[b] += 1
    return filled


@njit
@no_type_check
def _select(x, rows, fan_in, block, blocks, least, keys, found):
    """The rows with the largest sums among those of some blocks; each sum is ``least`` or more."""
    count = 0
    for place in blocks:
        first = np.int64(place) * block
        for i in range(first, min(first + block, len(rows))):
            row = rows[i]
            total = np.int64(0)
            for k in range(fan_in):
                total += x[row[k]]
            if total >= least:
                keys[count] = (total << 31) + (MASK - i)
                count += 1
    _move_largest(keys, count, len(found))
    for k in range(len(found)):
        found[k] = MASK - (keys[k] & MASK)
    found.sort()


@njit
@no_type_check
def _move_largest(keys, count, num):
    """The ``num`` largest of the first ``count`` keys, all different, to the front."""
    low, high = 0, count - 1
    while low < high:
        pivot = keys[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while keys[i] > pivot:
                i += 1
            while keys[j] < pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i, j = i + 1, j - 1
        if num - 1 <= j:
            high = j
        elif num - 1 >= i:
            low = i
        else:
            return
