"""Cost of a run as clients grow in number: loading, sampling, exchange, scoring, saving, resuming.

Each size runs in a separate process. All clients have taken part once before the measurement, so
that a method with client state has the states of all clients on disk.

Takes 3 minutes.
"""

import itertools
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from typing_extensions import override

from benchmarks.script import alone, parser
from benchmarks.table import head, line
from benchmarks.timing import Clock, held_mebibytes
from fedbolic.core.rng import Rng
from fedbolic.data import IID, FederatedData, Partitioned
from fedbolic.data.contract.dataset import Dataset, OfficialParts
from fedbolic.federated import (
    Cohort,
    Evaluation,
    LocalTraining,
    Method,
    Trainer,
    TrainerState,
)
from fedbolic.methods import FedAvg, Scaffold
from fedbolic.nn.network.backbone import MLP
from fedbolic.run.record import RunFolder

NETWORK, STEPS = MLP((24,)), LocalTraining(epochs=1, batch_size=2)
METHODS: dict[str, Method] = {
    "FedAvg": FedAvg(NETWORK, rounds=10**6, local=STEPS),
    "Scaffold": Scaffold(NETWORK, rounds=10**6, local=STEPS),
}
"""A network of 466 parameters; Scaffold keeps as many numbers, 1,864 bytes, for every client."""

COHORT, SAMPLE, EXCHANGES = 50, 1000, 20
"""Clients in an exchange, scored clients, and measured exchanges."""

RNG = Rng(0)

BLOCK = 10_000
"""Number of clients whose first states are written together."""


@dataclass(frozen=True)
class Plenty(Dataset):
    """A data set of any number of examples with eight features."""

    num_train: int

    @override
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        generator = RNG.at("examples").generator()
        x = torch.randn(self.num_train + SAMPLE, 8, generator=generator)
        y = torch.randint(10, (len(x),), generator=generator)
        parts = x[:-SAMPLE], y[:-SAMPLE], x[-SAMPLE:], y[-SAMPLE:]
        return OfficialParts("plenty", *parts, num_classes=10)


def cost(num_clients: int, name: str, folder: Path) -> dict[str, float]:
    """CPU seconds of every phase at one size, and the peak memory of the process in megabytes."""
    found: dict[str, float] = {}
    clock = Clock()
    data = Partitioned(Plenty(4 * num_clients), IID(num_clients)).load(RNG.at("data"))
    data = data.to("cpu", torch.float32)
    found["load"] = clock.lap()
    method = METHODS[name]
    cohort = Cohort(min(1.0, COHORT / num_clients))
    ids = [client.id for client in data.clients]
    clock.lap()
    cohort.sample(ids, RNG.at("cohort"))
    found["sampling"] = clock.lap()
    trainer = Trainer(cohort=cohort, evaluation=Evaluation(every=10**9))
    state = trainer.begin(method, data, RNG)
    run_folder = RunFolder.create(folder, config="", environment={})
    state = filled(method, data, state, run_folder)

    clock.lap()
    exchanges = trainer.run(method, data, RNG, state)
    exchange, save = [], []
    for state, rows in itertools.islice(exchanges, EXCHANGES):
        exchange.append(clock.lap())
        run_folder.save(state.checkpoint(), rows, 0.0)
        save.append(clock.lap())
    found["exchange"] = sum(exchange[1:]) / (EXCHANGES - 1)  # the first one warms up
    found["save"] = sum(save[1:]) / (EXCHANGES - 1)

    evaluation = Evaluation(clients=SAMPLE, per_client=False)
    clock.lap()
    evaluation.rows(
        method,
        data,
        state.server_state,
        state.client_states,
        round=1,
        engine=trainer.engine,
        rng=RNG,
    )
    found["evaluation"] = clock.lap()
    checkpoint = RunFolder.open(folder).load()
    assert checkpoint is not None
    again = TrainerState.restore(checkpoint)
    next(trainer.run(method, data, RNG, again))
    found["resume"] = clock.lap()
    found["megabytes held"] = held_mebibytes()
    found["megabytes on disk"] = sum(file.stat().st_size for file in folder.iterdir()) / 2**20
    return found


def filled(
    method: Method, data: FederatedData, state: TrainerState, folder: RunFolder
) -> TrainerState:
    """Save a state of every client, copied from one client's update instead of trained."""
    message = method.broadcast(state.server_state, 0)
    _, server_state = method.local_update(message, data.clients[0], {}, RNG.at("client", 0))
    states = folder.client_states()
    for start in range(0, data.meta.num_clients, BLOCK):
        stop = min(start + BLOCK, data.meta.num_clients)
        states = states | dict.fromkeys(range(start, stop), server_state)
        folder.save({**state.checkpoint(), "client_states": states}, [], 0.0)
    return replace(state, client_states=states)


def measured(num_clients: int, name: str, root: Path) -> dict[str, float]:
    """Result of :func:`cost` in a separate process."""
    with tempfile.TemporaryDirectory(dir=root) as folder:
        of = "--clients", num_clients, "--method", name, "--folder", f"{folder}/run"
        return json.loads(alone("scale", *of))


def lines(found: Mapping[int, Mapping[str, float]]) -> Iterator[str]:
    """Rows of a table: a phase at every size, and its growth from each size to the next."""
    sizes = sorted(found)
    for phase in found[sizes[0]]:
        values = [found[size][phase] for size in sizes]
        growth = ", ".join(f"{b / a:.2g}" for a, b in itertools.pairwise(values))
        cells = [f"{value:.3g}" if value < 100 else f"{value:,.0f}" for value in values]
        yield line(phase, *cells, growth)


def main() -> None:
    """Print a table for every method."""
    args = parser(__doc__)
    sizes = [100, 1_000, 10_000, 100_000]
    args.add_argument("--clients", type=int, nargs="+", default=sizes)
    args.add_argument("--method", choices=METHODS, nargs="+", default=list(METHODS))
    args.add_argument("--root", type=Path, default=Path(tempfile.gettempdir()), help="for the runs")
    args.add_argument("--folder", type=Path, help="measure one size here and print its figures")
    options = args.parse_args()
    if options.folder:
        (num_clients,), (name,) = options.clients, options.method
        print(json.dumps(cost(num_clients, name, options.folder)))
        return
    for name in options.method:
        found = {n: measured(n, name, options.root) for n in options.clients}
        print(f"\n{name}, Sequential: CPU seconds, and megabytes")
        print(f"\n{head('phase', *(f'{n:,}' for n in options.clients), 'growth')}")
        print("\n".join(lines(found)), flush=True)


if __name__ == "__main__":
    main()
