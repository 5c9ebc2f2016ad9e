"""Trees as bytes on a disk: torch's own format takes twice as many where tensors are small."""

import io
import json
import math
import struct
from typing import Any

import torch
from torch import Tensor

from fedbolic.types import Tree

FOREIGN = "torch.save"
"""Stands for a tensor that is not dense, in the format of torch."""


def tree_to_bytes(tree: Tree) -> bytes:
    """A tree as bytes, to the last bit: a length, JSON, and the tensors' bytes.

    Args:
        tree: Of dicts, tensors, numbers and strings.

    Raises:
        ValueError: If it holds something else than tensors, numbers and strings.
    """
    buffers: list[bytes] = []

    def plain(value: Any) -> Any:
        if isinstance(value, Tensor):
            buffer, form = _written(value)
            buffers.append(buffer)
            return form
        if isinstance(value, dict) and all(isinstance(name, str) for name in value):
            return {name: plain(branch) for name, branch in value.items()}
        if isinstance(value, str | int | float):
            return value
        raise ValueError(
            "a tree holds tensors, numbers and strings by names that are strings, and this "
            f"one a {type(value).__name__}: {value!r:.80}"
        )

    text = json.dumps(plain(tree)).encode()
    return b"".join([struct.pack("<I", len(text)), text, *buffers])


def tree_from_bytes(content: bytes) -> Tree:
    """The tree that :func:`tree_to_bytes` made these bytes of; nothing in them is run.

    Args:
        content: As it was made: whoever reads it from a disk checks that.

    Example:
        >>> tree_from_bytes(tree_to_bytes({"a": {"n": 2**70}, "x": torch.tensor([True])}))
        {'a': {'n': 1180591620717411303424}, 'x': tensor([True])}
    """
    (length,) = struct.unpack_from("<I", content)
    data, position = bytearray(content), 4 + length

    def read(value: Any) -> Any:
        nonlocal position
        if isinstance(value, dict):
            return {name: read(branch) for name, branch in value.items()}
        if not isinstance(value, list):
            return value
        start = position
        if value[0] == FOREIGN:
            position += value[1]
            return torch.load(io.BytesIO(data[start:position]), weights_only=True)
        name, shape, stride, device = value
        dtype = getattr(torch, name)
        num_bytes = math.prod(shape) * dtype.itemsize
        position += num_bytes
        flat = torch.empty(num_bytes, dtype=torch.uint8)  # aligned as any other tensor
        if num_bytes:
            flat.copy_(torch.frombuffer(data, dtype=torch.uint8, count=num_bytes, offset=start))
        return flat.view(dtype).as_strided(shape, stride).to(device)

    return read(json.loads(content[4 : 4 + length]))


def _written(value: Tensor) -> tuple[bytes, list[Any]]:
    """The bytes of a tensor in the order of its strides, which stay: others may round differently.

    With them its form: dtype, shape, strides and device.
    """
    if value.layout is not torch.strided or value.is_quantized or value.is_conj() or value.is_neg():
        file = io.BytesIO()  # rare, so that a kilobyte more is no matter
        torch.save(value, file)
        return file.getvalue(), [FOREIGN, len(file.getvalue())]
    dense = value.detach().clone(memory_format=torch.preserve_format).cpu()
    flat = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
    name = str(value.dtype).removeprefix("torch.")
    form = [name, list(dense.shape), list(dense.stride()), str(value.device)]
    return flat.numpy().tobytes(), form
