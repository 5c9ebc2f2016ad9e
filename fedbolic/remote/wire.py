"""Encoding of trees as JSON and bytes; decoding a message never executes code from it."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbolic.core.types import Tree

WIRE_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
)}  # fmt: skip
"""Dtypes that can be sent, by name."""


LONGEST = 2**40
"""Exclusive bound on the product of a tensor's nonzero axes; torch's own limit is higher."""

LONGEST_TEXT = 2**22
"""Maximum number of characters of a message besides its tensors; a character takes 50 bytes."""

MOST_AXES = 16
"""Largest number of axes of a tensor; torch's own limit is higher."""


@dataclass(frozen=True)
class WireMessage:
    """An encoded tree.

    Args:
        text: Names, numbers and strings of the tree in JSON, with ``[dtype, *shape]`` for a tensor.
        buffers: Bytes of the tensors, in the order of the text.
    """

    text: str
    buffers: tuple[bytes, ...]


def encode_message(content: Tree) -> WireMessage:
    """Encode a tree exactly.

    Raises:
        ValueError: If the tree holds anything other than dense tensors of :data:`WIRE_DTYPES`,
            numbers and strings.

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
                raise ValueError(f"names in a tree must be strings, got {wrong[:4]}")
            return {name: plain(branch) for name, branch in value.items()}
        if isinstance(value, Tensor):
            name = str(value.dtype).removeprefix("torch.")
            if name not in WIRE_DTYPES or value.layout is not torch.strided:
                raise ValueError(f"a tensor of {value.dtype}, {value.layout} cannot be sent")
            dense = value.detach().cpu().contiguous()
            flat = dense.as_strided((dense.numel(),), (1,))  # one number may have any stride
            buffers.append(flat.view(torch.uint8).numpy().tobytes())
            return [name, *value.shape]
        if isinstance(value, str | int | float):
            return value
        raise ValueError(f"a tree holds tensors, numbers and strings, got a {type(value).__name__}")

    return WireMessage(json.dumps(plain(content)), tuple(buffers))


def decode_message(message: WireMessage) -> Tree:
    """Decode a message from an untrusted sender.

    Raises:
        ValueError: If :func:`encode_message` could not have produced the message.
    """
    if len(message.text) > LONGEST_TEXT:
        raise ValueError(
            f"a message has a text of {len(message.text)} characters, more than {LONGEST_TEXT}"
        )
    buffers = iter(message.buffers)

    def leaf(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: leaf(branch) for name, branch in value.items()}
        if isinstance(value, list):
            return _tensor(value, next(buffers, None))
        if isinstance(value, str | int | float):
            return value
        raise ValueError(f"a message holds {value!r:.80}, which a tree cannot hold")

    try:
        content = leaf(json.loads(message.text))
    except RecursionError as error:
        raise ValueError("a message is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"the text of a message is not JSON: {error}") from error
    if not isinstance(content, dict) or next(buffers, None) is not None:
        raise ValueError("a message is not a tree, or has more buffers than tensors")
    return content


def _tensor(form: Sequence[Any], buffer: bytes | None) -> Tensor:
    name, *shape = form or [None]
    dtype = WIRE_DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"a message has a tensor of invalid form {form!r:.80}")
    if len(shape) > MOST_AXES or math.prod(max(n, 1) for n in shape) >= LONGEST:
        raise ValueError(f"a message has a tensor that is too large: {form!r:.80}")
    if buffer is None or len(buffer) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"the bytes of a message do not fit a tensor of the form {form!r:.80}")
    if not buffer:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(buffer), dtype=dtype).reshape(shape)
