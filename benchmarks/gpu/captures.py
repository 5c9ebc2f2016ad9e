"""Captured steps of every gradient method: whether there are any, and the seconds to the first."""

import torch

from benchmarks.gpu.equality import short_runs
from benchmarks.gpu.report import Report, Row
from benchmarks.gpu.workloads import RNG, Size
from benchmarks.methods.quick import visiting
from benchmarks.timing import wall_seconds
from fedbolic.federated import Graphed, Trainer
from fedbolic.federated.contract.engine import Exchange, Failure
from fedbolic.federated.contract.gradient_method import GradientMethod

PART = "captures"
VISITS = 3
"""Steps on each batch: the first runs, the second is captured, the third is a replay."""


def captures(report: Report, device: torch.device, size: Size) -> None:
    """Run an exchange of every gradient method, with clients together and one by one."""
    for name, run in short_runs(size).items():
        if isinstance(run.method, GradientMethod):
            for together in (None, 1):

                def measured(run=run, together=together) -> Row:
                    return captured(run, device, Graphed(together=together))

                report.add(PART, f"{name}: {Graphed(together=together)}", measured)


def captured(run, device: torch.device, engine: Graphed) -> Row:
    """Number of graphs after an exchange, and its seconds.

    Args:
        run: A short run.
        device: Device of the clients.
        engine: Engine of the exchange.

    Raises:
        RuntimeError: If a client fails, or a CUDA device has captured nothing.
    """
    data, method = run.data.to(device, torch.float32), visiting(run.method, VISITS)
    start = Trainer().begin(method, data, RNG).server_state
    messages = {client.id: method.broadcast(start, client.id) for client in data.clients}
    exchange = Exchange(method, messages, data.clients, {}, RNG)
    with engine.open(data.clients):
        results: list = []
        seconds = wall_seconds(lambda: results.extend(engine.run(exchange)), device)
        graphs = engine.num_graphs
    failed = [update.error for _, update, _ in results if isinstance(update, Failure)]
    if failed:
        raise RuntimeError(f"a client failed: {failed[0]!r}")
    if device.type == "cuda" and not graphs:
        raise RuntimeError("no step was captured")
    return {"graphs": graphs, "first_s": seconds}
