"""A table of errors, of kernels next to the operators that they replace."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from benchmarks import truth
from fedbolic.manifolds import Lorentz, Poincare

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


def table_of_models(
    what: str,
    columns: Sequence[str],
    names: Sequence[str],
    errors: Callable[..., Sequence[tuple[float, ...]]],
) -> Iterator[str]:
    """A table of functions on both models, in both types, at all radii, a line at a time.

    Args:
        what: Head of the first column.
        columns: Names of the kinds of errors.
        names: Functions.
        errors: The errors of the operators and of the kernel, from a model, a function, a radius
            and a type.
    """
    heads = " | ".join(f"{column}: operators, kernel" for column in columns)
    yield f"| {what} | dtype | radius | {heads} |"
    yield "|---" * (3 + len(columns)) + "|"
    cells = itertools.product((Lorentz, Poincare), names, (torch.float32, torch.float64), RADII)
    for kind, name, dtype, radius in cells:
        both = errors(kind, name, radius, dtype)
        yield table_row(f"{kind.__name__} {name}", dtype, radius, both)


def row_error(found: Tensor, true: list) -> truth.Number:
    """The largest error of a coordinate over the largest coordinate.

    Args:
        found: Coordinates of one row.
        true: The same in 60 digits.
    """
    gaps = [abs(a - b) for a, b in zip(truth.exact(found.tolist()), true, strict=True)]
    return max(gaps) / max(abs(b) for b in true)
