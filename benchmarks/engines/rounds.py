"""Time, memory and numerical difference of a round of each candidate.

The rounds of the candidates are interleaved within one run, so that ratios of two candidates hold
on a machine that is busy with something else.
"""

import contextlib
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.engines import plain_loop, processes
from benchmarks.engines.candidates import (
    ENGINES,
    PLAIN,
    RNG,
    Candidate,
    Peer,
    PlainLoop,
    Trained,
    method,
    seeds,
)
from benchmarks.engines.plain_loop import Workload
from benchmarks.script import alone
from benchmarks.timing import Clock
from fedbolic.core.types import Meta, Params
from fedbolic.federated import Batched

SMALL = Workload("small", 2, 4, 4, input_shape=(1, 28, 28), channels=(2,))
WARM_UP = 1


@dataclass(frozen=True)
class Cost:
    """Cost of one round, in seconds.

    Args:
        wall: Wall-clock time.
        cpu: CPU time of all processes together.
        critical: CPU time of the leading process plus that of the busiest other one: an upper bound
            on the round if every process had a core of its own.
    """

    wall: float
    cpu: float
    critical: float


def timed(candidate: Candidate, orders: list[int]) -> Cost:
    """Cost of one more round."""
    before = processes.cpu_seconds(candidate.processes())
    clock = Clock(time.perf_counter)
    candidate.round(orders)
    wall = clock.lap()
    after = processes.cpu_seconds(candidate.processes())
    leading, *others = (seconds - before.get(pid, 0.0) for pid, seconds in after.items())
    return Cost(wall, leading + sum(others), leading + max(others, default=0.0))


def difference(x: Params, y: Params) -> float:
    """The largest absolute difference of a coordinate."""
    return max(float((x[name] - y[name]).abs().max()) for name in x)


@dataclass(eq=False)
class Found:
    """Measurements of one workload, by candidate.

    Args:
        costs: Cost of every round after the first few.
        differences: Difference from the plain loop's parameters after every round, in float32.
        peaks: Peak memory in MiB.
        failed: Reason for the failure of a candidate without other measurements.
    """

    costs: dict[str, list[Cost]] = field(default_factory=dict)
    differences: dict[str, list[float]] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def speeds(self, name: str, other: str = PLAIN, *, kind: str = "cpu") -> list[float]:
        """Speed of one candidate over another, round by round."""
        pairs = zip(self.costs.get(other, []), self.costs.get(name, []), strict=False)
        return [getattr(theirs, kind) / getattr(mine, kind) for theirs, mine in pairs]

    def speed(self, name: str, other: str = PLAIN, *, kind: str = "cpu") -> float | None:
        """The median of :meth:`speeds`; ``None`` if one of the two did not run."""
        found = self.speeds(name, other, kind=kind)
        return statistics.median(found) if found else None


def first_values(work: Workload, dtype: torch.dtype) -> Params:
    """The global parameters before the first round, as the trainer initialises them."""
    meta = Meta(work.num_classes, work.input_shape, work.num_clients)
    parameters = method(work).init(meta, RNG.at("init"))["parameters"]
    return {name: value.to(dtype) for name, value in parameters.items()}


def measure(
    work: Workload, rounds: int, interpreters: Mapping[str, str], *, peaks: bool = True
) -> Found:
    """Measure all candidates with interleaved rounds, and each alone for its peak memory."""
    found, data = Found(), plain_loop.examples(work)
    values = first_values(work, torch.float32)
    candidates: dict[str, Candidate] = {PLAIN: PlainLoop(work, data, values)}
    with contextlib.ExitStack() as stack:
        for name, engine in ENGINES.items():
            candidates[name] = Trained(work, data, engine)
        for name, python in interpreters.items():
            candidates[name] = Peer(name, python, work, data, values)
        for candidate in candidates.values():
            stack.callback(candidate.close)
        for index in range(1, WARM_UP + rounds + 1):
            turn(candidates, seeds(work, index), found, counts=index > WARM_UP)
        for name in set(interpreters) & set(candidates):
            pids = candidates[name].processes()
            found.peaks[name] = sum(processes.private_mebibytes(p, peak=True) for p in pids)
    for name in (PLAIN, *ENGINES) if peaks else ():
        found.peaks[name] = ask_peak(name, work.name)
    return found


def turn(
    candidates: dict[str, Candidate], orders: list[int], found: Found, *, counts: bool
) -> None:
    """Run one round of every candidate; remove those that fail."""
    for name, candidate in list(candidates.items()):
        try:
            cost = timed(candidate, orders)
            gap = difference(candidates[PLAIN].values(), candidate.values())
        except RuntimeError as error:
            found.failed[name] = str(error)
            del candidates[name]
            continue
        found.differences.setdefault(name, []).append(gap)
        if counts:
            found.costs.setdefault(name, []).append(cost)


def peak(name: str, work: Workload, memory: float | None = None) -> float:
    """Peak memory of a round in MiB above imports and data; call it once per process.

    The imports of workers count, since they belong to the engine. A small round comes first, so
    that modules imported on first use do not count.
    """
    with contextlib.closing(_candidate(name, SMALL, plain_loop.examples(SMALL), memory)) as small:
        small.round(seeds(SMALL, 1))
    me, data = os.getpid(), plain_loop.examples(work)
    with contextlib.closing(_candidate(name, work, data, memory)) as candidate:
        before = processes.private_mebibytes(me, peak=False) + processes.shared_mebibytes(me)
        processes.forget_peak()
        candidate.round(seeds(work, 1))
        private = sum(processes.private_mebibytes(p, peak=True) for p in candidate.processes())
        return private + processes.shared_mebibytes(me) - before


def _candidate(
    name: str, work: Workload, data: Sequence[tuple[Tensor, Tensor]], memory: float | None
) -> Candidate:
    if name == PLAIN:
        return PlainLoop(work, data, first_values(work, torch.float32))
    return Trained(work, data, ENGINES[name] if memory is None else Batched(memory=memory))


def ask_peak(name: str, work_name: str, memory: float | None = None) -> float:
    """Result of :func:`peak` in a separate process."""
    budget = () if memory is None else ("--memory", memory)
    return float(alone("engines", "--peak", name, "--workloads", work_name, *budget))
