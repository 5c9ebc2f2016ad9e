"""Memory shared by processes; tensors written to it are copied, never pickled."""

import io
import mmap
import os
import pickle
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import reduction
from typing import Any, NamedTuple

import torch
from torch import Tensor

LINE = 64
"""Alignment of torch's storages, in bytes. Sums over data of another alignment may round
differently, so a copied tensor keeps the original's offset from such a boundary."""


class Extent(NamedTuple):
    """Position of a pickled value: its first byte, and the first byte after it."""

    start: int
    end: int


class Place(NamedTuple):
    """Position and layout of a tensor in shared memory."""

    start: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def span(self) -> int:
        """Elements from the tensor's first to its last, including gaps between them."""
        steps = sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True))
        return 0 if 0 in self.size else 1 + steps

    @property
    def end(self) -> int:
        """The first byte after the tensor."""
        return self.start + self.span * self.dtype.itemsize


class SharedMemory:
    """Memory that one process writes and others read; it grows as needed.

    The memory has no file name, so it is freed with the last process that holds it. It can be
    passed to a process that is being spawned.

    Example:
        >>> memory = SharedMemory()
        >>> (extent,), _ = memory.write([{"a": torch.ones(2), "b": "text"}])
        >>> memory.read(extent)[0]
        {'a': tensor([1., 1.]), 'b': 'text'}
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = _anonymous_file() if descriptor is None else descriptor
        self.pages, self.bytes = b"", torch.empty(0, dtype=torch.uint8)
        weakref.finalize(self, os.close, self.descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        return _inherited, (reduction.DupFd(self.descriptor),)

    def write(
        self, values: Sequence[object], given: Mapping[Place, Tensor] | None = None
    ) -> tuple[list[Extent], dict[Place, Tensor]]:
        """Replace the contents by ``values``; a tensor that occurs repeatedly is copied once.

        Args:
            values: Objects that can be pickled, with tensors anywhere in them.
            given: Tensors that the reader already has, by place; only their places are written.

        Returns:
            The extent of each value, for :meth:`read`, and the copied tensors by place.
        """
        known = {id(t): _Known(t, False, place) for place, t in (given or {}).items()}
        texts = []
        for value in values:
            file = io.BytesIO()
            _Writer(file, known).dump(value)
            texts.append(file.getvalue())
        copied = {place: tensor for tensor, new, place in known.values() if new}
        end = max((place.end for place in copied), default=0)
        self._map(end + sum(map(len, texts)), grow=True)
        for place, tensor in copied.items():
            self._stretch(place).copy_(_flat(tensor))
        extents = []
        for text in texts:
            extents.append(Extent(end, end + len(text)))
            end += len(text)
            self.pages[slice(*extents[-1])] = text  # type: ignore[index]  # an mmap after _map
        return extents, copied

    def read(
        self, extent: Extent, given: Mapping[Place, Tensor] | None = None, *, copy: bool = False
    ) -> tuple[Any, dict[Place, Tensor]]:
        """A value that was written, and its tensors by place.

        Args:
            extent: Extent of the value, as :meth:`write` returned it.
            given: The tensors that were passed to :meth:`write` as ``given``, by place.
            copy: True to copy the tensors, so that they outlive the next write.
        """
        self._map(extent.end)
        loaded: dict[Place, Tensor] = {}

        def tensor(new: bool, place: Place) -> Tensor:
            if not new:
                return (given or {})[place]
            if place not in loaded:
                stretch = self._stretch(place)
                stretch = stretch.clone() if copy else stretch
                loaded[place] = stretch.as_strided(place.size, place.stride)
            return loaded[place]

        return _Reader(io.BytesIO(self.pages[slice(*extent)]), tensor).load(), loaded

    def _map(self, size: int, *, grow: bool = False) -> None:
        """Map at least ``size`` bytes of the memory into this process."""
        if size > len(self.pages):
            if grow:
                os.ftruncate(self.descriptor, size)
            self.pages = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
            self.bytes = torch.frombuffer(self.pages, dtype=torch.uint8)

    def _stretch(self, place: Place) -> Tensor:
        """All elements from the first to the last of a tensor, as a vector."""
        return self.bytes[place.start : place.end].view(place.dtype)


class _Known(NamedTuple):
    """A tensor (held, so that its id stays unique), a flag if it is copied here, and its place."""

    tensor: Tensor
    new: bool
    place: Place


class _Writer(pickle.Pickler):
    """Pickler that collects ordinary CPU tensors and writes their places instead of their data."""

    def __init__(self, file: io.BytesIO, known: dict[int, _Known]) -> None:
        super().__init__(file, protocol=5)
        self.known = known
        self.end = max((place.end for _, new, place in known.values() if new), default=0)

    def persistent_id(self, obj: Any) -> tuple[bool, Place] | None:
        plain = type(obj) is Tensor and obj.layout is torch.strided and not obj.is_quantized
        if not plain or obj.device.type != "cpu":
            return None  # pickled by its own rules, which pass any ordinary tensor inside it here
        if id(obj) not in self.known:
            shift = obj.data_ptr() % LINE
            start = -(-self.end // LINE) * LINE + shift - shift % obj.element_size()
            place = Place(start, obj.dtype, tuple(obj.shape), obj.stride())
            self.known[id(obj)] = _Known(obj, True, place)
            self.end = place.end
        return self.known[id(obj)][1:]


class _Reader(pickle.Unpickler):
    """Unpickler that looks up every tensor by its place."""

    def __init__(self, file: io.BytesIO, tensor: Callable[[bool, Place], Tensor]) -> None:
        super().__init__(file)
        self.tensor = tensor

    def persistent_load(self, pid: tuple[bool, Place]) -> Tensor:
        return self.tensor(*pid)


def _flat(tensor: Tensor) -> Tensor:
    """The storage under a tensor, gaps included: another layout may round differently."""
    place = Place(0, tensor.dtype, tuple(tensor.shape), tensor.stride())
    return tensor.detach().as_strided((place.span,), (1,))


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):  # /dev/shm is small in many containers
        return os.memfd_create("fedbolic")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _inherited(descriptor: Any) -> SharedMemory:
    return SharedMemory(descriptor.detach())
