"""Largest difference between a device and the CPU after two rounds, by method and engine."""

import dataclasses
import functools
from dataclasses import dataclass

import torch

from benchmarks.gpu_report import Report, Row
from benchmarks.gpu_resnet import arithmetic
from benchmarks.gpu_settings import DIGITS, QUICK_METHODS
from benchmarks.gpu_workloads import RNG, Size, engines
from fedbolic.core import tree
from fedbolic.core.types import Params
from fedbolic.data import Client, Examples, FederatedData, Split
from fedbolic.federated import Engine, Sequential, Trainer
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.run.reproducible import reproducible

PART = "equality"
NUM_CLIENTS, NUM_EXAMPLES, BATCH = 3, 20, 8


@dataclass(frozen=True, eq=False)
class ShortRun:
    """A short federated run.

    Args:
        method: Method, for two rounds of a few steps.
        data: A few clients with a few examples, which do not fill their last batch.
    """

    method: GradientMethod
    data: FederatedData

    def end(self, engine: Engine, device: torch.device, dtype: torch.dtype) -> Params:
        """Tensors of the server and of the clients after the run, on the CPU in float64.

        Raises:
            RuntimeError: If a client fails.
        """
        *exchanges, (state, rows) = Trainer(engine).run(
            self.method, self.data.to(device, dtype), RNG
        )
        rows = [row for _, some in exchanges for row in some] + rows
        if any(row.value for row in rows if row.name == "clients/failed"):
            raise RuntimeError("a client failed; the warning above says why")
        states = {str(i): state.client_states[i] for i in sorted(state.client_states)}
        ended = {"server": state.server_state, "clients": states}
        return tree.tensors(tree.to(ended, "cpu", torch.float64))

    @functools.cached_property
    def reference(self) -> Params:
        """End of the run on the CPU in float64, one client after another."""
        return self.end(Sequential(), torch.device("cpu"), torch.float64)

    def difference(self, engine: Engine, device: torch.device, dtype: torch.dtype) -> float:
        """Largest difference of a number from the reference; NaN if a number is NaN.

        Raises:
            RuntimeError: If a client fails, or the names of the values differ.
        """
        found, expected = self.end(engine, device, dtype), self.reference
        if found.keys() != expected.keys():
            raise RuntimeError(f"other values than on the CPU: {found.keys() ^ expected.keys()}")
        gaps = [(found[name].double() - x.double()).abs().flatten() for name, x in expected.items()]
        return torch.cat([torch.zeros(1, dtype=torch.float64), *gaps]).max().item()


def equality(report: Report, device: torch.device, size: Size) -> None:
    """Compare every gradient method and engine on the device with the CPU."""
    with reproducible(device):
        for name in size.methods or QUICK_METHODS:
            run = short_run(name)
            for of, engine in engines().items():

                def exact(run: ShortRun = run, engine: Engine = engine) -> Row:
                    return {"difference": run.difference(engine, device, torch.float64)}

                report.add(PART, f"{name}: {of}", exact)
    run = short_run("fedavg")
    for kind in ("float32", "TF32"):
        for of, engine in engines().items():

            def single(kind: str = kind, engine: Engine = engine) -> Row:
                with arithmetic(kind, device):
                    return {"single_difference": run.difference(engine, device, torch.float32)}

            report.add(PART, f"fedavg, {kind}: {of}", single)


def short_run(name: str) -> ShortRun:
    """Short run of a quick setting."""
    method, source = QUICK_METHODS[name]
    local = method.local
    if local.batch_size is None:  # an epoch is one step
        local = dataclasses.replace(local, epochs=2)
    else:
        local = dataclasses.replace(local, epochs=1, batch_size=BATCH)
    method = dataclasses.replace(method, rounds=2, local=local)  # type: ignore[type-var, call-arg]
    data = source.load(RNG)
    return ShortRun(method, _cut(data) if source is DIGITS else data)


def _cut(data: FederatedData) -> FederatedData:
    """The first few clients, with a few examples each."""
    meta = dataclasses.replace(data.meta, num_clients=NUM_CLIENTS)

    def few(split: Split, num: int) -> Examples:
        return Examples(split.at(torch.arange(min(num, len(split)))))

    def cut(client: Client) -> Client:
        kept = NUM_EXAMPLES - client.id  # batches of different lengths
        return Client(
            client.id, few(client.train, kept), client.validation, few(client.test, kept), meta
        )

    return FederatedData(tuple(cut(client) for client in data.clients[:NUM_CLIENTS]), meta)
