"""Compact serialization and digests of trees; torch's own format takes twice the bytes."""

import hashlib
import io
import json
import math
import struct
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fedbolic.core.torch_files import load_torch
from fedbolic.core.types import Tree

FOREIGN = "torch.save"
"""Marker of a tensor that is not dense and is stored in torch's own format."""


def tree_to_bytes(tree: Tree) -> bytes:
    """Serialize a tree losslessly: the length of the JSON part, JSON, and the tensors' bytes.

    Args:
        tree: Tree of dicts, tensors, numbers and strings.

    Raises:
        ValueError: If the tree holds anything but tensors, numbers and strings.
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
            "a tree holds tensors, numbers and strings by names that are strings, but this "
            f"one a {type(value).__name__}: {value!r:.80}"
        )

    text = json.dumps(plain(tree)).encode()
    return b"".join([struct.pack("<I", len(text)), text, *buffers])


def tree_from_bytes(content: bytes) -> Tree:
    """Deserialize the output of :func:`tree_to_bytes` without running code in it.

    Args:
        content: Output of :func:`tree_to_bytes`; the caller verifies checksums.

    Raises:
        ValueError: If it is no such output.

    Example:
        >>> tree_from_bytes(tree_to_bytes({"a": {"n": 2**70}, "x": torch.tensor([True])}))
        {'a': {'n': 1180591620717411303424}, 'x': tensor([True])}
    """
    length = struct.unpack("<I", content[:4].ljust(4, b"\0"))[0]
    data, position = bytearray(content), 4 + length

    def taken(size: int) -> int:
        """Position of the next ``size`` bytes, which are there."""
        nonlocal position
        start, position = position, position + size
        if size < 0 or position > len(data):
            raise ValueError(f"it has {len(data)} bytes, but its tensors take {position} or more")
        return start

    def read(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: read(branch) for name, branch in value.items()}
        if not isinstance(value, list):
            return value
        if value[0] == FOREIGN:
            start = taken(value[1])
            return load_torch(bytes(data[start:position]))
        name, shape, stride, device = value
        dtype = getattr(torch, name)
        num_bytes = math.prod(shape) * dtype.itemsize
        start = taken(num_bytes)
        flat = torch.empty(num_bytes, dtype=torch.uint8)  # a new tensor, for alignment
        if num_bytes:
            flat.copy_(torch.frombuffer(data, dtype=torch.uint8, count=num_bytes, offset=start))
        return flat.view(dtype).as_strided(shape, stride).to(device)

    try:
        found = read(json.loads(content[4 : 4 + length]))
    except Exception as error:  # a record of other code may raise anything
        raise ValueError(f"the bytes are no tree: {error!r:.200}") from error
    if not isinstance(found, dict):
        raise ValueError(f"the bytes are no tree, but a {type(found).__name__}")
    return found


def _written(value: Tensor) -> tuple[bytes, list[Any]]:
    """The bytes of a tensor in storage order, and its dtype, shape, strides and device.

    Strides are kept because operations may round differently with other strides.
    """
    if value.layout is not torch.strided or value.is_quantized or value.is_conj() or value.is_neg():
        file = io.BytesIO()  # torch.save adds a kilobyte, but such tensors are rare
        torch.save(value, file)
        return file.getvalue(), [FOREIGN, len(file.getvalue())]
    dense = value.detach().clone(memory_format=torch.preserve_format).cpu()
    flat = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
    name = str(value.dtype).removeprefix("torch.")
    form = [name, list(dense.shape), list(dense.stride()), str(value.device)]
    return flat.numpy().tobytes(), form


def tree_digest(tree: Tree) -> bytes:
    """SHA-256 of a tree, by which trees differ in names, nesting, types, dtypes, shapes or values.

    The order of names, strides and devices do not count. A tensor is hashed once, until it changes.

    Args:
        tree: Tree of dicts, dense tensors, numbers and strings.

    Raises:
        ValueError: If the tree holds anything else.

    Example:
        >>> tree_digest({"a": 1, "b": 2.0}) == tree_digest({"b": 2.0, "a": 1})
        True
        >>> tree_digest({"a": torch.zeros(2)}) == tree_digest({"a": torch.zeros(2, 1)})
        False
    """
    return hashlib.sha256(json.dumps(_canonical(tree), sort_keys=True).encode()).digest()


def _canonical(value: Any) -> Any:
    """The JSON of a tree, with a list for each tensor; no other leaf becomes a list."""
    if isinstance(value, Tensor):
        return [str(value.dtype), *value.shape, _tensor_digest(value)]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: _canonical(branch) for name, branch in value.items()}
    if isinstance(value, str | int | float):
        return value
    raise ValueError(f"a tree holds tensors, numbers and strings, got a {type(value).__name__}")


_DIGESTS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Version and digest of tensors: the messages of a simulation share theirs."""


def _tensor_digest(x: Tensor) -> str:
    if x.layout is not torch.strided or x.is_quantized or (x.numel() and not x.data_ptr()):
        raise ValueError(f"a tensor of {x.dtype}, {x.layout} on {x.device} has no digest")
    version = None if x.is_inference() else x._version
    known = _DIGESTS.get(x)
    if known is not None and version is not None and known[0] == version:
        return known[1]
    dense = x.detach().cpu().resolve_conj().resolve_neg().contiguous()
    flat = dense.as_strided((dense.numel(),), (1,))  # one number may have any stride
    found = hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()
    _DIGESTS[x] = version, found
    return found
