# pyright: reportMissingImports=false
"""Launches of kernels, their shapes and sizes."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

PROGRAMS = 1024
"""Programs of one launch that keep a device busy; more rows of sums than that cost memory."""

VALUE_NUMBERS = {torch.float32: 1024, torch.float64: 512}
GRADIENT_NUMBERS = {torch.float32: 512, torch.float64: 256}
"""Coordinates of points that a program holds for values, and for gradients."""

WARPS = 4


def launch(kernel: Any, programs: int, on: Tensor, *arguments: Any, **constants: Any) -> None:
    """Run the programs of a kernel.

    Args:
        kernel: The kernel.
        programs: Number of its programs.
        on: Tensor whose device runs them; if it is empty, nothing runs.
        *arguments: Tensors and numbers.
        **constants: Constants of the kernel and options of triton.
    """
    if on.numel():
        with torch.cuda.device_of(on):  # triton launches on the current device
            kernel[(programs,)](*arguments, **constants)


class Tile(NamedTuple):
    """Rows and columns of the matrix that one program holds, and its warps."""

    rows: int
    columns: int
    warps: int = 4


def splits_of(length: int, step: int, others: int) -> tuple[int, int]:
    """Parts of an axis that separate programs sum, and the length of a part.

    Args:
        length: Length of the axis.
        step: Steps that a program takes at a time; a part is a multiple of it.
        others: Programs that other axes need.
    """
    steps = triton.cdiv(length, step)
    splits = max(1, min(steps, PROGRAMS // max(1, others)))
    span = triton.cdiv(steps, splits) * step
    return max(1, triton.cdiv(length, span)) if span else 1, span


def row_sizes(d: int, numbers: int) -> dict[str, int]:
    """Rows of one program, and their width, a power of 2.

    Args:
        d: Coordinates of a row.
        numbers: Coordinates that a program holds, unless one row has more.
    """
    width = triton.next_power_of_2(max(d, 1))
    return {"ROWS": max(1, numbers // width), "WIDTH": width}


def batches_of(
    *groups: Sequence[Tensor], lead: Sequence[int] | None = None
) -> tuple[torch.Size, list[tuple[Tensor, ...]]]:
    """The broadcast shape of a batch of matrices, and tensors with one axis for it.

    A group all of whose tensors are common to the batch keeps one matrix, for strides of 0.

    Args:
        *groups: Tensors whose last two axes are those of a matrix.
        lead: Shape of the batch; by default, that to which the tensors broadcast.
    """
    shapes = [t.shape[:-2] for tensors in groups for t in tensors]
    whole = torch.broadcast_shapes(*shapes) if lead is None else torch.Size(lead)
    return whole, [_flat(tensors, whole) for tensors in groups]


def batch_strides(*groups: Sequence[Tensor]) -> tuple[int, ...]:
    """1 for groups with one matrix per batch, 0 for those that all batches share.

    Args:
        *groups: Groups of tensors as :func:`batches_of` returns them.
    """
    return tuple(int(len(tensors[0]) > 1) for tensors in groups)


def _flat(tensors: Sequence[Tensor], lead: torch.Size) -> tuple[Tensor, ...]:
    shared = all(t.shape[:-2].numel() == 1 for t in tensors)
    shape = (1,) * len(lead) if shared else lead
    full = (t.expand(*shape, *t.shape[-2:]) for t in tensors)
    return tuple(t.reshape(math.prod(shape), *t.shape[-2:]).contiguous() for t in full)
