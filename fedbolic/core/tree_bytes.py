"""Encoding of trees as JSON and bytes, for disk and wire; decoding never executes code.

Strides are kept because operations may round differently with other strides. Torch's own format
takes twice the bytes.
"""

import hashlib
import io
import itertools
import json
import math
import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fedbolic.core.types import Tree

WIRE_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in (
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)}  # fmt: skip
"""Dtypes that can be saved and sent, by name."""

LONGEST = 2**40
"""Exclusive bound on the product of a tensor's nonzero axes; torch's own limit is higher."""

LONGEST_TEXT = 2**22
"""Maximum number of characters of a message besides its tensors; a character takes 50 bytes."""

MOST_AXES = 16
"""Largest number of axes of a tensor; torch's own limit is higher."""

_Taken: TypeAlias = Callable[[int], bytes | None]
"""Function of a number of bytes that gives the next ones, if they are there."""


@dataclass(frozen=True)
class WireMessage:
    """An encoded tree.

    Args:
        text: Names, numbers and strings of the tree in JSON, with ``[dtype, shape, strides]`` for a
            tensor, and its device if that is not the CPU.
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
        '{"x": ["float32", [2, 3], [3, 1]], "n": 1267650600228229401496703205376}'
        >>> decode_message(message)["n"] == 2**100
        True
    """
    buffers: list[bytes] = []

    def form(x: Tensor) -> list[Any]:
        name = str(x.dtype).removeprefix("torch.")
        if name not in WIRE_DTYPES or x.layout is not torch.strided:
            raise ValueError(f"a tensor of {x.dtype}, {x.layout} cannot be saved or sent")
        dense = x.detach().resolve_conj().resolve_neg().clone(memory_format=torch.preserve_format)
        buffers.append(_flat(dense.cpu()).numpy().tobytes())
        place = [] if x.device.type == "cpu" else [str(x.device)]
        return [name, list(x.shape), list(dense.stride()), *place]

    return WireMessage(json.dumps(_plain(content, form)), tuple(buffers))


def _plain(value: Any, form: Callable[[Tensor], list[Any]]) -> Any:
    """The JSON of a tree, with a list for each tensor; no other leaf becomes a list."""
    if isinstance(value, Tensor):
        return form(value)
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: _plain(branch, form) for name, branch in value.items()}
    if isinstance(value, str | int | float):
        return value
    raise ValueError(
        "a tree holds tensors, numbers and strings by names that are strings, but this "
        f"one a {type(value).__name__}: {value!r:.80}"
    )


def _flat(dense: Tensor) -> Tensor:
    """The bytes of a dense tensor in the order of its storage."""
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def decode_message(message: WireMessage) -> Tree:
    """Decode a message from an untrusted sender, with its tensors on the CPU.

    Raises:
        ValueError: If :func:`encode_message` could not have produced the message.
    """
    if len(message.text) > LONGEST_TEXT:
        raise ValueError(
            f"a message has a text of {len(message.text)} characters, more than {LONGEST_TEXT}"
        )
    buffers = iter(message.buffers)
    content = _decoded(message.text, lambda _: next(buffers, None), device="cpu")
    if next(buffers, None) is not None:
        raise ValueError("a message has more buffers than tensors")
    return content


def _decoded(text: str, taken: _Taken, *, device: str | None = None) -> Tree:
    """The tree from its text and the bytes that ``taken`` returns."""

    def leaf(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: leaf(branch) for name, branch in value.items()}
        if isinstance(value, list):
            return _tensor(value, taken, device)
        if isinstance(value, str | int | float):
            return value
        raise ValueError(f"a message holds {value!r:.80}, which a tree cannot hold")

    try:
        content = leaf(json.loads(text))
    except RecursionError as error:
        raise ValueError("a message is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"the text of a message is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"a message is not a tree, but a {type(content).__name__}")
    return content


def _tensor(form: list[Any], taken: _Taken, device: str | None) -> Tensor:
    name, shape, stride, *place = form if len(form) in (3, 4) else (None, [-1], [-1])
    dtype = WIRE_DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None or not (_are_counts(shape) and _are_counts(stride)):
        raise ValueError(f"a message has a tensor of invalid form {form!r:.80}")
    if len(shape) > MOST_AXES or math.prod(max(n, 1) for n in shape) >= LONGEST:
        raise ValueError(f"a message has a tensor that is too large: {form!r:.80}")
    if not _is_dense(shape, stride):
        raise ValueError(f"a message has a tensor with gaps or repetitions: {form!r:.80}")
    buffer = taken(num_bytes := math.prod(shape) * dtype.itemsize)
    if buffer is None or len(buffer) != num_bytes:
        raise ValueError(f"the bytes of a message do not fit a tensor of the form {form!r:.80}")
    flat = torch.empty(num_bytes, dtype=torch.uint8)  # a new tensor, for alignment
    if num_bytes:
        flat.copy_(torch.frombuffer(bytearray(buffer), dtype=torch.uint8))
    return flat.view(dtype).as_strided(shape, stride).to(device or (place or ["cpu"])[0])


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _is_dense(shape: list[int], stride: list[int]) -> bool:
    """True if each byte of a tensor belongs to one of its numbers."""
    if len(stride) != len(shape) or max(stride, default=0) >= LONGEST:
        return False
    axes = sorted((step, n) for n, step in zip(shape, stride, strict=True) if n != 1)
    steps = itertools.accumulate((n for _, n in axes), operator.mul, initial=1)
    return 0 in shape or all(step == least for (step, _), least in zip(axes, steps, strict=False))


def tree_to_bytes(tree: Tree) -> bytes:
    """Encode a tree exactly, as one string: the length of the text, the text, and the buffers.

    Raises:
        ValueError: If the tree holds anything other than dense tensors of :data:`WIRE_DTYPES`,
            numbers and strings.
    """
    message = encode_message(tree)
    text = message.text.encode()
    return b"".join([struct.pack("<I", len(text)), text, *message.buffers])


def tree_from_bytes(content: bytes) -> Tree:
    """Decode the output of :func:`tree_to_bytes`, of which the caller verifies a checksum.

    Raises:
        ValueError: If it is no such output.

    Example:
        >>> tree_from_bytes(tree_to_bytes({"a": {"n": 2**70}, "x": torch.tensor([True])}))
        {'a': {'n': 1180591620717411303424}, 'x': tensor([True])}
    """
    stream = io.BytesIO(content)
    try:
        text = stream.read(*struct.unpack("<I", stream.read(4)))
        return _decoded(text.decode(), stream.read)
    except Exception as error:  # a record of other code may raise anything
        raise ValueError(f"the bytes are no tree: {error!r:.200}") from error


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
    text = json.dumps(_plain(tree, _digest_form), sort_keys=True)
    return hashlib.sha256(text.encode()).digest()


_DIGESTS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Version and digest of tensors: the messages of a simulation share theirs."""


def _digest_form(x: Tensor) -> list[Any]:
    if x.layout is not torch.strided or x.is_quantized or (x.numel() and not x.data_ptr()):
        raise ValueError(f"a tensor of {x.dtype}, {x.layout} on {x.device} has no digest")
    version = None if x.is_inference() else x._version
    known, found = _DIGESTS.get(x) or (None, "")
    if known is None or known != version:
        dense = x.detach().cpu().resolve_conj().resolve_neg().contiguous()
        found = hashlib.sha256(_flat(dense).numpy().data).hexdigest()
        _DIGESTS[x] = version, found
    return [str(x.dtype), *x.shape, found]
