"""The one timer of the benchmarks: time, operators, bytes, memory, waits and kernels of a call."""

import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

Case = Callable[[], Any]

WARM_UPS = 3
"""Calls before a capture: libraries choose their algorithms and allocate their workspaces."""


class Clock:
    """Seconds between calls of :meth:`lap`: CPU time of this process unless told otherwise."""

    def __init__(self, read: Callable[[], float] = time.process_time) -> None:
        self.read, self.last = read, read()

    def lap(self) -> float:
        """Seconds since the last call, or since the clock was made."""
        before, self.last = self.last, self.read()
        return self.last - before


def seconds(case: Case, device: str) -> float:
    """Time of one call: CPU time, or wall-clock time on a GPU."""
    clock = Clock(time.perf_counter if device == "cuda" else time.process_time)
    case()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock.lap()


def interleaved(
    cases: Mapping[str, Case], device: str, *, rounds: int, least: float
) -> dict[str, list[float]]:
    """Seconds of one call of each case in every round, with all cases interleaved.

    Args:
        cases: Cases to time, already warmed up.
        device: ``cpu`` or ``cuda``.
        rounds: Number of rounds.
        least: Seconds for which a case runs in a round, if one call takes less.
    """
    repeats = {n: max(1, round(least / seconds(case, device))) for n, case in cases.items()}
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            total = sum(seconds(case, device) for _ in range(repeats[name]))
            taken[name].append(total / repeats[name])
    return taken


def ratio(above: list[float], below: list[float]) -> float:
    """Median over rounds of the ratio of two times in the same round."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


class Operators(TorchDispatchMode):
    """Counts operators that write, and the bytes that they write.

    Views write nothing and do not count; an in-place operator counts with the tensor it changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = self.bytes = 0

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        in_place = any(a.alias_info and a.alias_info.is_write for a in func._schema.returns)
        made = _tensors(out)
        if in_place or all(t.untyped_storage().data_ptr() not in given for t in made):
            self.count += 1
            self.bytes += sum(t.nbytes for t in made)
        return out


def _tensors(tree: Any) -> list[Tensor]:
    """All tensors that have a storage, which sparse ones lack."""
    leaves = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return [leaf for leaf in leaves if leaf.layout == torch.strided]


def peak_mebibytes(case: Case, device: str) -> float:
    """The most memory that one call has allocated at a time, its result included, in MiB."""
    case()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        case()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with torch.profiler.profile(profile_memory=True) as profile:
        case()
    profiler: Any = profile.profiler  # its stub lacks the attributes of memory events
    events = [e for e in profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    return max(itertools.accumulate(e.nbytes() for e in events)) / 2**20


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def wall_seconds(case: Case, device: torch.device) -> float:
    """Wall-clock time of one call, until the device has done the work."""
    synchronize(device)
    clock = Clock(time.perf_counter)
    case()
    synchronize(device)
    return clock.lap()


def median_seconds(case: Case, device: torch.device, repeats: int) -> float:
    """Median wall-clock time of a call after a warm-up."""
    case()
    return statistics.median(wall_seconds(case, device) for _ in range(repeats))


def captured(case: Case, device: torch.device) -> Case:
    """Replay of the captured call on a CUDA device; on a CPU the call itself.

    Args:
        case: Work on tensors that stay where they are, without waits.
        device: Device of these tensors.
    """
    if device.type != "cuda":
        return case
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            case()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case()
    return graph.replay


def waits(case: Case, device: torch.device) -> int:
    """Number of times that a call waits for a CUDA device, as torch reports it."""
    if device.type != "cuda":
        raise ValueError(f"only a CUDA device has waits, got {device}")
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            case()
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in caught)


def kernels(case: Case, device: torch.device) -> int:
    """Number of kernels that a call launches; on a CPU, of operators that write."""
    if device.type != "cuda":
        with Operators() as operators:
            case()
        return operators.count
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        case()
        synchronize(device)
    events = found.profiler.kineto_results.events()  # type: ignore[union-attr]  # it has run
    on_device = [event for event in events if event.device_type().name == "CUDA"]
    return sum(not event.name().startswith(("Memcpy", "Memset")) for event in on_device)


def held_mebibytes() -> float:
    """The most memory that this process has held so far, in MiB; Linux only."""
    # ru_maxrss would be that of the process that started this one
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**10
