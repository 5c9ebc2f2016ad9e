"""FlyHash: a sparse random lift and winner-take-all, in integers for bitwise reproducibility."""

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Int32, Real
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from fedbolic import kernels
from fedbolic.core import check
from flynn import kernel

SUM_BITS = 30
"""Bound ``2 ** SUM_BITS`` on the absolute value of each sum, which then fits a 32-bit integer."""

_CHUNK = 2048
"""Examples that are hashed at once, which bounds the memory for intermediate results."""

_TILE = {False: 256, True: _CHUNK}
"""Examples whose maxima are found at once, on the CPU and on CUDA."""

_UNCOMPILED = 6e9
"""Additions by torch, about two seconds of them, after which compiling for three repays."""

_added = [0]
"""Additions by torch in this process for want of compiled code."""

KEY = 2**31
"""Factor of a value in its key; minus the index, keys are unique and the first of equals leads."""


@functools.lru_cache(maxsize=2)  # all parties in one process use the same connections
def connections(dim: int, num_inputs: int, fan_in: int, seed: int) -> Int32[Tensor, "dim fan_in"]:
    """Connections of the lift: the inputs in each row of the binary matrix ``M``, ascending.

    Rows are independent and uniform over the subsets of ``fan_in`` inputs. They depend only on the
    seed, through raw words of a counter-based generator (Philox) and Floyd's subset sampling.

    Args:
        dim: Number of rows ``m``, at least 1.
        num_inputs: Number of inputs ``d``.
        fan_in: Inputs of a row ``s``, from 1 to ``num_inputs``.
        seed: Seed, at least 0.

    Raises:
        ValueError: If a number is outside its range.

    References:
        Ram and Sinha (2022), Eq. (2), arXiv:2112.07157; the sampling is Floyd's, in Bentley (1987),
        Programming pearls: a sample of brilliance.

    Example:
        >>> rows = connections(5, num_inputs=8, fan_in=3, seed=0)
        >>> rows.shape, bool((rows[:, 1:] > rows[:, :-1]).all())
        (torch.Size([5, 3]), True)
    """
    check.at_least(0, seed=seed)
    check.at_least(1, dim=dim, fan_in=fan_in)
    if fan_in > num_inputs:
        raise ValueError(
            f"fan_in is {fan_in}, but there are {num_inputs} features: use a smaller fan_in"
        )
    words = np.random.Philox(key=seed).random_raw(dim * fan_in).reshape(dim, fan_in)
    tops = np.arange(num_inputs - fan_in, num_inputs, dtype=np.uint64)
    drawn = (words % (tops + 1)).astype(np.int32)  # the bias is at most num_inputs / 2**64
    _pick(drawn, num_inputs)
    return torch.from_numpy(np.sort(drawn, axis=1))


def _pick(drawn: NDArray[np.int32], num_inputs: int) -> None:
    """Floyd's sampling: replace a repeated draw of a row by the largest value allowed there."""
    dim, fan_in = drawn.shape
    for start in range(0, dim, _CHUNK):
        part = drawn[start : start + _CHUNK]
        lines, taken = np.arange(len(part)), np.zeros((len(part), num_inputs), dtype=bool)
        for column in range(fan_in):
            again = taken[lines, part[:, column]]
            part[again, column] = num_inputs - fan_in + column
            taken[lines, part[:, column]] = True


def fly_hash(
    x: Real[Tensor, "n d"],
    rows: Int32[Tensor, "dim fan_in"],
    active: int,
    *,
    signs: Int32[Tensor, "num_channels d"] | None = None,
) -> Int32[Tensor, "n active"]:
    r"""Positions of the ones in each hash: the ``active`` largest sums, ascending by index.

    .. math:: h(x) = \Gamma_\rho(M x)

    Of equal sums, the one with the lower index wins; the paper leaves ties open. Sums are computed
    on the integers of :func:`fixed_point`, so they do not depend on the order of summation, and the
    hash is bitwise equal on any device, with any batch size and number of threads.

    Args:
        x: Examples, finite. ``h(a x + b) = h(x)`` for ``a > 0`` and, without ``signs``, any
            constant ``b``, up to the rounding of ``a x + b``.
        rows: The lift, from :func:`connections`.
        active: Number of ones in a hash, rho, from 1 to ``dim``.
        signs: 1 or -1 for each feature in each channel, from
            :func:`~flynn.channels.channel_signs`. The input of the hash is the concatenation
            ``[signs[0] * x, signs[1] * x, ...]``, which is never stored for all examples; ``rows``
            index into it. ``None`` for ``x`` itself.

    Raises:
        ValueError: If a value is not finite, ``active`` is outside its range, or the rows contain
            features that the examples do not have.

    References:
        Ram and Sinha (2022), Eq. (2), arXiv:2112.07157.

    Example:
        >>> rows = torch.tensor([[0, 1], [1, 2], [0, 2], [1, 2]], dtype=torch.int32)
        >>> fly_hash(torch.tensor([[1.0, 5.0, 2.0]]), rows, active=2)
        tensor([[1, 3]], dtype=torch.int32)
    """
    check_active(active, len(rows))
    num_channels = 1 if signs is None else len(signs)
    for feature in (int(rows.min()), int(rows.max())):
        if not 0 <= feature < num_channels * x.shape[1]:
            times = f" in {num_channels} channels" if num_channels > 1 else ""
            raise ValueError(
                f"rows add up feature {feature}, but the examples have {x.shape[1]} features{times}"
            )
    # written in place: small results between large temporaries would keep the heap from shrinking
    found = torch.empty(len(x), active, dtype=torch.int32, device=x.device)
    search = _compiled if _repays(x, rows) else _by_torch
    search(x, rows.to(x.device), None if signs is None else signs.to(x.device), found)
    return found


def _repays(x: Tensor, rows: Tensor) -> bool:
    """True if compiled code is there, or torch would have added up too much without it."""
    if not kernel.FOUND or x.device.type != "cpu":
        return False
    if kernel.is_compiled():
        return True
    _added[0] += len(x) * rows.numel()
    return _added[0] > _UNCOMPILED


def check_active(active: int, dim: int) -> None:
    """Check the number of ones in a hash of ``dim`` bits.

    Raises:
        ValueError: If ``active`` is not in 1 .. ``dim``.
    """
    if not 1 <= active <= dim:
        raise ValueError(f"active must lie in 1 .. dim = {dim}, got {active}")


def fixed_point(x: Real[Tensor, "n d"], fan_in: int) -> Int32[Tensor, "n d"]:
    """Examples as integers, each scaled by its own power of two.

    The scale is the finest for which sums of ``fan_in`` values stay within ``2 ** SUM_BITS``; the
    rounded values are then halved while all are even. Examples of few significant bits, such as
    pixels, are therefore not rounded and become small integers. 8-bit and signed 16-bit integers
    are unchanged if ``fan_in`` is below 2 ** 14.

    Args:
        x: Finite examples.
        fan_in: Number of terms in a sum.

    Raises:
        ValueError: If a value is not finite.

    Example:
        >>> fixed_point(torch.tensor([[0.25, -1.5], [3e30, 3e-30]]), 2).tolist()
        [[1, -6], [9926167, 0]]
    """
    x = x.detach()
    if x.dtype in (torch.uint8, torch.int8, torch.int16) and fan_in < 2**14:
        return x.int()
    x = x.to(torch.float64, copy=True)
    size = x.abs().amax(dim=1, keepdim=True) if x.shape[1] else x.new_zeros(len(x), 1)
    if not size.isfinite().all():
        row = int((~size.isfinite()).flatten().nonzero()[0])
        raise ValueError(f"features must be finite, got NaN or infinity in example {row}")
    shift = SUM_BITS - math.ceil(math.log2(fan_in)) - torch.frexp(size).exponent
    # in two steps, because the power of two for a subnormal example exceeds the type
    x = x.mul_(_power(shift // 2)).mul_(_power(shift - shift // 2)).round_()
    whole = x.to(torch.int32)
    lowest = torch.where(whole == 0, 2**SUM_BITS, whole & -whole).amin(dim=1, keepdim=True)
    return x.div_(lowest).to(torch.int32)  # a power of two: exact


def _power(exponent: Tensor) -> Tensor:
    """Two to the power of an integer from -1022 to 1023, exact on every device."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)


def _compiled(x: Tensor, rows: Tensor, signs: Tensor | None, found: Tensor) -> None:
    fan_in, num_channels = rows.shape[1], 1 if signs is None else len(signs)
    lines = kernel.aligned(rows.numpy(), num_channels * x.shape[1])
    of = None if signs is None else signs.numpy()
    for part, into in zip(x.split(_CHUNK), found.split(_CHUNK), strict=True):
        kernel.winners(fixed_point(part, fan_in).numpy(), lines, fan_in, into.numpy(), of)


def _by_torch(x: Tensor, rows: Tensor, signs: Tensor | None, found: Tensor) -> None:
    for part, into in zip(x.split(_CHUNK), found.split(_CHUNK), strict=True):
        whole = fixed_point(part, rows.shape[1])
        if signs is not None:
            whole = (whole[:, None] * signs).flatten(1)
        into.copy_(two_phases(whole, rows, into.shape[1]))


def _block_size(dim: int, fan_in: int, active: int) -> int:
    """Rows in a block: small blocks give many maxima to compare, large ones many sums to repeat."""
    balance = math.sqrt(dim / (active * fan_in))
    return 1 << max(0, round(math.log2(max(balance, 1))))


def two_phases(
    x: Int32[Tensor, "n d"], rows: Int32[Tensor, "dim fan_in"], active: int
) -> Int32[Tensor, "n active"]:
    """Winners in pure PyTorch, without storing all n x dim sums.

    The first phase keeps only the largest sum of each block of rows. The blocks with the ``active``
    largest maxima (the first of equal ones) contain all winners, because each of these blocks has a
    row that beats every row of the other blocks. The second phase recomputes the sums of these
    blocks.

    Args:
        x: Integers from :func:`fixed_point`.
        rows: The lift, on the device of ``x``.
        active: Number of winners.
    """
    dim, fan_in = rows.shape
    block = _block_size(dim, fan_in, active)
    num_blocks = -(-dim // block)
    padding = num_blocks * block - dim
    padded = torch.cat([rows, rows[-1:].expand(padding, -1)])  # a repeated row changes no maximum
    find_maxima = _by_integers if kernels.run_on(x) else _by_exact_floats(x, fan_in)
    parts = [torch.empty(0, active, dtype=torch.int32, device=x.device)]
    for tile in x.split(_TILE[x.device.type == "cuda"]) if len(x) else ():
        maxima = find_maxima(tile.T, padded, block)
        best = _keys(maxima).topk(min(active, num_blocks), dim=1).indices
        lines = (best[:, :, None] * block + torch.arange(block, device=x.device)).flatten(1)
        step = max(1, 2**22 // (lines.shape[1] * fan_in))
        parts += [
            _largest(some, rows, of, active)
            for some, of in zip(tile.split(step), lines.split(step), strict=True)
        ]
    return torch.cat(parts)


def _by_integers(columns: Tensor, rows: Tensor, block: int) -> Tensor:
    """Largest sum of each block of rows, by example, from the kernel for CUDA."""
    from fedbolic.kernels.hash import block_maximum

    return block_maximum(columns, rows, block)


def _by_exact_floats(x: Tensor, fan_in: int) -> Callable[[Tensor, Tensor, int], Tensor]:
    """``_block_maxima`` in floats that hold every sum of these integers exactly."""
    largest = int(x.abs().max()) if len(x) else 0
    exact = torch.float32 if largest * fan_in < 2**24 else torch.float64
    return lambda columns, rows, block: _block_maxima(columns.to(exact), rows, block)


def _block_maxima(columns: Tensor, rows: Tensor, block: int) -> Tensor:
    """Largest sum of each block of rows, by example."""
    columns = columns.contiguous()
    floats = 2**26 if columns.device.type == "cuda" else 2**21  # few launches, or a warm cache
    step = max(1, floats // (block * columns.shape[1])) * block
    maxima = [
        embedding_bag(part, columns, mode="sum").unflatten(0, (-1, block)).amax(dim=1)
        for part in rows.split(step)
    ]
    return torch.cat(maxima).T


def _keys(values: Tensor) -> Tensor:
    index = torch.arange(values.shape[1], device=values.device)
    return values.long() * KEY + (KEY - 1 - index)


def _largest(x: Tensor, rows: Tensor, lines: Tensor, active: int) -> Tensor:
    """Rows with the largest sums, among candidate rows of each example."""
    real = lines < len(rows)
    inputs = rows[lines.clamp(max=len(rows) - 1)].long()
    sums = x.long().gather(1, inputs.flatten(1)).view(inputs.shape).sum(dim=-1)
    keys = torch.where(real, sums * KEY + (KEY - 1 - lines), torch.iinfo(torch.int64).min)
    best = keys.topk(active, dim=1).indices
    return lines.gather(1, best).sort(dim=1).values.int()
