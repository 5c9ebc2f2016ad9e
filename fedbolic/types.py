"""Names for the values that travel through the house."""

from typing import Any, TypeAlias

from torch import Tensor

Tree: TypeAlias = dict[str, Any]
"""A nested dict whose leaves are tensors, numbers and strings: states, messages, payloads, memories.

Bytes travel as uint8 tensors. Nothing else may be in a tree, so that saving, counting bytes and
sending need no code of the method's.
"""

Params: TypeAlias = dict[str, Tensor]
"""Tensors by dotted parameter name, as ``nn.Module.named_parameters`` gives them."""
