"""Time, waits and kernels of work on a device."""

import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.measure import Case, Operators

WARM_UPS = 3
"""Calls before a capture: libraries choose their algorithms and allocate their workspaces."""


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def wall_seconds(case: Case, device: torch.device) -> float:
    """Wall-clock time of one call, until the device has done the work."""
    synchronize(device)
    began = time.perf_counter()
    case()
    synchronize(device)
    return time.perf_counter() - began


def median_seconds(case: Case, device: torch.device, repeats: int) -> float:
    """Median wall-clock time of a call after a warm-up."""
    case()
    return statistics.median(wall_seconds(case, device) for _ in range(repeats))


def captured(case: Callable[[], object], device: torch.device) -> Callable[[], object]:
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
