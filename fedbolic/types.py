"""Names for the values that travel through the house."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

Tree: TypeAlias = dict[str, Any]
"""A nested dict whose leaves are tensors, numbers and strings: state, message, payload, memory.

Bytes travel as uint8 tensors. Nothing else may be in a tree, so that saving, counting bytes and
sending need no code of the method's.
"""

Params: TypeAlias = dict[str, Tensor]
"""Tensors by dotted parameter name, as ``nn.Module.named_parameters`` gives them."""


@dataclass(frozen=True)
class Meta:
    """All that every party of a federation may know before the first round.

    It travels with every request and is a key of caches, so nothing in it grows with the clients.

    Args:
        num_classes: Labels are the integers below it.
        input_shape: Shape of one example, without a batch axis.
        num_clients: Of the federation, whether they take part in a round or not.
    """

    num_classes: int
    input_shape: tuple[int, ...]
    num_clients: int
