"""CPU time and memory of running processes, from Linux's own books."""

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
MEBI = 1024.0
"""Kibibytes, in which the kernel counts, of a mebibyte."""


GONE = OSError
"""What reading about a process raises that has just ended, whichever way it is read."""


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for parent in found:  # which grows while it is read
        for file in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(GONE):
                found += map(int, file.read_text().split())
    return found


def cpu_seconds(pids: Iterable[int]) -> dict[int, float]:
    """CPU time by process, of those that have not ended.

    Children that have ended, and were waited for, count for the process that started them.
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
    """Memory that a process shares with no other and no file, now or at its peak."""
    now = _kibibytes(pid)
    return (now["VmHWM" if peak else "VmRSS"] - now["RssFile"] - now["RssShmem"]) / MEBI


def shared_mebibytes(pid: int) -> float:
    """Memory that a process has in common with others, files aside."""
    return _kibibytes(pid)["RssShmem"] / MEBI


def forget_peak() -> None:
    """Let the peak of this process begin at what it takes now."""
    Path("/proc/self/clear_refs").write_text("5")
