"""An engine that lets chosen clients attack."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from typing_extensions import override

from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.update import Update
from fedbolic.federated.attacks.attack import Attack
from fedbolic.federated.contract.engine import Engine, Exchange, Remote, Result
from fedbolic.federated.engines.auto import Auto
from fedbolic.federated.engines.sequential import Sequential


@dataclass(frozen=True)
class Attacked(Engine):
    """Engine in which chosen clients train honestly but send malicious updates; for experiments.

    Another engine runs all clients; then the attack replaces one part of the payloads of the
    attackers. Their weights, metrics, client states and scores remain honest. Channels act on the
    malicious updates, as if the server applied them. All updates of an exchange are held in memory.

    Args:
        attack: Rule for the malicious updates.
        clients: Ids of the attackers; those in the cohort of an exchange attack together. Empty for
            none.
        inner: Engine that runs the clients; neither ``Auto``, which would choose anew in every
            exchange, nor clients on other machines.
        part: Part of the payload that the attack replaces.

    Raises:
        ValueError: If an id is negative or repeated, ``inner`` is not possible, or (from ``check``)
            there is no client of such an id, or (from ``run``) a payload lacks the part.

    Example:
        >>> from fedbolic.federated import SignFlip
        >>> Attacked(SignFlip(scale=3.0), clients=(0, 1))
        Attacked(attack=SignFlip(scale=3.0), clients=(0, 1), inner=Sequential(), part='delta')
    """

    attack: Attack
    clients: tuple[int, ...]
    inner: Engine = Sequential()
    part: str = "delta"

    def __post_init__(self) -> None:
        if len(set(self.clients)) < len(self.clients) or min(self.clients, default=0) < 0:
            raise ValueError(f"clients must be different ids from 0 on, got {list(self.clients)}")
        if isinstance(self.inner, Auto | Remote):
            raise ValueError(
                f"inner must be one engine of this machine, got {type(self.inner).__name__}: name "
                "the engine"
            )

    @override
    def check(self, clients: Sequence[Client]) -> None:
        if unknown := [i for i in self.clients if i >= len(clients)]:
            raise ValueError(
                f"clients {unknown} cannot attack, as the ids are 0 .. {len(clients) - 1}"
            )
        self.inner.check(clients)

    @override
    @contextlib.contextmanager
    def open(self, clients: Sequence[Client]) -> Iterator[Engine]:
        self.check(clients)
        with self.inner.open(clients) as opened:
            yield dataclasses.replace(self, inner=opened)

    @override
    def run(self, exchange: Exchange) -> Iterator[Result]:
        results = list(self.inner.run(exchange))
        delivered = {client.id: u for client, u, _ in results if isinstance(u, Update)}
        honest = {i: self._honest(i, u) for i, u in delivered.items() if i in self.clients}
        sent = (
            self.attack.craft(honest, len(delivered), exchange.rng.at("attack")) if honest else {}
        )
        for client, update, client_state in results:
            if client.id in sent and isinstance(update, Update):
                payload = {**update.payload, self.part: sent[client.id]}
                update = dataclasses.replace(update, payload=payload)
            yield client, update, client_state

    def _honest(self, client_id: int, update: Update) -> Tree:
        if not isinstance(update.payload.get(self.part), dict):
            raise ValueError(
                f"Attacked replaces the part {self.part!r} of a payload, but client {client_id} "
                f"sent {sorted(update.payload)}: set part to a branch among them"
            )
        return update.payload[self.part]

    @override
    def scores(self, exchange: Exchange) -> dict[int, dict[str, float]]:
        return self.inner.scores(exchange)
