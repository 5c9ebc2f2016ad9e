"""Trees that ``torch.save`` wrote, loaded after their types and sizes are checked."""

import io
import os
import pickletools
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedbolic.core.reading import open_file

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
