"""Compiled CPU kernels of the hash and of count look-ups; the only file that imports numba.

A tile of examples is stored by feature, so that a row of the lift adds whole lines of the tile. A
sum is kept only if it reaches its example's threshold. The threshold rises during the pass: to the
least of the winners so far, and, because rows are drawn independently, to a value that hardly any
final winner lies below. A check at the end detects the rare example for which one does.

The first phase only has to exclude rows that cannot win, so it may round: without their lowest
bits, an example's sums fit into 16 bits, which doubles the values per register, and the sum of s
features is off by less than s units. The second phase recomputes the kept sums exactly.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, no_type_check

import numpy as np
from numpy.typing import NDArray

FOUND = importlib.util.find_spec("numba") is not None
"""True if numba is installed; otherwise PyTorch computes the same hash, bit for bit."""

TILE_BYTES = 2**20
"""Size of a tile: half of a level-2 cache."""

_SPARE = 64
"""Capacity for an example's kept sums, beyond twice the number of winners, before pruning."""

MOST_ROUNDED = 128
"""Largest fan-in for which sums are rounded; above it, too few bits per feature would remain."""


def njit(function: Callable) -> Callable:
    """Compile the function if numba is installed."""
    if not FOUND:
        return function
    from numba import njit as compiler

    return compiler(function, cache=True, nogil=True)


def is_compiled() -> bool:
    """True if the hash is compiled in this process, or an earlier one has stored it."""
    compiled: Any = _winners
    if not hasattr(compiled, "signatures"):  # numba is told not to compile anything
        return True
    return bool(compiled.signatures) or any(
        Path(compiled.stats.cache_path).glob(f"{Path(__file__).stem}._winners-*.nbi")
    )


def aligned(rows: NDArray[np.int32], num_inputs: int) -> NDArray[Any]:
    """The lift in the smallest integer type, with rows padded to a multiple of four.

    Args:
        rows: Features of each row of the lift, (dim, fan_in).
        num_inputs: Number of features; as padding, it is the index of a feature that is always 0.
    """
    dtype = np.uint16 if num_inputs < 2**16 else np.uint32
    missing = -rows.shape[1] % 4
    return np.pad(rows.astype(dtype), ((0, 0), (0, missing)), constant_values=num_inputs)


def winners(
    x: NDArray[np.int32],
    rows: NDArray[Any],
    fan_in: int,
    found: NDArray[np.int32],
    signs: NDArray[np.int32] | None = None,
) -> None:
    """Write the positions of the ones in each hash, ascending by index.

    Args:
        x: Integers whose sums over a row fit into 32 bits, (n, d).
        rows: The lift, from :func:`aligned`.
        fan_in: Number of features in a row.
        found: Output, (n, active).
        signs: 1 or -1 for each feature in each channel, (num_channels, d); ``rows`` index into the
            concatenated channels. ``None`` for ``x`` itself as the only channel.
    """
    if signs is None:
        signs = np.ones((1, x.shape[1]), np.int32)
    if fan_in <= MOST_ROUNDED:
        dtype, cut = np.int16, _excess(x, (2**15 - MOST_ROUNDED) // fan_in)
    else:
        dtype, cut = np.int32, np.zeros(len(x), np.int32)
    fit = TILE_BYTES // (signs.size * np.dtype(dtype).itemsize)
    tile = min(max(fit // 64, 1), 4, max(-(-len(x) // 64), 1)) * 64  # wider tiles gain little
    columns = np.zeros((signs.size + 1, tile), dtype)
    room = min(2 * found.shape[1] + _SPARE, len(rows) + 1)
    # allocated here, because numba compiles an allocation for as long as a loop
    bounds, reached = np.empty((3, tile), dtype), np.empty(tile, np.uint8)
    values, places = np.empty((tile, room), dtype), np.empty((tile, room), np.int32)
    kept = values, places, reached, reached.view(np.uint64), np.empty(tile, np.int64)
    sums, lines = np.empty(len(rows), np.int64), np.empty(len(rows), np.int32)
    whole = np.empty(signs.size, np.int32), sums, lines
    _winners(x, signs, cut, rows, fan_in, columns, bounds, kept, whole, found)


def _excess(x: NDArray[np.int32], most: int) -> NDArray[np.int32]:
    """Number of low bits to drop from each example so that no value exceeds ``most``."""
    # the shift rounds negative values away from zero
    largest = np.maximum(x.max(axis=1, initial=0), -(x.min(axis=1, initial=0).astype(np.int64)))
    cut = np.zeros(len(x), dtype=np.int32)
    while (beyond := -(-largest >> cut) > most).any():
        cut += beyond
    return cut


@njit
@no_type_check
def _winners(x, signs, cut, rows, fan_in, columns, bounds, kept_sums, whole, found):
    num_channels, num_inputs = signs.shape
    active, tile = found.shape[1], columns.shape[1]
    least, slack, own = bounds[0], bounds[1], bounds[2]
    values, places, reached, words, filled = kept_sums
    example, sums, lines = whole
    limits = np.iinfo(columns.dtype)
    for start in range(0, len(x), tile):
        width = min(tile, len(x) - start)
        for c in range(num_channels):
            for j in range(num_inputs):
                for b in range(width):
                    # rounded down after the sign, so that the error of a sum has one sign
                    signed = signs[c, j] * x[start + b, j]
                    columns[c * num_inputs + j, b] = signed >> cut[start + b]
        for b in range(tile):
            slack[b] = fan_in - 1 if b < width and cut[start + b] else 0
            least[b] = limits.min if b < width else limits.max
        _lift(columns, rows, active, slack, least, own, reached, words, values, places, filled)
        for b in range(width):
            kept, sound = filled[b], filled[b] >= active
            if sound:
                kept, bar = _keep(values[b], places[b], kept, active, slack[b])
                sound = bar >= least[b]
            if sound and slack[b] == 0:
                _copy(places[b], found[start + b])
                continue
            if not sound:  # about one example in a thousand: compute all rows exactly
                kept = len(rows)
            for k in range(kept):
                lines[k] = places[b, k] if sound else k
            for c in range(num_channels):
                for j in range(num_inputs):
                    example[c * num_inputs + j] = signs[c, j] * x[start + b, j]
            _sum_up(example, rows, fan_in, lines[:kept], sums)
            _keep(sums, lines, kept, active, 0)
            _copy(lines, found[start + b])


@njit
@no_type_check
def _copy(source, target):
    """Copy the first numbers; an assignment compiles the text of an error for two seconds."""
    for k in range(len(target)):
        target[k] = source[k]


@njit
@no_type_check
def _lift(columns, rows, active, slack, least, sums, reached, words, values, places, filled):
    """Write the sums that can win, their rows, in order, and their number by example."""
    dim, length = rows.shape
    (width, room), known = values.shape, 64
    for b in range(width):
        filled[b] = 0
    for i in range(dim):
        if i == known:
            _raise(values, filled, slack, least, active * i / dim)
            known *= 4
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
        for b in range(width):
            reached[b] = sums[b] >= least[b]
        some = np.uint64(0)
        for w in range(len(words)):
            some |= words[w]
        if some == 0:
            continue
        for w in range(len(words)):
            if words[w] == 0:  # eight examples at a time
                continue
            for b in range(8 * w, 8 * w + 8):
                if not reached[b]:
                    continue
                values[b, filled[b]], places[b, filled[b]] = sums[b], i
                filled[b] += 1
                if filled[b] == room:
                    filled[b], bar = _keep(values[b], places[b], room, active, slack[b])
                    least[b] = max(least[b], bar)
                    if filled[b] == room:  # too many near-ties: left to the exact pass
                        filled[b], least[b] = 0, np.iinfo(columns.dtype).max


@njit
@no_type_check
def _raise(values, filled, slack, least, expected):
    """Raise the thresholds, given the ``expected`` number of winners among the rows so far.

    The actual number exceeds this by more than three standard deviations plus three in only about
    one of a thousand examples.
    """
    rank = int(expected + 3 * np.sqrt(expected) + 3)
    for b in range(len(least)):
        if rank <= filled[b]:
            least[b] = max(least[b], _level(values[b], filled[b], rank) - slack[b])


@njit
@no_type_check
def _keep(values, places, count, num, slack):
    """Keep the ``num`` largest of the first ``count`` values in order, and the first of equal ones.

    With slack, all values down to the least of these minus the slack are kept. Returns the number
    of kept values, and the threshold that a later value must reach to be kept.
    """
    level = _level(values, count, num)
    equal = count
    if slack == 0:
        equal = num
        for k in range(count):
            equal -= values[k] > level
    lowest = level - slack
    kept = 0
    for k in range(count):
        value = values[k]
        values[kept], places[kept] = value, places[k]
        same = value == lowest
        kept += (value > lowest) | (same & (equal > 0))
        equal -= same
    return kept, lowest + (slack == 0)


@njit
@no_type_check
def _level(values, count, num):
    """Largest number that ``num`` of the first ``count`` values reach, by bisection."""
    low = high = np.int64(values[0])
    for k in range(count):
        low, high = min(low, np.int64(values[k])), max(high, np.int64(values[k]))
    while low < high:
        middle = (low + high + 1) >> 1
        bar, reached = values.dtype.type(middle), np.int32(0)
        for k in range(count):
            reached = np.int32(reached + np.int32(values[k] >= bar))
        if reached >= num:
            low = middle
        else:
            high = middle - 1
    return low


@njit
@no_type_check
def _sum_up(x, rows, fan_in, lines, sums):
    """Write the exact sums of the given rows."""
    for k in range(len(lines)):
        row, total = rows[lines[k]], np.int64(0)
        for j in range(fan_in):
            total += x[row[j]]
        sums[k] = total


@njit
@no_type_check
def look_up(counts, winners, table, sums, least):
    """Write the least count at the winners, and the sum of ``table`` entries, by example and class.

    A count's table index is its excess over the least count, at most the last index of the table.

    Args:
        counts: Integers, (num_classes, dim).
        winners: Positions of the ones in each hash, (n, active).
        table: Integers; no sum of ``active`` of them exceeds 63 bits.
        sums: Output for the sums, (n, num_classes).
        least: Output for the least counts, (n, num_classes).
    """
    active, last = winners.shape[1], len(table) - 1
    found = np.empty(active, np.int64)
    for i in range(len(winners)):
        for c in range(len(counts)):
            low = np.int64(counts[c, winners[i, 0]])
            for k in range(active):
                found[k] = counts[c, winners[i, k]]
                low = min(low, found[k])
            total = np.int64(0)
            for k in range(active):
                total += table[min(found[k] - low, last)]
            sums[i, c], least[i, c] = total, low
