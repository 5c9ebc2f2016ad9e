"""Largest difference between a device and the CPU after two rounds, by method and engine."""

import contextlib
import functools
from dataclasses import dataclass

import torch

from benchmarks.gpu.report import Report, Row
from benchmarks.gpu.resnet import arithmetic
from benchmarks.gpu.workloads import RNG, Size, engines
from benchmarks.methods.quick import NAMES, first_clients, settings, shortened
from fedbolic.core import tree
from fedbolic.core.imports import MissingExtraError
from fedbolic.core.types import Params
from fedbolic.data import Examples, FederatedData, Split
from fedbolic.federated import Engine, Method, Sequential, Trainer
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.run.reproducible import reproducible

PART = "equality"
NUM_CLIENTS, NUM_EXAMPLES, BATCH = 3, 20, 8


@dataclass(frozen=True, eq=False)
class ShortRun:
    """A short federated run."""

    method: Method
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
    runs = short_runs(size)
    with reproducible(device):
        for name, run in runs.items():
            if isinstance(run.method, GradientMethod):
                for of, engine in engines().items():

                    def exact(run: ShortRun = run, engine: Engine = engine) -> Row:
                        return {"difference": run.difference(engine, device, torch.float64)}

                    report.add(PART, f"{name}: {of}", exact)
    for kind in ("float32", "TF32"):
        for of, engine in engines().items():

            def single(kind: str = kind, engine: Engine = engine) -> Row:
                with arithmetic(kind, device):
                    gap = runs["fedavg"].difference(engine, device, torch.float32)
                return {"single_difference": gap}

            report.add(PART, f"fedavg, {kind}: {of}", single)


def short_runs(size: Size) -> dict[str, ShortRun]:
    """Short runs of the settings whose packages are installed."""
    found: dict[str, ShortRun] = {}
    for name in size.methods or NAMES:
        with contextlib.suppress(MissingExtraError):
            found[name] = short_run(name)
    return found


def short_run(name: str) -> ShortRun:
    """Short run of a quick setting, with a few examples for batches of different lengths."""

    def few(split: Split, client_id: int) -> Split:
        kept = min(NUM_EXAMPLES - client_id, len(split))
        return Examples(split.at(torch.arange(kept))) if isinstance(split, Examples) else split

    method, source = settings(name)
    data = first_clients(source.load(RNG), NUM_CLIENTS, few)
    return ShortRun(shortened(method, BATCH), data)
