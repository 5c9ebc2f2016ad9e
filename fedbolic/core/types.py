"""Types shared by the whole code base."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

Tree: TypeAlias = dict[str, Any]
"""A nested dict of tensors, numbers and strings: a state, message or payload.

Bytes are stored as uint8 tensors. No other leaves are allowed, so that saving, sending and counting
bytes need no code from the method.
"""

Params: TypeAlias = dict[str, Tensor]
"""Tensors by dotted parameter name, as ``nn.Module.named_parameters`` gives them."""


@dataclass(frozen=True)
class Meta:
    """Facts about a federation that every party knows before the first round.

    It is sent with every request and used as a cache key, so its size must not depend on the number
    of clients.

    Args:
        num_classes: Number of classes; labels are ``0 .. num_classes - 1``.
        input_shape: Shape of one example, without a batch axis.
        num_clients: Number of clients in the federation, not in a round.
    """

    num_classes: int
    input_shape: tuple[int, ...]
    num_clients: int
