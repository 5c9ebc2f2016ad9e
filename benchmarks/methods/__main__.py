"""Traffic and state of every method: ``python -m benchmarks.methods``.

One row for every ``configs/**/quick.yaml``, from two rounds of it with four clients and one epoch.

Takes 1 minute.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from benchmarks.methods.quick import NAMES, first_clients, settings, shortened
from benchmarks.table import head, line
from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data import FederatedData
from fedbolic.federated import Additive, Method, Sequential, Update
from fedbolic.federated.contract.engine import Exchange

COLUMNS = (
    *("configuration", "class", "leaves a client in an exchange"),
    *("state of a client", "exchanges a round", "secure sum"),
)
NUM_CLIENTS = 4


@dataclass(frozen=True)
class MethodRow:
    """Measured traffic and state of one configuration."""

    name: str
    method: Method
    sent: tuple[str, ...]
    kept: str
    exchanges: tuple[int, ...]
    additive: bool

    def cells(self) -> tuple[str, ...]:
        """The row's texts, one per column."""
        least, most = min(self.exchanges), max(self.exchanges)
        return (
            f"`{self.name}`",
            f"`{type(self.method).__name__}`",
            "; ".join(self.sent),
            self.kept,
            str(least) if least == most else f"{least} to {most}",
            "yes" if self.additive else "no",
        )


def numbers(values: Tree) -> str:
    """Names of the parts of a tree, each with how many numbers it holds; empty parts are left out.

    Example:
        >>> import torch
        >>> numbers({"delta": {"w": torch.zeros(2, 3), "b": torch.zeros(2)}, "norm": 1.0})
        'delta 8, norm 1'
    """
    counts = {
        name: sum(x.numel() if isinstance(x, Tensor) else 1 for _, x in tree.leaves({name: part}))
        for name, part in values.items()
    }
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)


def exchanges(method: Method, data: FederatedData) -> Iterator[tuple[Method, Update, Tree]]:
    """Phase, first client's update and its state, for every exchange of a run with all clients."""
    rng, states = Rng(0), {}
    server_state = method.admit(method.init(data.meta, rng.at("init")), data.sizes)
    rounds = exchange = 0
    while rounds < method.rounds:
        phase = method.phase(server_state)
        messages = {c.id: phase.broadcast(server_state, c.id) for c in data.clients}
        stream = rng.at("round", rounds + 1, "exchange", exchange)
        results = list(Sequential().run(Exchange(phase, messages, data.clients, states, stream)))
        updates = {}
        for client, update, client_state in results:
            if not isinstance(update, Update):
                raise RuntimeError(f"client {client.id} of {method} failed") from update.error
            updates[client.id], states[client.id] = update, client_state
        total = phase.aggregator.aggregate(updates.items())
        server_state = phase.server_update(server_state, total)
        exchange += 1
        if phase.traits.evaluates:
            rounds, exchange = rounds + 1, 0
        yield phase, updates[0], states[0]


def measure_method(name: str) -> MethodRow:
    """Run a quick configuration for two rounds and record its exchanges."""
    method, source = settings(name)
    method, data = shortened(method), first_clients(source.load(Rng(0)), NUM_CLIENTS)
    sent, per_round, kept, additive = [], [0], "", True
    for phase, update, client_state in exchanges(method, data):
        sent.append(numbers(update.payload))
        kept = numbers(client_state)
        additive = additive and isinstance(phase.aggregator, Additive)
        per_round[-1] += 1
        per_round += [0] if phase.traits.evaluates else []
    return MethodRow(
        name, method, tuple(dict.fromkeys(sent)), kept, tuple(per_round[:-1]), additive
    )


def main() -> None:
    """Print the table."""
    print(head(*COLUMNS))
    for name in NAMES:
        print(line(*measure_method(name).cells()), flush=True)


if __name__ == "__main__":
    main()
