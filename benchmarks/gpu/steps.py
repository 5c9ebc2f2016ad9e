"""Milliseconds of a step of all clients: the engines, the plain loop, and the compiled plain loop.

A step's time is the slope of an exchange's time in the number of steps on each batch, so that what
an exchange costs once does not count here; ``benchmarks.gpu.rounds`` measures that.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.gpu.report import Report, Row
from benchmarks.gpu.rivals import Loop, rivals
from benchmarks.gpu.workloads import RNG, GpuPlainLoop, GpuWorkload, Size, engines, tasks, workloads
from benchmarks.timing import kernels, peak_mebibytes, waits, wall_seconds
from fedbolic.data import FederatedData
from fedbolic.federated import Engine, Graphed
from fedbolic.federated.batched.memory_estimate import LIBRARIES, MemoryEstimate
from fedbolic.federated.contract.engine import Exchange, Failure
from fedbolic.run.reproducible import reproducible, tf32

PART = "steps"
PLAIN, COMPILED = "plain loop", "compiled plain loop"
FEW, MOST = 1, 400
"""Steps on each batch in the short exchange of a timing, and the most in the long one."""

COMPILATION = 45.0
"""Seconds that must be left for a compilation to begin, which cannot be stopped."""

LocalRounds = Callable[[int], object]
"""An exchange of all clients with some number of steps on each batch."""


@dataclass(frozen=True, eq=False)
class Case:
    """A candidate on a workload."""

    exchange: LocalRounds
    batches: int
    device: torch.device

    def step_seconds(self, size: Size) -> float:
        """Median time of a step of all clients; NaN if the clock is too coarse for it."""
        short, guess = (self.timed(visits) for visits in (FEW, 3 * FEW))
        of_visit = max((guess - short) / (2 * FEW), 1e-5)
        long = FEW + min(max(2, round(size.seconds / of_visit)), MOST)
        self.timed(long)
        slopes = [
            (self.timed(long) - self.timed(FEW)) / ((long - FEW) * self.batches)
            for _ in range(size.repeats)
        ]
        found = statistics.median(slopes)
        return found if found > 0 else float("nan")

    def timed(self, visits: int) -> float:
        """Seconds of an exchange with some number of steps on each batch."""
        return wall_seconds(lambda: self.exchange(visits), self.device)

    def per_step(self, count: Callable[[Callable[[], object], torch.device], int]) -> float:
        """A count, of waits or kernels, for each step of all clients."""
        few, more = (
            count(lambda v=visits: self.exchange(v), self.device) for visits in (FEW, 3 * FEW)
        )
        return (more - few) / (2 * FEW * self.batches)


def engine_case(work: GpuWorkload, data: FederatedData, engine: Engine) -> Case:
    """An engine on a workload; a client that fails raises its error."""
    messages = work.messages(data)

    def exchange(visits: int) -> None:
        method = work.visiting(visits)
        for _, update, _ in engine.run(Exchange(method, messages, data.clients, {}, RNG)):
            if isinstance(update, Failure):
                raise update.error

    return Case(exchange, _batches(work, data), data.clients[0].no_inputs.device)


def plain_case(work: GpuWorkload, data: FederatedData, *, compiled: bool = False) -> Case:
    """The plain loop on a workload."""
    loop = GpuPlainLoop(work, data, compiled=compiled)

    def exchange(visits: int) -> None:
        loop.run(work.visiting(visits), data.clients)

    return Case(exchange, _batches(work, data), data.clients[0].no_inputs.device)


def rival_case(work: GpuWorkload, data: FederatedData, loop: Loop) -> Case:
    """One of :func:`~benchmarks.gpu.rivals.rivals` on a workload."""

    def exchange(visits: int) -> None:
        loop(work.visiting(visits), data.clients)

    return Case(exchange, _batches(work, data), data.clients[0].no_inputs.device)


def _batches(work: GpuWorkload, data: FederatedData) -> int:
    size = data.clients[0].size
    return -(-size // (work.method.local.batch_size or size))


def estimate_mebibytes(work: GpuWorkload, data: FederatedData) -> float:
    """Estimated memory of an exchange that stacks all clients."""
    estimate = MemoryEstimate(work.method)
    begun = tasks(work.method, work.messages(data), data.clients)
    return LIBRARIES + sum(estimate.megabytes(task) for task in begun)


def steps(report: Report, device: torch.device, size: Size) -> None:
    """Measure a step of every workload, number of clients and candidate."""
    with reproducible(device):
        every = workloads(device, size)
        timed = [work for work in every if size.timed is None or work.name in size.timed]
        for num_clients in size.clients:
            for work in timed:
                _of_workload(report, work, num_clients, device, size)
        for num_clients in size.clients:
            for work in timed:
                _fast(report, work, num_clients, size)
        for work in timed:  # last, for a compilation takes up to a minute
            _compiled(report, work, device, size)


def row_name(work: str, num_clients: int, candidate: str) -> str:
    """Name of a row of the table of steps."""
    return f"{work} x {num_clients}: {candidate}"


def _of_workload(
    report: Report, work: GpuWorkload, num_clients: int, device: torch.device, size: Size
) -> None:
    data = work.data(num_clients)
    counted = num_clients == min(size.clients)  # kernels of more clients only take longer to count
    plain = report.add(
        PART,
        row_name(work.name, num_clients, PLAIN),
        lambda: {"ms": 1e3 * plain_case(work, data).step_seconds(size)},
    )
    for name, made in rivals(work, data).items():

        def rival(made: Callable[[], Loop] = made) -> Row:
            ms = 1e3 * rival_case(work, data, made()).step_seconds(size)
            return (
                {"ms": ms} if plain is None else {"ms": ms, "rival_times_plain": plain["ms"] / ms}
            )

        report.add(PART, row_name(work.name, num_clients, name), rival)
    for name, engine in engines().items():
        report.add(
            PART,
            row_name(work.name, num_clients, name),
            lambda engine=engine: _engine_row(work, data, engine, size, plain, counted=counted),
        )


def _engine_row(
    work: GpuWorkload,
    data: FederatedData,
    engine: Engine,
    size: Size,
    plain: Row | None,
    *,
    counted: bool,
) -> Row:
    """Figures of an engine on a workload; ``plain`` are those of the plain loop."""
    with engine.open(data.clients) as opened:
        case = engine_case(work, data, opened)
        first = case.timed(FEW)
        ms = 1e3 * case.step_seconds(size)
        found: Row = {"ms": ms, "first_s": first}
        if plain is not None:
            found["times_plain"] = plain["ms"] / ms
        if case.device.type == "cuda":
            found["waits"] = case.per_step(waits)
        if counted:
            found["kernels"] = case.per_step(kernels)
        found["peak_mib"] = peak_mebibytes(lambda: case.exchange(FEW), case.device.type)
    found["stacked_estimate_mib"] = estimate_mebibytes(work, data)
    return found


def _fast(report: Report, work: GpuWorkload, num_clients: int, size: Size) -> None:
    """Captured steps with products in TF32, which are less exact than those of the goals above."""
    data, plain = work.data(num_clients), row_name(work.name, num_clients, PLAIN)

    def measured() -> Row:
        engine = Graphed()
        with tf32(), engine.open(data.clients) as opened:
            ms = 1e3 * engine_case(work, data, opened).step_seconds(size)
        exact = report.figure(PART, plain, "ms")
        return {"ms": ms} if exact is None else {"ms": ms, "fast_times_plain": exact / ms}

    report.add(PART, row_name(work.name, num_clients, "Graphed, TF32"), measured)


def _compiled(report: Report, work: GpuWorkload, device: torch.device, size: Size) -> None:
    """With the fewest clients: captured steps that are compiled, and the compiled plain loop."""
    num_clients = min(size.clients)
    data = work.data(num_clients)

    def measured() -> Row:
        case = plain_case(work, data, compiled=device.type == "cuda")
        first = case.timed(FEW)
        ms = 1e3 * case.step_seconds(size)
        found: Row = {"ms": ms, "first_s": first}
        for name in (PLAIN, *engines()):
            theirs = report.figure(PART, row_name(work.name, num_clients, name), "ms")
            if theirs is not None:
                found[f"over {name}"] = ms / theirs
        return found

    def of_engine() -> Row:
        engine, ms = Graphed(compiled=device.type == "cuda"), report.figure(PART, plain, "ms")
        of_plain = None if ms is None else {"ms": ms}
        return _engine_row(work, data, engine, size, of_plain, counted=True)

    plain = row_name(work.name, num_clients, PLAIN)
    needs = COMPILATION if device.type == "cuda" else 0.0
    report.add(PART, row_name(work.name, num_clients, "Graphed, compiled"), of_engine, needs=needs)
    report.add(PART, row_name(work.name, num_clients, COMPILED), measured, needs=needs)
    if device.type == "cuda":
        torch.compiler.reset()  # its graphs hold memory
        torch.cuda.empty_cache()
