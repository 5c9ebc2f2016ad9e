"""Files of ``torch.save``: sealed by a checksum, and loaded after types and sizes are checked."""

import hashlib
import io
import os
import pickletools
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import torch
from torch import Tensor

from fedbolic.core.checksums import DamagedError, file_chunks, open_checked
from fedbolic.core.reading import open_file

SEAL = b"fedbolic SHA-256 "
"""Prefix of the zip comment of a checkpoint; the digest of all preceding bytes follows it."""

_EXPANSION = 4
"""Maximum size of loaded tensors relative to their file: a view may repeat one number at will."""

_SLACK = 2**26
"""Bytes that loaded tensors may have in addition."""

_MOST_LEAVES = 10**7
"""Maximum number of values of a tree, with shared branches counted at every use."""

_FUNCTIONS = {
    "collections OrderedDict",
    "torch Size",
    "torch device",
    "torch.serialization _get_layout",
    "torch.storage UntypedStorage",
    *(f"torch._utils _rebuild_{kind}" for kind in ("tensor_v2", "tensor_v3", "sparse_tensor")),
    *(f"torch._utils _rebuild_{kind}" for kind in ("parameter", "qtensor")),
}
"""Names to which a saved tree may refer besides storages and dtypes; others may take any memory."""


class _Hashed:
    """A writable file that hashes everything written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        self.digest.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def save_sealed(value: dict[str, Any], file: BinaryIO) -> None:
    """Save with ``torch.save`` and add a checksum as the comment of the zip archive.

    Args:
        value: Anything that ``torch.load`` can read with ``weights_only=True``.
        file: Empty binary file, open for reading and writing.

    Raises:
        OSError: If the file cannot be written, because the disk is full, for example.
    """
    hashed = _Hashed(file)
    try:
        torch.save(value, hashed)  # type: ignore[arg-type]  # it calls write and flush only
    except RuntimeError as error:  # of torch, about positions in a file that was cut short
        if hashed.error is not None:
            raise hashed.error from error
        raise
    comment = SEAL + hashed.digest.hexdigest().encode()
    file.seek(-2, os.SEEK_END)  # where the length of the empty comment stands
    file.write(struct.pack("<H", len(comment)) + comment)


def load_sealed(
    path: Path,
    *,
    numbers: Mapping[str, Sequence[str]] = MappingProxyType({}),
    device: str | None = None,
) -> dict[str, Any]:
    """Load a file written by :func:`save_sealed` after verifying its checksum.

    Args:
        path: The file.
        numbers: Names of the integers that an entry of the file has.
        device: Device to load tensors to; ``None`` for the one on which they were saved.

    Raises:
        DamagedError: If the checksum is missing or wrong, the file holds more than tensors and
            values of Python's basic types, or ``numbers`` are missing.
    """
    length = len(SEAL) + 64
    with open_checked(path) as file:
        body = path.stat().st_size - length - 2
        digest = hashlib.sha256()
        for chunk in file_chunks(file, max(body, 0)):
            digest.update(chunk)
        digest.update(bytes(2))
        size, comment = file.read(2), file.read(length + 1)
    if not comment.startswith(SEAL):
        raise DamagedError(
            path, "has no checksum: it is damaged, or an earlier version of fedbolic wrote it"
        )
    if (size, comment) != (struct.pack("<H", length), SEAL + digest.hexdigest().encode()):
        raise DamagedError(path)
    try:
        found = load_torch(path, device=device)
    except ValueError as error:
        raise DamagedError(path, f"holds {error}") from error
    if not isinstance(found, dict):
        raise DamagedError(path, f"holds a {type(found).__name__}, which no checkpoint is")
    for entry, names in numbers.items():
        of_name = found.get(entry)
        if not isinstance(of_name, dict) or any(type(of_name.get(n)) is not int for n in names):
            raise DamagedError(
                path, f"lacks the {entry} of {', '.join(names)}, or is from an earlier version"
            )
    return found


def load_torch(source: Path | bytes, *, device: str | None = None) -> Any:
    """Load tensors and values of Python's basic types, with torch's loader of weights only.

    Args:
        source: The file, or its content.
        device: Device to load tensors to; ``None`` for the one on which they were saved.

    Raises:
        OSError: If the file is missing or cannot be opened.
        ValueError: If the file is damaged, refers to anything else, or its values would take much
            more memory than the file; the caller names the file.
    """
    with open_file(source) if isinstance(source, Path) else io.BytesIO(source) as file:
        try:
            size = file.seek(0, os.SEEK_END)
            _refuse_packed(file, size)
            file.seek(0)
            found = torch.load(file, weights_only=True, map_location=device)
            num_bytes, num_leaves = _size(found, {})
        except Exception as error:  # a damaged archive may raise anything
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise ValueError(f"no tensors that can be read ({reason})") from error
    if num_bytes > _EXPANSION * size + _SLACK or num_leaves > _MOST_LEAVES:
        raise ValueError(
            f"{num_leaves} values of {num_bytes} bytes, far more than the {size} of the file"
        )
    return found


def _refuse_packed(file: Any, size: int) -> None:
    """Refuse members that are compressed or overlap, and pickles that refer to other things."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        packed = [info for info in members if info.compress_type != zipfile.ZIP_STORED]
        if packed or sum(info.file_size for info in members) > size:
            raise ValueError("its members are larger than itself")
        pickles = [info for info in members if info.filename.endswith(".pkl")]
        if len(pickles) != 1:
            raise ValueError(f"it has {len(pickles)} pickles")
        for opcode, argument, _ in pickletools.genops(archive.read(pickles[0])):
            if opcode.name == "STACK_GLOBAL":
                raise ValueError("it refers to names that it computes")
            if opcode.name in ("GLOBAL", "INST") and not _is_known(str(argument)):
                raise ValueError(f"it refers to {argument}")


def _is_known(name: str) -> bool:
    module, _, kind = name.partition(" ")
    is_type = isinstance(getattr(torch, kind, None), torch.dtype) or kind.endswith("Storage")
    return name in _FUNCTIONS or (module == "torch" and is_type)


def _size(value: Any, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Bytes of all tensors, and the number of values; shared branches count at every use."""
    if isinstance(value, Tensor):
        strided = value.layout == torch.strided
        return (value.numel() * value.element_size() if strided else 0), 1
    if not isinstance(value, dict | list | tuple | set):
        return 0, 1
    if id(value) not in known:
        parts = value.values() if isinstance(value, dict) else value
        sizes = [_size(part, known) for part in parts]
        known[id(value)] = sum(b for b, _ in sizes), 1 + sum(n for _, n in sizes)
    return known[id(value)]
