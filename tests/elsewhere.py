"""A simulated accelerator: tensors that report a device of their own and hold CPU values.

They report the device ``meta``, the only one besides the CPU for which every build of torch has
autograd guards. Operations that CUDA refuses are refused here: ``numpy()``, and operations that mix
tensors of both devices.
"""

import contextlib

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fedbolic import tree

DEVICE = torch.device("meta")

INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
"""Operations that accept CPU indices for a tensor on the device."""

ANSWERS = {"equal", "is_nonzero", "_local_scalar_dense"}
"""Operations that return a Python number."""


class Elsewhere(Tensor):
    """A tensor on the simulated device that wraps a CPU tensor."""

    @staticmethod
    def __new__(cls, inner):
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        options = {"dtype": inner.dtype, "device": DEVICE, "layout": inner.layout}
        return Tensor._make_wrapper_subclass(cls, inner.size(), **options, **layout)

    def __init__(self, inner):
        self.held = inner

    def numpy(self, *, force=False):
        raise TypeError("can't convert meta device type tensor to numpy")

    def tolist(self):
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return handled(function, args, kwargs or {})


class Dispatch(TorchDispatchMode):
    """Creates tensors on the device; operations on those tensors dispatch themselves."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return handled(function, args, kwargs or {})


def handled(function, args, kwargs):
    """Run an operation if CUDA accepts tensors on these devices, else raise ``RuntimeError``."""
    name = function._schema.name.split("::")[1]
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    there = [x for x in tensors if isinstance(x, Elsewhere)]
    asked = kwargs.get("device")
    if not there and (asked is None or torch.device(asked) != DEVICE):
        return function(*args, **kwargs)
    copies = name in ("_to_copy", "copy_")
    indexes = name in INDEXED and isinstance(args[0], Elsewhere)
    if there and not copies and not indexes:
        here = [tuple(x.shape) for x in tensors if not isinstance(x, Elsewhere) and x.ndim]
        if here or name in INDEXED:
            raise RuntimeError(f"{name}: expected all tensors to be on the same device, got {here}")
    inner, options = tree_map(lambda x: getattr(x, "held", x), (args, kwargs))
    if asked is not None:
        options["device"] = "cpu"
    result = function(*inner, **options)
    if name in ANSWERS:
        return result
    if name.endswith("_") and not name.endswith("__"):
        return args[0] if isinstance(args[0], Tensor) else None
    if name == "_to_copy" and asked is not None and torch.device(asked) != DEVICE:
        return result
    known = {id(x.held): x for x in there}

    def placed(x):
        if not isinstance(x, Tensor):
            return x
        return known[id(x)] if id(x) in known else Elsewhere(x)

    return tree_map(placed, result)


@contextlib.contextmanager
def device(monkeypatch):
    """The simulated device, active within the block."""
    made = torch.tensor

    def tensor(data, *args, device=None, **options):
        x = made(data, *args, **options)
        return x if device is None else x.to(device)

    monkeypatch.setattr(torch, "tensor", tensor)
    monkeypatch.setattr(tree, "TENSORS", (*tree.TENSORS, Elsewhere))  # as a GPU's tensors would be
    with Dispatch():
        yield DEVICE
