"""A table of errors, of kernels next to the operators that they replace."""

from collections.abc import Sequence

import torch

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
