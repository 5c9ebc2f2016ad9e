"""A rehearsal of CUDA on the shadow device: every branch for CUDA is taken, and captures are kept.

Tensors report ``cuda:0``, kernels run as their formulas, each as one launch, and ``torch.cuda`` is
simulated as far as the project uses it. A capture keeps the rules of CUDA: no wait, no upload, no
number that only the device knows, on one stream of the tensors' device, one at a time. It records
the operations on values where they lie, runs none of them in effect, and a replay runs these alone.
"""

import contextlib
import functools
import threading
import warnings

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from fedbolic.federated.engines import devices as devices_
from fedbolic.federated.processes.device_thread import for_device_thread
from tests import rehearsed_kernels, shadow
from tests.shadow import _ACTIVE, FREE, Dispatch, Shadow, _is_view, leaves, mapped

CUDA = torch.device("cuda", 0)

CAPTURES: "list[Capture]" = []
"""Captures under way in the process; torch allows one."""

MEBIBYTE = 2**20
UNMARKED = {"native_batch_norm"}
"""Operations that write to an argument without a mark in their schema."""


class Rehearsal(Dispatch):
    """The shadow devices ``cuda:0`` and so on, with streams and captures.

    Args:
        devices: Number of devices.
    """

    def __init__(self, devices=1):
        super().__init__()
        self.label, self.num_devices, self.thread = "meta:0", devices, threading.local()
        self.threads = {*threading.enumerate()}  # those of earlier tests use no device any more
        self.graphs, self.replayed, self.kernels, self.sync_debug_mode = [], 0, 0, 0
        self.free, self.used, self.cached, self.of_capture = 1000 * MEBIBYTE, 0, 0, 0

    def capture(self, label):
        """The capture of this thread that takes operations on a device, or ``None``."""
        stream = self.streams.get(label)
        return next((c for c in CAPTURES if c.stream is stream), None)

    @property
    def streams(self):
        """Current stream of each device in this thread."""
        return vars(self.thread).setdefault("streams", {})

    def wait(self, name, label="meta:0"):
        super().wait(name)
        self._refuse_waits(name, label)

    def _refuse_waits(self, name, label):
        """Raise or warn as CUDA does where the host waits, or copies from its memory."""
        if self.capture(label):
            raise RuntimeError(f"operation not permitted when stream is capturing: {name} waits")
        if self.sync_debug_mode == 2:
            raise RuntimeError(f"called a synchronizing CUDA operation: {name}")
        if self.sync_debug_mode == 1:
            warnings.warn(f"called a synchronizing CUDA operation: {name}", stacklevel=2)

    def set_sync_debug_mode(self, mode):
        """Set whether waits warn or raise, as ``torch.cuda`` does."""
        self.sync_debug_mode = {"default": 0, "warn": 1, "error": 2}.get(mode, mode)

    def _count(self, function, name, args, there, options, *, down):
        blocking = super()._count(function, name, args, there, options, down=down)
        if blocking:
            self._refuse_waits(str(function), there[0].device_label if there else self.label)
        return blocking

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if kwargs and "device" in kwargs:
            kwargs = {**kwargs, "device": _shadow_of(kwargs["device"])}
        return self.handled(function, args, kwargs or {})

    def executed(self, function, inner, options, label):
        capture = self.capture(label)
        if capture is None:
            return function(*inner, **options)
        return capture.recorded(function, inner, options)

    def launch(self, name, kernel, tensors, options):
        """Run a kernel as one launch; ``kernel`` computes with tensors of the CPU."""
        labels = {getattr(x, "device_label", None) for x in tensors if isinstance(x, Tensor)}
        if len(labels) != 1 or None in labels:
            raise ValueError(f"{name}: pointer argument cannot be accessed from Triton: {labels}")
        (label,) = labels
        self.work.launches[name] += 1
        if self.work.log is not None:
            self.work.log.append((name, shadow._described(tensors), repr(options)))
        inner = [getattr(x, "held", x) for x in tensors]
        with _disable_current_modes(), torch.no_grad():
            capture = self.capture(label)
            run = capture.recorded if capture else lambda f, given, _: f(*given, **options)
            made = run(kernel, inner, options)
        known = {id(x.held): x for x in tensors if isinstance(x, Tensor)}
        return mapped(
            lambda x: known.get(id(x), Shadow(x, label)) if isinstance(x, Tensor) else x, made
        )


class Graph:
    """``torch.cuda.CUDAGraph``: operations with their arguments and the tensors of the results."""

    def __init__(self):
        self.operations = []

    def replay(self):
        dispatch = _ACTIVE[-1]
        dispatch.replayed += 1
        dispatch.kernels += len(self.operations)
        with _disable_current_modes(), torch.no_grad():
            for function, inner, options, made in self.operations:
                again = leaves(function(*inner, **options))
                for old, new in zip(made, again, strict=True):
                    if isinstance(old, Tensor) and old is not new:
                        old.copy_(new)


class Capture:
    """``torch.cuda.graph``: operations on the capturing stream are recorded instead of run.

    They are run in order to have results of the right form. Memory from before the capture is
    restored at its end, and other memory is filled with values that no one can mean to use.
    """

    def __init__(self, graph, pool=None, stream=None, capture_error_mode="global"):
        dispatch = _ACTIVE[-1]
        if stream is None:  # torch keeps one stream, of the device that was current at first use
            stream = vars(dispatch).setdefault("default_capture_stream", Stream())
        self.graph, self.stream, self.mode, self.pool = graph, stream, capture_error_mode, pool

    def __enter__(self):
        if CAPTURES:
            raise RuntimeError("another capture is under way in this process")
        dispatch = _ACTIVE[-1]
        if self.mode == "global" and {*threading.enumerate()} - dispatch.threads:
            raise RuntimeError("other threads make a global capture fail")
        self.before = dispatch.streams.get(self.stream.label)
        dispatch.streams[self.stream.label] = self.stream
        self.saved, self.fresh = {}, {}
        CAPTURES.append(self)

    def __exit__(self, kind, error, trace):
        CAPTURES.remove(self)
        with _disable_current_modes(), torch.no_grad():
            for held, copy in self.saved.values():
                held.copy_(copy)
            for held in self.fresh.values():
                held.fill_(_poison(held.dtype))
        dispatch = _ACTIVE[-1]
        if kind is not None:  # as torch 2.11 ends: its stream stays the current one
            return
        if not self.graph.operations:
            raise UserWarning("The CUDA Graph is empty")
        self.graph.label = self.stream.label
        dispatch.graphs.append(self.graph)
        dispatch.cached += dispatch.of_capture
        dispatch.free -= dispatch.of_capture
        dispatch.streams[self.stream.label] = self.before

    def recorded(self, function, inner, options):
        """Run an operation, and note what a replay needs."""
        writes = _written(function, inner, options)
        for x in writes:
            storage = x.untyped_storage()
            if storage.data_ptr() not in self.saved and storage.data_ptr() not in self.fresh:
                whole = torch.empty(0, dtype=x.dtype).set_(storage)
                self.saved[storage.data_ptr()] = whole, whole.clone()
        made = function(*inner, **options)
        name = ""
        if isinstance(function, torch._ops.OpOverload):
            name = function._schema.name.split("::")[1]
            if _is_view(function):
                return made
        owned = [x.untyped_storage().data_ptr() for x in leaves(inner) if _is_tensor(x)]
        results = leaves(made)
        for x in results:
            if _is_tensor(x) and x.numel() and x.untyped_storage().data_ptr() not in owned:
                whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
                self.fresh[x.untyped_storage().data_ptr()] = whole
        if name not in FREE:
            in_place = writes and name not in UNMARKED
            self.graph.operations.append(
                (function, inner, options, [None] * len(results) if in_place else results)
            )
        return made


class Stream:
    """``torch.cuda.Stream`` of one device."""

    def __init__(self, device=None):
        index = None if device is None else torch.device(device).index
        self.label = f"meta:{_current() if index is None else index}"

    def wait_stream(self, other):
        pass

    def synchronize(self):
        _ACTIVE[-1].wait("synchronize", self.label)


class Names(TorchFunctionMode):
    """Turns the devices ``cuda`` that the project names into shadow devices.

    Not in backward functions, where :class:`Rehearsal` does it.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        options = kwargs or {}
        if function is torch.device:
            return function(*args, **options)
        if "device" in options:
            options = {**options, "device": _shadow_of(options["device"])}
        if any(isinstance(x, torch.device | str) for x in args):
            args = tuple(_shadow_of(x) if isinstance(x, torch.device | str) else x for x in args)
        return function(*args, **options)


def _shadow_of(device):
    if isinstance(device, str) and not device.startswith("cuda"):
        return device
    if device is None or (found := torch.device(device)).type != "cuda":
        return device
    return torch.device("meta", _current() if found.index is None else found.index)


def _current():
    return getattr(_ACTIVE[-1].thread, "current", 0)


def _is_tensor(x):
    return isinstance(x, Tensor)


def _poison(dtype):
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return 1 if dtype == torch.bool else torch.iinfo(dtype).max


def _written(function, inner, options):
    """Tensors to which an operation writes."""
    if not isinstance(function, torch._ops.OpOverload):
        return [x for x in inner if _is_tensor(x)] if options.get("donate") else []
    if function._schema.name.split("::")[1] in UNMARKED:
        return [x for x in inner if _is_tensor(x)]
    marked = [
        inner[i] if i < len(inner) else options.get(argument.name)
        for i, argument in enumerate(function._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return [x for x in leaves(marked) if _is_tensor(x)]


@contextlib.contextmanager
def _entered(device):
    thread = _ACTIVE[-1].thread
    before, index = _current(), torch.device(device).index
    thread.current = before if index is None else index
    try:
        yield
    finally:
        thread.current = before


@contextlib.contextmanager
def _stream(stream):
    streams = _ACTIVE[-1].streams
    before = streams.get(stream.label)
    streams[stream.label] = stream
    try:
        yield
    finally:
        streams[stream.label] = before


def _current_stream(device=None):
    """The current stream of a device; its first one is made when it is asked for."""
    made = Stream(device)
    streams = _ACTIVE[-1].streams
    if streams.get(made.label) is None:
        streams[made.label] = made
    return streams[made.label]


def _set_stream(stream):
    _ACTIVE[-1].streams[stream.label] = stream


class Generator:
    """A generator of a device, from which nothing draws."""

    def get_state(self):
        return torch.zeros(16, dtype=torch.uint8, device="cpu")

    def set_state(self, state):
        del state

    def manual_seed(self, seed):
        del seed
        return self

    def clone_state(self):
        return self


def _driver(dispatch):
    """Functions and classes in place of those of ``torch.cuda``."""
    return {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: dispatch.num_devices,
        "current_device": _current,
        "device": _entered,
        "device_of": lambda x: _entered(x.device),
        "synchronize": lambda device=None: dispatch.wait("synchronize"),
        "mem_get_info": lambda device=None: (dispatch.free, 2 * dispatch.free),
        "memory_reserved": lambda device=None: dispatch.used + dispatch.cached,
        "memory_allocated": lambda device=None: dispatch.used,
        "max_memory_allocated": lambda device=None: dispatch.used,
        "reset_peak_memory_stats": lambda device=None: None,
        "empty_cache": lambda: None,
        "get_sync_debug_mode": lambda: dispatch.sync_debug_mode,
        "set_sync_debug_mode": dispatch.set_sync_debug_mode,
        "default_generators": [Generator()] * dispatch.num_devices,
        "CUDAGraph": Graph,
        "graph": Capture,
        "graph_pool_handle": lambda: object(),
        "Stream": Stream,
        "stream": _stream,
        "current_stream": _current_stream,
        "set_stream": _set_stream,
        "is_current_stream_capturing": lambda: bool(CAPTURES),
    }


def _properties(patch):
    """Let shadow tensors say that they are on a CUDA device."""
    base, named = torch._C.TensorBase, {i: torch.device("cuda", i) for i in range(8)}

    def device(x):
        found = base.device.__get__(x)
        return named[found.index or 0] if found.type == "meta" else found

    def is_cuda(x):
        return base.device.__get__(x).type != "cpu"

    patch.setattr(torch.Tensor, "device", property(device), raising=False)
    patch.setattr(torch.Tensor, "is_cuda", property(is_cuda), raising=False)


@contextlib.contextmanager
def rehearsal(*, devices=1, kernels=True):
    """Context manager with CUDA devices, in which tensors and engines behave as on these.

    Args:
        devices: Number of devices.
        kernels: Whether kernels run; else torch's operators.

    Yields:
        The :class:`Rehearsal`, which counts work, graphs and replays.
    """
    with pytest.MonkeyPatch.context() as patch, shadow.device(patch, Rehearsal(devices)) as made:
        for name, value in _driver(made).items():
            patch.setattr(torch.cuda, name, value, raising=False)
        _properties(patch)
        rehearsed_kernels.install(patch, on=kernels)
        patch.setattr(devices_, "for_device_thread", functools.partial(_in_thread_of, made))
        with Names():
            yield made


def _in_thread_of(made, device, work):
    """``for_device_thread`` in a rehearsal."""

    def rehearsed(*given):
        with in_thread(made):
            return work(*given)

    return for_device_thread(device, rehearsed)


@contextlib.contextmanager
def in_thread(made):
    """Context manager for another thread of a rehearsal."""
    with made, Names():
        yield
