"""Published pickles of numbers, read without running their code."""

import io
import math
import pickle
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy import ndarray
from typing_extensions import override

from fedbolic.core.reading import refuse_larger

NUMBERS = {kind: np.dtype(f"<{kind}") for kind in ("u1", "i4", "i8", "f4", "f8")}
"""Number types in these files."""


def unpickle(data: bytes | bytearray, name: str) -> Any:
    """Read a pickle of arrays, sparse matrices (returned dense), dicts, lists and integers.

    Nothing that a pickle refers to is imported or called; stand-ins of this file take its place. An
    array is decoded at the top level, and as a value of a dict there.

    Args:
        data: Content of a pickle file, written by Python 2 or 3.
        name: Name of the file in errors.

    Raises:
        ValueError: If the pickle refers to anything else, asks for more memory than it fills, or is
            damaged.
    """
    try:
        _refuse_large_places(data)
        found = _Reader(io.BytesIO(data), encoding="latin1").load()
        if isinstance(found, _Array | _Rows):
            return found.dense()
        return {
            key: value.dense() if isinstance(value, _Array) else value
            for key, value in dict(found).items()
        }
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(
            f"{name} does not hold the published numbers ({error!r:.200}): download it again"
        ) from error


def _refuse_large_places(data: bytes | bytearray) -> None:
    """Refuse opcodes that take memory for more than the bytes that follow them.

    Python's unpickler takes room for all places of its memo up to the largest that is named, and
    for the length that a string declares. :mod:`pickletools` checks lengths itself.
    """
    for number, (opcode, argument, _) in enumerate(pickletools.genops(bytes(data))):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > number:
            raise pickle.UnpicklingError(f"it puts value {argument} before there are as many")


@dataclass(eq=False)
class _Type:
    """Stand-in for the dtype of a pickled array."""

    kind: str

    def __setstate__(self, state: tuple) -> None:
        if state[1] not in ("<", "|"):
            raise pickle.UnpicklingError(f"numbers have the byte order {state[1]!r:.20}")


@dataclass(eq=False)
class _Array:
    """Stand-in for a pickled array."""

    state: tuple = ()

    def __setstate__(self, state: tuple) -> None:
        self.state = state

    def dense(self) -> ndarray:
        """The array."""
        _, shape, kind, by_columns, content = self.state
        flat = np.frombuffer(
            content.encode("latin1") if isinstance(content, str) else content, NUMBERS[kind.kind]
        )
        return flat.reshape(shape, order="F" if by_columns else "C").copy()


@dataclass(eq=False)
class _Rows:
    """Stand-in for a pickled matrix in compressed sparse row format."""

    state: Mapping[str, Any] = field(default_factory=dict)

    def __setstate__(self, state: dict) -> None:
        self.state = state

    def dense(self) -> ndarray:
        """The matrix as a dense array."""
        data, columns, starts = (self.state[n].dense() for n in ("data", "indices", "indptr"))
        refuse_larger(math.prod(self.state["_shape"]) * data.itemsize, "a sparse matrix")
        whole = np.zeros(self.state["_shape"], data.dtype)
        np.add.at(whole, (np.repeat(np.arange(len(whole)), np.diff(starts)), columns), data)
        return whole


def _array(*_: object) -> _Array:
    return _Array()


def _type(kind: str, *_: object) -> _Type:
    return _Type(kind)


def _mapping(*_: object) -> dict:
    return {}


def _bytes(text: str, encoding: str) -> bytes:
    return text.encode("latin1") if encoding == "latin1" else b""


_MODULES = {
    "reconstruct": ("numpy.core.multiarray", "numpy._core.multiarray"),
    "rows": ("scipy.sparse.csr", "scipy.sparse._csr"),
}
_NAMES: Mapping[tuple[str, str], Callable] = MappingProxyType({
    **{(module, "_reconstruct"): _array for module in _MODULES["reconstruct"]},
    **{(module, "csr_matrix"): _Rows for module in _MODULES["rows"]},
    ("numpy", "ndarray"): _array,
    ("numpy", "dtype"): _type,
    ("collections", "defaultdict"): _mapping,
    ("__builtin__", "list"): _mapping,
    ("builtins", "list"): _mapping,
    ("_codecs", "encode"): _bytes,
})  # fmt: skip
"""Stand-ins by module and name in a pickle."""


class _Reader(pickle.Unpickler):
    """Unpickler that resolves the names in ``_NAMES`` only."""

    @override
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in _NAMES:
            raise pickle.UnpicklingError(f"it refers to {module_name}.{global_name}")
        return _NAMES[module_name, global_name]
