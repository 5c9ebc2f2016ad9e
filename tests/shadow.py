"""A shadow device: a simulated accelerator whose tensors hold real values on the CPU.

Its tensors report the device ``meta``, the only one besides the CPU for which every build of torch
has autograd guards. What CUDA refuses is refused here: ``numpy()``, and operations that mix tensors
of several devices. The work is counted as CUDA would do it: a launch for every operation that is no
view, a wait for every operation whose result the host needs, and an upload for every copy from the
memory of the CPU.
"""

import contextlib
import functools
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from fedbolic.core import tree

DEVICE = torch.device("meta")

INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
"""Operations that accept CPU indices for a tensor on the device."""

ANSWERS = {"equal", "is_nonzero", "_local_scalar_dense"}
"""Operations that return a Python number."""

SIZED = {"nonzero", "_unique2", "unique_dim", "unique_consecutive", "masked_select", "bincount"}
"""Operations whose result has a size that only the device knows."""

FREE = {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
"""Operations without a kernel, besides views."""


@dataclass
class Work:
    """Counts of operations by name, as CUDA would execute them."""

    launches: Counter = field(default_factory=Counter)
    views: Counter = field(default_factory=Counter)
    waits: Counter = field(default_factory=Counter)
    uploads: Counter = field(default_factory=Counter)
    log: list | None = None
    """Every operation with its arguments, in order; ``None`` if they are not recorded."""

    def total(self):
        """The sums over all names."""
        kinds = ("launches", "views", "waits", "uploads")
        return {kind: sum(getattr(self, kind).values()) for kind in kinds}

    def clear(self):
        for counts in (self.launches, self.views, self.waits, self.uploads):
            counts.clear()


class Shadow(Tensor):
    """A tensor on a shadow device that wraps a CPU tensor.

    Args:
        held: The values.
        device_label: Name of the device, which tells two shadow devices apart; ``meta:1`` is also
            the device that the tensor reports.
    """

    @staticmethod
    def __new__(cls, held, device_label):
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        device = torch.device(device_label) if device_label.startswith("meta:") else DEVICE
        options = {"dtype": held.dtype, "device": device, "layout": held.layout}
        return Tensor._make_wrapper_subclass(cls, held.size(), **options, **layout)

    def __init__(self, held, device_label):
        self.held, self.device_label = held, device_label

    def numpy(self, *, force=False):
        raise TypeError("can't convert meta device type tensor to numpy")

    def tolist(self):
        _ACTIVE[-1].wait("tolist")
        return self.held.tolist()

    def untyped_storage(self):
        return self.held.untyped_storage()

    def data_ptr(self):
        return self.held.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _ACTIVE[-1].handled(function, args, kwargs or {})


_ACTIVE: list["Dispatch"] = []


class Dispatch(TorchDispatchMode):
    """Creates tensors on the shadow device, and handles and counts the operations on them."""

    def __init__(self):
        super().__init__()
        self.work, self.label = Work(), "first"

    def __enter__(self):
        _ACTIVE.append(self)
        return super().__enter__()

    def __exit__(self, *error):
        _ACTIVE.pop()
        return super().__exit__(*error)

    @contextlib.contextmanager
    def current(self, label):
        """Context manager in which new tensors belong to the device named ``label``."""
        before, self.label = self.label, label
        try:
            yield
        finally:
            self.label = before

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return self.handled(function, args, kwargs or {})

    def handled(self, function, args, kwargs):
        """Run an operation if CUDA accepts tensors on these devices, else raise an error."""
        name = function._schema.name.split("::")[1]
        tensors = [x for x in leaves((args, kwargs)) if isinstance(x, Tensor)]
        there = [x for x in tensors if isinstance(x, Shadow)]
        asked = kwargs.get("device")
        here = asked is not None and torch.device(asked).type != DEVICE.type
        if not there and (asked is None or here):
            return function(*args, **kwargs)
        if torch.Tag.inplace_view in function.tags:  # another view takes the place of the first
            self.work.views[name] += 1
            args[0].held = getattr(torch.ops.aten, name[:-1])(args[0].held, *args[1:], **kwargs)
            with no_dispatch():
                return function(*args, **kwargs)
        _refuse_mixture(name, args, tensors, there)
        self._count(function, name, args, there, kwargs, down=name == "_to_copy" and here)
        inner, options = mapped(lambda x: getattr(x, "held", x), (args, kwargs))
        if asked is not None:
            options["device"] = "cpu"
        label = there[0].device_label if there else self.label
        if asked is not None and torch.device(asked).index is not None:
            label = str(asked)
        result = self.executed(function, inner, options, label)
        if name in ANSWERS or (name == "_to_copy" and here):
            return result
        if name.endswith("_") and not name.endswith("__"):
            return args[0] if isinstance(args[0], Tensor) else None
        known = {id(x.held): x for x in there}

        def placed(x):
            if not isinstance(x, Tensor):
                return x
            return known[id(x)] if id(x) in known else Shadow(x, label)

        return mapped(placed, result)

    def wait(self, name):
        """Count a wait for the device."""
        self.work.waits[name] += 1

    def executed(self, function, inner, options, label):
        """The result of an operation on values of the device named ``label``."""
        return function(*inner, **options)

    def _count(self, function, name, args, there, options, *, down):
        """Count an operation; true if the host waits, or copies from its memory."""
        work, waits, uploads = self.work, Counter(), Counter()
        if work.log is not None:
            work.log.append((str(function), _described(args), _described(options)))
        if name in FREE or _is_view(function):
            work.views[name] += 1
            return False
        work.launches[name] += 1
        if name in INDEXED:
            indices = [x for x in args[1] if x is not None]
            waits["mask"] += sum(x.dtype in (torch.bool, torch.uint8) for x in indices)
            uploads["index"] += sum(not isinstance(x, Shadow) for x in indices)
        sized = name == "repeat_interleave" and options.get("output_size") is None
        waits[name] += name in ANSWERS or name in SIZED or sized
        copied = args[1] if name == "copy_" else args[0] if name == "_to_copy" else None
        if copied is not None:
            down = down or (name == "copy_" and not isinstance(args[0], Shadow))
            waits["copy"] += down
            uploads["copy"] += not isinstance(copied, Shadow)
        work.waits.update(waits)
        work.uploads.update(uploads)
        return bool(waits.total() or uploads.total())


def _refuse_mixture(name, args, tensors, there):
    """Raise the error of CUDA if an operation mixes tensors of several devices."""
    if any(x.is_meta and not isinstance(x, Shadow) for x in tensors):
        raise RuntimeError(f"{name}: got a tensor without values, such as torch makes of a list")
    labels = {x.device_label for x in there}
    copies = name in ("_to_copy", "copy_")
    if len(labels) > 1 and not copies:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, got {labels}")
    if not there or copies or (name in INDEXED and isinstance(args[0], Shadow)):
        return
    here = [tuple(x.shape) for x in tensors if not isinstance(x, Shadow) and x.ndim]
    if here or name in INDEXED:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, got {here}")


def leaves(x):
    """Values in lists, tuples and dicts, in order; torch's own function takes ten times as long."""
    if isinstance(x, list | tuple):
        return [leaf for part in x for leaf in leaves(part)]
    return [leaf for part in x.values() for leaf in leaves(part)] if isinstance(x, dict) else [x]


def mapped(function, x):
    """The same lists, tuples and dicts with a function of each value."""
    if isinstance(x, list | tuple):
        parts = [mapped(function, part) for part in x]
        return parts if isinstance(x, list) else tuple(parts)
    if isinstance(x, dict):
        return {name: mapped(function, part) for name, part in x.items()}
    return function(x)


@functools.cache
def _is_view(function):
    """True for operations that share the storage of an argument and do not write to it."""
    returns = [x.alias_info for x in function._schema.returns]
    return bool(returns) and all(alias is not None and not alias.is_write for alias in returns)


def _described(arguments):
    """Arguments as text, with a tensor as its dtype and shape."""

    def described(x):
        return (str(x.dtype), tuple(x.shape)) if isinstance(x, Tensor) else x

    return repr(mapped(described, arguments))


def _copy_numbers(monkeypatch):
    """Copy Python's numbers to the device by way of the CPU: on ``meta``, torch drops them."""
    made, as_tensor, base = torch.tensor, torch.as_tensor, torch._C.TensorBase

    def tensor(data, *args, device=None, **options):
        x = made(data, *args, **options)
        return x if device is None else x.to(device)

    def placed(data, dtype=None, device=None):
        x = as_tensor(data, dtype=dtype)
        return x if device is None else x.to(device)

    def new_tensor(x, data, *, dtype=None, device=None):
        return tensor(data, dtype=dtype or x.dtype, device=device or x.device)

    def with_tensors(x, index):
        if x.device.type == "cpu":
            return index
        parts = index if isinstance(index, tuple) else (index,)
        return tuple(
            made(part, dtype=None if part else torch.int64) if isinstance(part, list) else part
            for part in parts
        )

    def get(x, index):
        return base.__getitem__(x, with_tensors(x, index))

    def put(x, index, value):
        base.__setitem__(x, with_tensors(x, index), value)

    monkeypatch.setattr(torch, "tensor", tensor)
    monkeypatch.setattr(torch, "as_tensor", placed)
    methods = {"new_tensor": new_tensor, "__getitem__": get, "__setitem__": put}
    for name, method in methods.items():
        monkeypatch.setattr(Tensor, name, method)


@contextlib.contextmanager
def device(monkeypatch, dispatch=None):
    """The shadow device, active within the block; yields the mode that counts its work."""
    _copy_numbers(monkeypatch)
    monkeypatch.setattr(tree, "TENSORS", (*tree.TENSORS, Shadow))  # as a GPU's tensors would be
    with dispatch or Dispatch() as active:
        yield active
