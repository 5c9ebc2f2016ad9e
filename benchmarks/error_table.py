"""A table of errors, of kernels next to the operators that they replace."""

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks import truth

RADII = (1e-3, 0.5, 2.0, 5.0, 9.0)
"""Distances of the points from the origin, in units of length."""


def table_row(
    name: str, dtype: torch.dtype, radius: float, errors: Sequence[tuple[float, ...]]
) -> str:
    """A line of a table with a column for every kind of error, of one candidate after another.

    Args:
        name: First column.
        dtype: Type of the points.
        radius: Distance of the points from the origin.
        errors: Errors of every candidate.
    """
    cells = [", ".join(f"{e:.1e}" for e in same) for same in zip(*errors, strict=True)]
    type_name = str(dtype).removeprefix("torch.")
    return f"| {name} | {type_name} | {radius:g} | {' | '.join(cells)} |"


def row_error(found: Tensor, true: list) -> truth.Number:
    """The largest error of a coordinate over the largest coordinate.

    Args:
        found: Coordinates of one row.
        true: The same in 60 digits.
    """
    gaps = [abs(a - b) for a, b in zip(truth.exact(found.tolist()), true, strict=True)]
    return max(gaps) / max(abs(b) for b in true)
