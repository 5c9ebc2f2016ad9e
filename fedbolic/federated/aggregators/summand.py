"""Conversion of payload leaves to the numbers that an aggregator adds."""

import torch
from torch import Tensor


def as_number(leaf: Tensor | float) -> Tensor:
    """A leaf as a tensor of its own precision; by default torch converts a float to float32."""
    return torch.as_tensor(leaf, dtype=torch.float64 if isinstance(leaf, float) else None)


def cast_like(value: Tensor, like: Tensor | float) -> Tensor:
    """``value`` in the dtype of ``like``, rounded if that is an integer dtype."""
    like = as_number(like)
    return (value if like.is_floating_point() else value.round()).to(like.dtype)


def as_double(leaf: Tensor | float) -> Tensor:
    """Copy of a leaf in float64."""
    return as_number(leaf).to(torch.float64, copy=True)


def as_summand(leaf: Tensor | float) -> Tensor:
    """Copy of a leaf in the widest dtype of its kind: float64 or int64."""
    value = as_number(leaf)
    return as_double(value) if value.is_floating_point() else value.to(torch.int64, copy=True)
