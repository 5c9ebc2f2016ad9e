"""A whole round of many clients by part: local steps, the server's part, and evaluation."""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from typing_extensions import override

from benchmarks.gpu.report import Report, Row
from benchmarks.gpu.workloads import RNG, GpuPlainLoop, GpuWorkload, Size, engines, workloads
from benchmarks.timing import Clock, synchronize, wall_seconds
from fedbolic.core.types import Params
from fedbolic.data import Client, FederatedData
from fedbolic.federated import Engine, Trainer
from fedbolic.federated.contract.engine import Exchange, Result
from fedbolic.run.reproducible import reproducible

PART = "round"
MEASURED = ("MLP", "digits CNN")
"""Workloads whose rounds are measured."""

EPOCHS, WARM = 5, 2
"""Local epochs of a round, and rounds before the timed ones."""


@dataclass(frozen=True, eq=False)
class TimedEngine(Engine):
    """An engine that adds up the seconds of its local work and of its scores."""

    inner: Engine
    seconds: dict[str, float] = field(default_factory=dict)

    @override
    def run(self, exchange: Exchange) -> Iterator[Result]:
        clock = Clock(time.perf_counter)
        results = list(self.inner.run(exchange))
        self._add("run", clock, exchange.clients)
        return iter(results)

    @override
    def scores(self, exchange: Exchange) -> dict[int, dict[str, float]]:
        clock = Clock(time.perf_counter)
        found = self.inner.scores(exchange)
        self._add("scores", clock, exchange.clients)
        return found

    def _add(self, name: str, clock: Clock, clients: Sequence[Client]) -> None:
        synchronize(clients[0].no_inputs.device)
        self.seconds[name] = self.seconds.get(name, 0.0) + clock.lap()


def rounds(report: Report, device: torch.device, size: Size) -> None:
    """Measure a round of the largest number of clients with every engine."""
    num_clients = max(size.clients)
    with reproducible(device):
        for work in workloads(device, size):
            if work.name in MEASURED:
                data = work.data(num_clients)
                plain = report.add(
                    PART, f"{work.name}: plain loop", lambda w=work, d=data: plain_round(w, d, size)
                )
                for name, engine in engines().items():
                    report.add(
                        PART,
                        f"{work.name}: {name}",
                        lambda w=work, d=data, e=engine, p=plain: engine_round(w, d, e, size, p),
                    )


def engine_round(
    work: GpuWorkload, data: FederatedData, engine: Engine, size: Size, plain: Row | None
) -> Row:
    """Median milliseconds of a round and of its parts."""
    total = WARM + size.repeats
    method = replace(work.visiting(1, epochs=EPOCHS), rounds=total)  # type: ignore[type-var]  # a dataclass
    device = data.clients[0].no_inputs.device
    times: list[dict[str, float]] = []
    with engine.open(data.clients) as opened:
        timed = TimedEngine(opened)
        run = Trainer(timed).run(method, data, RNG)
        for _ in range(total):
            timed.seconds.clear()
            whole = wall_seconds(lambda: next(run), device)
            server = whole - sum(timed.seconds.values())
            times.append({"round": whole, **timed.seconds, "server": server})
    timed_rounds = times[WARM:]
    found: Row = {
        f"{name}_ms": 1e3 * statistics.median(of_round[name] for of_round in timed_rounds)
        for name in times[-1]
    }
    if plain is not None:
        found["times_plain"] = plain["round_ms"] / found["round_ms"]
    return found


def plain_round(work: GpuWorkload, data: FederatedData, size: Size) -> Row:
    """Median milliseconds of a plain round: training, the mean, and every client's test score."""
    loop, method = GpuPlainLoop(work, data), work.visiting(1, epochs=EPOCHS)
    device = data.clients[0].no_inputs.device
    parameters = loop.messages[data.clients[0].id]["parameters"]

    def one() -> None:
        trained = loop.run(method, data.clients)
        mean = _mean(parameters, trained, [client.size for client in data.clients])
        loop.network.load_state_dict(mean, strict=False)
        _accuracies(loop.network, data.clients)

    for _ in range(WARM):
        one()
    return {
        "round_ms": 1e3 * statistics.median(wall_seconds(one, device) for _ in range(size.repeats))
    }


def _mean(parameters: Params, trained: Sequence[Params], sizes: Sequence[int]) -> Params:
    """Weighted mean of the clients' parameters, summed in float64."""
    sums = {name: torch.zeros_like(x, dtype=torch.float64) for name, x in parameters.items()}
    for values, size in zip(trained, sizes, strict=True):
        for name, total in sums.items():
            total.add_(values[name].double(), alpha=size)
    return {name: (x / sum(sizes)).to(parameters[name].dtype) for name, x in sums.items()}


def _accuracies(network: torch.nn.Module, clients: Sequence[Client]) -> list[float]:
    """Test accuracy of every client, and a number on the host for each."""
    network.eval()
    found = []
    with torch.no_grad():
        for client in clients:
            batch = client.test.all()
            right = network(batch["x"]).argmax(dim=1) == batch["y"]
            found.append(right.float().mean().item())
    network.train()
    return found
