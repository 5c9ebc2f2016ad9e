"""Trees as text and bytes, to travel between machines: nothing in them can run at the receiver."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbolic.types import Tree

WIRE_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
)}  # fmt: skip
"""What a tensor of a tree may hold, by name."""


LONGEST = 2**40
"""The product of a tensor's axes that are not 0 is below it; torch's own limit is above."""

MOST_AXES = 16
"""A tensor has no more; torch's own limit is above."""


@dataclass(frozen=True)
class WireMessage:
    """A tree on its way.

    Args:
        text: Its names, numbers and strings in JSON; ``[dtype, *shape]`` stands for a tensor.
        buffers: The bytes of its tensors, in the order of the text.
    """

    text: str
    buffers: tuple[bytes, ...]

    def digest(self) -> str:
        """The name that only this content has (SHA-256, in hexadecimal)."""
        state = hashlib.sha256(hashlib.sha256(self.text.encode()).digest())
        for buffer in self.buffers:
            state.update(hashlib.sha256(buffer).digest())
        return state.hexdigest()


def encode_message(content: Tree) -> WireMessage:
    """A tree as a message, to the last bit.

    Raises:
        ValueError: If it holds something else than tensors, numbers and strings.

    Example:
        >>> message = encode_message({"x": torch.zeros(2, 3), "n": 2**100})
        >>> message.text
        '{"x": ["float32", 2, 3], "n": 1267650600228229401496703205376}'
        >>> decode_message(message)["n"] == 2**100
        True
    """
    buffers: list[bytes] = []

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            if wrong := [name for name in value if not isinstance(name, str)]:
                raise ValueError(f"names in a tree are strings, got {wrong[:4]}")
            return {name: plain(branch) for name, branch in value.items()}
        if isinstance(value, Tensor):
            name = str(value.dtype).removeprefix("torch.")
            if name not in WIRE_DTYPES or value.layout is not torch.strided:
                raise ValueError(f"a tensor of {value.dtype}, {value.layout} cannot be sent")
            flat = value.detach().cpu().contiguous().reshape(-1)
            buffers.append(flat.view(torch.uint8).numpy().tobytes())
            return [name, *value.shape]
        if isinstance(value, str | int | float):
            return value
        raise ValueError(
            f"a tree holds tensors, numbers and strings, and this one a {type(value).__name__}"
        )

    return WireMessage(json.dumps(plain(content)), tuple(buffers))


def decode_message(message: WireMessage) -> Tree:
    """The tree of a message, whoever wrote it.

    Raises:
        ValueError: If it is not one that :func:`encode_message` could have given.
    """
    buffers = iter(message.buffers)

    def leaf(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: leaf(branch) for name, branch in value.items()}
        if isinstance(value, list):
            return _tensor(value, next(buffers, None))
        if isinstance(value, str | int | float):
            return value
        raise ValueError(f"a message holds {value!r:.80}, which no tree does")

    try:
        content = leaf(json.loads(message.text))
    except RecursionError as error:
        raise ValueError("a message is nested too deeply") from error
    if not isinstance(content, dict) or next(buffers, None) is not None:
        raise ValueError("a message is no tree, or has bytes left over")
    return content


def _tensor(form: Sequence[Any], buffer: bytes | None) -> Tensor:
    name, *shape = form or [None]
    dtype = WIRE_DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"a message has a tensor of the form {form!r:.80}")
    if len(shape) > MOST_AXES or math.prod(max(n, 1) for n in shape) >= LONGEST:
        raise ValueError(f"a message has a tensor of the form {form!r:.80}")
    if buffer is None or len(buffer) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"the bytes of a message do not fit a tensor of the form {form!r:.80}")
    if not buffer:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(buffer), dtype=dtype).reshape(shape)
