"""Leaves of a payload as the numbers that an aggregator adds up."""

import torch
from torch import Tensor


def as_number(leaf: Tensor | float) -> Tensor:
    """A number as a tensor of its own precision: torch would make a float32 of it."""
    return torch.as_tensor(leaf, dtype=torch.float64 if isinstance(leaf, float) else None)


def cast_like(value: Tensor, like: Tensor | float) -> Tensor:
    """``value`` in the dtype of ``like``, rounded if that is an integer type."""
    like = as_number(like)
    return (value if like.is_floating_point() else value.round()).to(like.dtype)


def as_double(leaf: Tensor | float) -> Tensor:
    """A copy of a number in float64."""
    return as_number(leaf).to(torch.float64, copy=True)


def as_summand(leaf: Tensor | float) -> Tensor:
    """A copy of a number in the widest type of its kind: float64 or int64."""
    value = as_number(leaf)
    return as_double(value) if value.is_floating_point() else value.to(torch.int64, copy=True)
