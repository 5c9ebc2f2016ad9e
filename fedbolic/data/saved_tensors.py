"""Reader of tensors that ``torch.save`` wrote, alone or in PyG's ``Data``, which runs no code."""

import io
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override


def read_saved(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a saved ``Data`` or a saved dictionary.

    The pickle in the file may refer to tensors, PyG's ``Data`` and plain containers. Nothing that
    it refers to is imported or called; stand-ins of this module take its place.

    Args:
        path: File that ``torch.save(data, path)`` or ``torch.save(data.to_dict(), path)`` wrote.

    Raises:
        ValueError: If the file is damaged, holds anything else or refers to anything else.
    """
    try:
        with path.open("rb") as raw, zipfile.ZipFile(raw) as archive:
            found = _Reader(archive).load()
        named = found.named() if isinstance(found, _Record) else found
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(
            f"{path} holds no graph that can be read without running code "
            f"({type(error).__name__}: {error}): save its tensors, as "
            "torch.save(data.to_dict(), path) does for PyG's Data"
        ) from error
    if not isinstance(named, dict):
        raise ValueError(
            f"{path} holds a {type(named).__name__}, not one graph: save one with "
            "torch.save(dataset[0].to_dict(), path)"
        )
    return {str(name): value for name, value in named.items() if isinstance(value, Tensor)}


class _Record:
    """Stand-in for an object of PyG: its class is not imported, and its state is kept."""

    state: Mapping[str, Any] = MappingProxyType({})

    def __setstate__(self, state: dict) -> None:
        self.state = state

    def named(self) -> object:
        """Values of a ``Data`` by name; PyG 1 kept them without a store."""
        store = self.state.get("_store")
        return store.state.get("_mapping") if isinstance(store, _Record) else dict(self.state)


def _tensor(storage: Tensor, offset: int, size: tuple, stride: tuple, *_: object) -> Tensor:
    # refuses a view that leaves the storage
    return torch.as_strided(storage, size, stride, offset).clone()


def _mapping(*_: object) -> dict:
    return {}


_STORAGES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
_DATA = "torch_geometric.data.data"
_KNOWN: Mapping[tuple[str, str], Callable | torch.dtype] = MappingProxyType({
    **{("torch", name): dtype for name, dtype in _STORAGES.items()},
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("collections", "OrderedDict"): _mapping,
    (_DATA, "Data"): _Record,
    (_DATA, "DataEdgeAttr"): _Record,
    (_DATA, "DataTensorAttr"): _Record,
    ("torch_geometric.data.storage", "GlobalStorage"): _Record,
})  # fmt: skip
"""Stand-ins by module and name in a pickle."""


class _Reader(pickle.Unpickler):
    """Unpickler of an archive that resolves the names in ``_KNOWN`` only."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        (pickled,) = [name for name in archive.namelist() if name.endswith("/data.pkl")] or [""]
        if not pickled:
            raise pickle.UnpicklingError("torch.save did not write it")
        self._folder, self._archive = pickled.removesuffix("data.pkl"), archive
        self._storages: dict[str, Tensor] = {}
        order = f"{self._folder}byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise pickle.UnpicklingError("its numbers are not little-endian")
        super().__init__(io.BytesIO(archive.read(pickled)))

    @override
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it refers to {module_name}.{global_name}")
        return _KNOWN[module_name, global_name]

    @override
    def persistent_load(self, pid: Any, /) -> Tensor:
        _, dtype, key, _, count = pid
        if key not in self._storages:
            content = bytearray(self._archive.read(f"{self._folder}data/{key}"))
            if len(content) != count * dtype.itemsize:
                raise pickle.UnpicklingError(f"tensor {key} has {len(content)} bytes")
            self._storages[key] = (
                torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
            )
        return self._storages[key]
