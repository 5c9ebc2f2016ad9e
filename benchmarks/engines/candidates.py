"""Candidates and workloads of ``benchmarks.engines``.

All candidates start from the same parameters and take the batches of every round in the same
order.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from benchmarks.engines import plain_loop, processes
from benchmarks.engines.peers import GIVEN
from benchmarks.engines.plain_loop import Workload
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params
from fedbolic.data import Client, Examples, FederatedData
from fedbolic.federated import (
    Auto,
    Batched,
    ClassifierMethod,
    Engine,
    Evaluation,
    LocalTraining,
    Sequential,
    Trainer,
    Workers,
)
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import Backbone

PLAIN = "plain loop"
ENGINES: dict[str, Engine] = {
    "Sequential": Sequential(),
    "Batched": Batched(),
    "Workers(2)": Workers(num=2),
    "Auto": Auto((Sequential(), Batched(), Workers(num=2))),
}
WORKLOADS = {
    work.name: work
    for work in (
        Workload("MLP", 20, 300, widths=(200,)),
        Workload("CNN-S", 20, 300, channels=(6, 16), widths=(64,)),
        Workload("CNN-L", 20, 300, channels=(32, 64), widths=(512,)),
        Workload("MLP 100x32", 100, 32, widths=(200,)),
        Workload("tiny", 100, 80, 8, input_shape=(20,), num_classes=7, widths=(16, 16)),
        Workload("logistic", 100, 320),
        Workload("one step", 1000, 8, 8, input_shape=(20,), num_classes=7, widths=(16, 16)),
    )
}
PEERED = ("MLP", "CNN-S", "MLP 100x32")
"""Workloads for which the goals name a peer."""
RNG = Rng(0)
ROOT = Path(__file__).resolve().parents[2]
START = "import sys; from benchmarks.engines.peers import main; main(*sys.argv[1:])"
"""Command of a peer; no ``-m``, for processes of a framework cannot import from ``__main__``."""


@dataclass(frozen=True)
class Body(Backbone):
    """The plain loop's network without its head, as a backbone."""

    work: Workload

    @property
    @override
    def num_features(self) -> int:
        return self.work.num_features

    @override
    def build(self, meta: Meta) -> nn.Module:
        return plain_loop.body(self.work)


def method(work: Workload) -> FedAvg:
    """Method that the engines run."""
    local = LocalTraining(epochs=1, batch_size=work.batch_size)
    return FedAvg(Body(work), rounds=sys.maxsize, local=local, lr=work.lr)


def federation(work: Workload, data: Sequence[tuple[Tensor, Tensor]]) -> FederatedData:
    """The clients of a workload, laid out in memory as by the sources, without test data."""
    sizes = [len(y) for _, y in data]
    meta = Meta(work.num_classes, work.input_shape, len(sizes))
    together = Examples(
        {"x": torch.cat([x for x, _ in data]), "y": torch.cat([y for _, y in data])}
    )
    (nothing,) = together.cut([torch.arange(0)])
    parts = together.cut(torch.arange(sum(sizes)).split(sizes))
    clients = (Client(i, part, nothing, nothing, meta) for i, part in enumerate(parts))
    return FederatedData(tuple(clients), meta)


def seeds(work: Workload, round: int) -> list[int]:
    """Seeds of the orders of all clients in a round, counted from 1, by the trainer's streams."""
    stream = RNG.at("round", round, "exchange", 0)
    return [stream.at("client", i, "order").number() for i in range(work.num_clients)]


class Candidate(ABC):
    """A system that trains by federated averaging."""

    @abstractmethod
    def round(self, orders: list[int]) -> None:
        """Train for one more round."""

    @abstractmethod
    def values(self) -> Params:
        """The current global parameters."""

    def processes(self) -> list[int]:
        """Ids of the candidate's processes, the leading one first."""
        return [os.getpid()]

    def close(self) -> None:
        """Release resources; the default does nothing."""
        return


class PlainLoop(Candidate):
    """One model, one client after another, torch's own optimiser."""

    def __init__(
        self, work: Workload, data: Sequence[tuple[Tensor, Tensor]], values: Params
    ) -> None:
        self.work, self.data, self.now = work, data, values
        self.network = plain_loop.network(work).to(data[0][0].dtype)

    @override
    def round(self, orders: list[int]) -> None:
        self.now = plain_loop.plain_round(self.network, self.work, self.data, self.now, orders)

    @override
    def values(self) -> Params:
        return self.now


class Trained(Candidate):
    """This library's trainer with one of its engines; its rounds are never scored."""

    def __init__(
        self,
        work: Workload,
        data: Sequence[tuple[Tensor, Tensor]],
        engine: Engine,
        trained: ClassifierMethod | None = None,
    ) -> None:
        trainer = Trainer(engine, evaluation=Evaluation(every=sys.maxsize))
        self.rounds = trainer.run(trained or method(work), federation(work, data), RNG)
        self.now: Params = {}

    @override
    def round(self, orders: list[int]) -> None:
        del orders  # the trainer draws the same orders from its own streams
        state, _ = next(self.rounds)
        self.now = state.server_state["parameters"]

    @override
    def values(self) -> Params:
        return self.now

    @override
    def processes(self) -> list[int]:
        children = (child.pid for child in multiprocessing.active_children())
        return [os.getpid(), *(pid for pid in children if pid is not None)]

    @override
    def close(self) -> None:
        self.rounds.close()


class Peer(Candidate):
    """Another framework in a separate process and environment."""

    def __init__(
        self,
        name: str,
        python: str,
        work: Workload,
        data: Sequence[tuple[Tensor, Tensor]],
        values: Params,
    ) -> None:
        self.name = name
        self.folder = tempfile.TemporaryDirectory(prefix="peer", ignore_cleanup_errors=True)
        folder = Path(self.folder.name)
        given, self.log = folder / "given.pt", folder / "log"
        torch.save((dataclasses.asdict(work), data, values), given)
        self.line, theirs = multiprocessing.Pipe()
        environment = {
            **os.environ,
            **{"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", GIVEN: str(given)},
            **{"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(folder / "flower")},
            **{"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(folder)},
        }
        with self.log.open("w") as log, theirs:
            self.process = subprocess.Popen(
                [python, "-W", "ignore", "-c", START, name, str(theirs.fileno())],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _ask(self, request: object) -> Any:
        try:
            self.line.send(request)
            return self.line.recv()
        except (EOFError, OSError) as error:
            last = "".join(self.log.read_text().splitlines()[-1:])  # a cell of a table
            raise RuntimeError(f"{self.name} has ended: {last}") from error

    @override
    def round(self, orders: list[int]) -> None:
        self._ask(orders)

    @override
    def values(self) -> Params:
        return {name: torch.from_numpy(x) for name, x in self._ask("values").items()}

    @override
    def processes(self) -> list[int]:
        return processes.tree(self.process.pid)

    @override
    def close(self) -> None:
        self.line.close()
        for pid in self.processes():  # Ray leaves its processes behind when it is only asked to end
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.folder.cleanup()
