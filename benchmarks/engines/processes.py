"""CPU time and memory of running processes, from Linux's own accounts."""

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
MEBI = 1024.0
"""Kibibytes, the kernel's unit, in a mebibyte."""


GONE = OSError
"""Error of every way of reading about a process that has just ended."""


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for parent in found:  # grows while it is read
        for file in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(GONE):
                found += map(int, file.read_text().split())
    return found


def cpu_seconds(pids: Iterable[int]) -> dict[int, float]:
    """CPU time of the running processes among those given.

    Children that have ended and were waited for count for the process that started them.
    """
    found = {}
    for pid in pids:
        with contextlib.suppress(GONE):
            found[pid] = time.clock_gettime(~pid << 3 | 2) + _of_ended(pid)  # its clock, in ns
    return found


def _of_ended(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / TICKS


def _kibibytes(pid: int) -> dict[str, float]:
    rows = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {row[0][:-1]: float(row[1]) for row in rows if row[-1:] == ["kB"]}


def private_mebibytes(pid: int, *, peak: bool) -> float:
    """Memory that a process shares with no other process and no file, now or at its peak."""
    now = _kibibytes(pid)
    return (now["VmHWM" if peak else "VmRSS"] - now["RssFile"] - now["RssShmem"]) / MEBI


def shared_mebibytes(pid: int) -> float:
    """Memory that a process shares with others, files aside."""
    return _kibibytes(pid)["RssShmem"] / MEBI


def forget_peak() -> None:
    """Reset the peak of this process to its current memory."""
    Path("/proc/self/clear_refs").write_text("5")
