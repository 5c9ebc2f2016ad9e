"""FlyHash: a sparse random lift and a winner-take-all, in integers, so that bits never vary."""

import functools
import math

import numpy as np
import torch
from jaxtyping import Int32, Real
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from fedbolic import check
from flynn import kernel

SUM_BITS = 30
"""No sum of the lift exceeds ``2 ** SUM_BITS`` in size: it fits into 32 bits with its sign."""

_CHUNK = 2048
"""Examples that are worked on at once: what the hash needs beyond its result is a few of these."""

KEY = 2**31
"""A key is a value times this, less an index: of equal values the first, and no keys are equal."""


@functools.lru_cache(maxsize=2)  # the parties of one process draw the same
def connections(dim: int, num_inputs: int, fan_in: int, seed: int) -> Int32[Tensor, "dim fan_in"]:
    """The inputs that every row of the lift adds up: ``M`` as a table, ascending in a row.

    Rows are independent and uniform over the subsets of ``fan_in`` inputs. They follow from the
    seed alone: raw words of a counter-based generator (Philox) and Floyd's sampling of subsets.

    Args:
        dim: Number of rows ``m``, at least 1.
        num_inputs: Number of features ``d``.
        fan_in: Inputs of a row ``s``, from 1 to ``num_inputs``.
        seed: Any integer from 0.

    Raises:
        ValueError: If a number is out of range.

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
        raise ValueError(f"fan_in is {fan_in}, but there are {num_inputs} features: ask for fewer")
    words = np.random.Philox(key=seed).random_raw(dim * fan_in).reshape(dim, fan_in)
    tops = np.arange(num_inputs - fan_in, num_inputs, dtype=np.uint64)
    drawn = (words % (tops + 1)).astype(np.int32)  # off uniform by at most num_inputs / 2**64
    pick = kernel.pick_winners if kernel.FOUND else _pick
    pick(drawn, num_inputs)
    return torch.from_numpy(np.sort(drawn, axis=1))


def _pick(drawn: NDArray[np.int32], num_inputs: int) -> None:
    """Floyd's sampling: what a row has drawn before is replaced by the largest it may draw."""
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
    r"""Places of the ones in every hash: the ``active`` largest sums, ascending by index.

    .. math:: h(x) = \Gamma_\rho(M x)

    Of equal sums the lower index wins. Sums are of the integers of :func:`fixed_point`, so the bits
    do not depend on the order of summation: they are those of any device, batch and thread count.

    Args:
        x: Examples, finite. ``h(a x + b) = h(x)`` for ``a > 0``, up to rounding of ``a x + b``, and
            ``b = 0`` with ``signs``.
        rows: The lift, from :func:`connections`.
        active: Ones of the hash, rho, from 1 to ``dim``.
        signs: 1 or -1 for every feature in each channel, from
            :func:`~flynn.channels.channel_signs`. The hash is that of all channels side by side,
            ``[signs[0] * x, signs[1] * x, ...]``, which are never stored for all examples; rows
            count through the features of all. `None`: of ``x``.

    Raises:
        ValueError: If a value is not finite, ``active`` is out of range, or the rows add up
            features that the examples do not have.

    References:
        Ram and Sinha (2022), Eq. (2), arXiv:2112.07157. Departs from the paper: it leaves open
        who wins a tie.

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
    # filled in place: small results between large temporaries would keep the heap from shrinking
    found = torch.empty(len(x), active, dtype=torch.int32, device=x.device)
    search = _compiled if kernel.FOUND and x.device.type == "cpu" else _by_torch
    search(x, rows.to(x.device), None if signs is None else signs.to(x.device), found)
    return found


def check_active(active: int, dim: int) -> None:
    """Refuse a number of winners that no hash of ``dim`` bits has.

    Raises:
        ValueError: If ``active`` is not in 1 .. ``dim``.
    """
    if not 1 <= active <= dim:
        raise ValueError(f"active must lie in 1 .. dim = {dim}, got {active}")


def fixed_point(x: Real[Tensor, "n d"], fan_in: int) -> Int32[Tensor, "n d"]:
    """Every example times a power of two of its own, as integers.

    They are rounded as finely as sums of ``fan_in`` values stay within ``2 ** SUM_BITS``, and then
    halved while all are even. So examples of few bits, such as pixels, are not rounded at all and
    become small integers. Integers of 16 bits are taken as they are.

    Args:
        x: Finite examples.
        fan_in: Terms of a sum.

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
    # two steps: the power of two of a subnormal example is beyond the type
    x = x.mul_(_power(shift // 2)).mul_(_power(shift - shift // 2)).round_()
    whole = x.to(torch.int32)
    lowest = torch.where(whole == 0, 2**SUM_BITS, whole & -whole).amin(dim=1, keepdim=True)
    return x.div_(lowest).to(torch.int32)  # a power of two: exact


def _power(exponent: Tensor) -> Tensor:
    """Two to an integer from -1022 to 1023, exact on every device."""
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


def block_size(dim: int, fan_in: int, active: int) -> int:
    """Rows in a block: few make many maxima to compare, many make much to be added up again."""
    balance = math.sqrt(dim / (active * fan_in))
    return 1 << max(0, round(math.log2(max(balance, 1))))


def two_phases(
    x: Int32[Tensor, "n d"], rows: Int32[Tensor, "dim fan_in"], active: int
) -> Int32[Tensor, "n active"]:
    """The winners without the n x dim sums ever being there, in torch alone.

    First only the largest sum of each block of rows is kept. The blocks with the ``active``
    largest, of equal ones the first, hold all winners: each of the others comes behind a row of
    every one of these. Their sums are then computed again.

    Args:
        x: Integers of :func:`fixed_point`.
        rows: The lift, on the device of ``x``.
        active: Number of winners.
    """
    dim, fan_in = rows.shape
    block = block_size(dim, fan_in, active)
    num_blocks = -(-dim // block)
    padding = num_blocks * block - dim
    padded = torch.cat([rows, rows[-1:].expand(padding, -1)])  # the last block's maximum is its own
    largest = int(x.abs().max()) if len(x) else 0
    exact = torch.float32 if largest * fan_in < 2**24 else torch.float64
    parts = [torch.empty(0, active, dtype=torch.int32, device=x.device)]
    for tile in x.split(256) if len(x) else ():
        maxima = _block_maxima(tile.T.to(exact).contiguous(), padded, block)
        best = _keys(maxima).topk(min(active, num_blocks), dim=1).indices
        lines = (best[:, :, None] * block + torch.arange(block, device=x.device)).flatten(1)
        step = max(1, 2**22 // (lines.shape[1] * fan_in))
        parts += [
            _largest(some, rows, of, active)
            for some, of in zip(tile.split(step), lines.split(step), strict=True)
        ]
    return torch.cat(parts)


def _block_maxima(columns: Tensor, rows: Tensor, block: int) -> Tensor:
    """The largest sum of each block of rows, by example."""
    step = max(1, 2**21 // (block * columns.shape[1])) * block
    maxima = [
        embedding_bag(part, columns, mode="sum").unflatten(0, (-1, block)).amax(dim=1)
        for part in rows.split(step)
    ]
    return torch.cat(maxima).T


def _keys(values: Tensor) -> Tensor:
    index = torch.arange(values.shape[1], device=values.device)
    return values.long() * KEY + (KEY - 1 - index)


def _largest(x: Tensor, rows: Tensor, lines: Tensor, active: int) -> Tensor:
    """Of some rows for each example those with the largest sums."""
    real = lines < len(rows)
    inputs = rows[lines.clamp(max=len(rows) - 1)].long()
    sums = x.long().gather(1, inputs.flatten(1)).view(inputs.shape).sum(dim=-1)
    keys = torch.where(real, sums * KEY + (KEY - 1 - lines), torch.iinfo(torch.int64).min)
    best = keys.topk(active, dim=1).indices
    return lines.gather(1, best).sort(dim=1).values.int()
