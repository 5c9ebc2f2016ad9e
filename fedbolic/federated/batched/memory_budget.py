"""Limits on the memory of clients that are trained as one batch, and its calibration on a GPU."""

import contextlib
import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, MutableMapping, Sequence
from dataclasses import dataclass, replace

import torch
from typing_extensions import override

from fedbolic.federated.batched.client_task import ClientTask
from fedbolic.federated.batched.memory_estimate import LIBRARIES, MemoryEstimate
from fedbolic.federated.batched.replay import pooled_bytes

CPU_MEGABYTES = 512.0
"""Limit on a device whose free memory is not measured."""

FREE_SHARE = 0.8
"""Share of a GPU's free memory that stacked clients may take by default."""

FEWER_MEASURED, MORE_MEASURED = 2, 4
"""Numbers of clients in the two measured steps."""

Steps = Callable[[Sequence[ClientTask]], object]
"""Trains some clients as one batch."""


class MemoryMeter(ABC):
    """Memory of one device, in megabytes."""

    @abstractmethod
    def free(self) -> float:
        """Memory that tensors can still take."""

    @abstractmethod
    def peak(self, work: Callable[[], object]) -> float:
        """The most memory that a call takes at a time, in addition to what is allocated before."""


@dataclass(frozen=True)
class CudaMemory(MemoryMeter):
    """Memory of a CUDA device, by torch's caching allocator.

    Args:
        device: The device.
    """

    device: torch.device

    @override
    def free(self) -> float:
        free, _ = torch.cuda.mem_get_info(self.device)
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        # what graphs hold is cached, too, but serves nothing else
        return (free + max(0, cached - pooled_bytes(self.device))) / 2**20

    @override
    def peak(self, work: Callable[[], object]) -> float:
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        work()
        return (torch.cuda.max_memory_allocated(self.device) - before) / 2**20


def memory_meter(device: torch.device) -> MemoryMeter | None:
    """Meter of a device; ``None`` if its memory is not measured."""
    return CudaMemory(device) if device.type == "cuda" else None


def memory_limit(
    memory: float | None, meter: MemoryMeter | None, *, freeable: float = 0.0
) -> float:
    """Megabytes that stacked clients may take.

    Args:
        memory: Limit that the user set; ``None`` for the default.
        meter: Meter of the clients' device; ``None`` if its memory is not measured.
        freeable: Megabytes that the engine holds and can free.
    """
    if memory is not None:
        return memory
    return CPU_MEGABYTES if meter is None else FREE_SHARE * (meter.free() + freeable)


def is_out_of_memory(error: BaseException | None) -> bool:
    """True if a device had no memory left, also if that made a capture fail.

    Args:
        error: Any error, with those during whose handling it was raised.
    """
    if error is None or isinstance(error, torch.OutOfMemoryError):
        return error is not None
    return is_out_of_memory(error.__cause__ or error.__context__)


def return_freed() -> None:
    """Return freed memory to the system, where the C library can.

    The tensors of the next group would otherwise lie next to the gaps that those of the last left.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


@dataclass(frozen=True)
class MemoryLine:
    """Straight line from the sum of the clients' estimates to the memory that they take.

    Args:
        constant: Megabytes for any number of clients.
        slope: Megabytes for each estimated megabyte.
    """

    constant: float = LIBRARIES
    slope: float = 1.0

    @classmethod
    def through(cls, estimates: tuple[float, float], peaks: tuple[float, float]) -> "MemoryLine":
        """Line through two measurements; the estimate itself if they do not give a rising line.

        Args:
            estimates: Sums of the estimates of fewer and of more clients.
            peaks: Measured memory of both.

        Example:
            >>> MemoryLine.through((2.0, 4.0), (50.0, 80.0))
            MemoryLine(constant=20.0, slope=15.0)
        """
        (few, more), (low, high) = estimates, peaks
        if more <= few or high <= low:
            return cls()
        slope = (high - low) / (more - few)
        return cls(max(low - slope * few, 0.0), slope)


UNCORRECTED = MemoryLine()
"""The estimate as it is, and what libraries keep."""

Lines = MutableMapping[tuple[str, Hashable], MemoryLine]
"""Calibrated lines by method and form of the tasks."""


class MemoryBudget:
    """Memory of a growing group of clients, against a limit.

    On a device with a meter, the first few clients of a form take one step in groups of two sizes,
    whose results are discarded. A line through the two peaks corrects the estimate. Without a meter
    the estimate counts as it is.

    Args:
        method: Method that trains the clients.
        limit: Megabytes that a group may take.
        estimate: Estimates the memory of one client.
        meter: Meter of the device if the estimate is to be corrected, else ``None``.
        steps: Trains some clients as one batch.
        lines: Lines that are known already; receives new ones.
    """

    def __init__(
        self,
        method: object,
        limit: float,
        *,
        estimate: MemoryEstimate,
        meter: MemoryMeter | None,
        steps: Steps,
        lines: Lines,
    ) -> None:
        self.limit, self.estimate, self.meter, self.steps = limit, estimate, meter, steps
        self._method_name, self._lines = repr(method), lines
        self.clear()

    def clear(self) -> None:
        """Begin a new group."""
        self._sums: dict[Hashable, float] = {}
        self._first: dict[Hashable, list[ClientTask]] = {}
        self._constant = self._variable = 0.0

    def fits(self, task: ClientTask, estimated: float) -> bool:
        """True if the group with one more client stays within the limit, or is that client alone.

        Args:
            task: Task of the client.
            estimated: Estimated megabytes of the client.
        """
        line = self._line(task.form)
        taken = max(self._constant, line.constant) + self._variable + line.slope * estimated
        return not self._sums or taken <= self.limit

    def add(self, task: ClientTask, estimated: float) -> None:
        """Count one more client of the group.

        Args:
            task: Task of the client.
            estimated: Estimated megabytes of the client.
        """
        form = task.form
        self._sums[form] = self._sums.get(form, 0.0) + estimated
        if self.meter is not None and (self._method_name, form) not in self._lines:
            first = self._first.setdefault(form, [])
            first.append(task)
            if len(first) == MORE_MEASURED:
                self._lines[self._method_name, form] = self._measured(self.meter, first)
                self._recount()
                return
        line = self._line(form)
        self._constant = max(self._constant, line.constant)
        self._variable += line.slope * estimated

    def _line(self, form: Hashable) -> MemoryLine:
        return self._lines.get((self._method_name, form), UNCORRECTED)

    def _recount(self) -> None:
        lines = {form: self._line(form) for form in self._sums}
        self._constant = max(line.constant for line in lines.values())
        self._variable = sum(lines[form].slope * total for form, total in self._sums.items())

    def _measured(self, meter: MemoryMeter, tasks: Sequence[ClientTask]) -> MemoryLine:
        """Line through the peaks of one step; the estimate itself if a step raises an error."""
        tasks = [replace(task, plan=task.plan.cut(1)) for task in tasks]
        fewer = tasks[:FEWER_MEASURED]
        try:
            self.steps(fewer)  # libraries allocate their workspaces
            peaks = meter.peak(lambda: self.steps(fewer)), meter.peak(lambda: self.steps(tasks))
        except Exception:  # raised again in training, where clients are then run one by one
            return UNCORRECTED
        few, more = (sum(map(self.estimate.megabytes, some)) for some in (fewer, tasks))
        return MemoryLine.through((few, more), peaks)
