"""The engine that is fastest here, found by trying."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TypeGuard

import torch
from typing_extensions import override

from fedbolic.data.client import Client
from fedbolic.federated.engines.batched import Batched
from fedbolic.federated.engines.engine import Engine, Result, RunStoppedError
from fedbolic.federated.engines.sequential import Sequential
from fedbolic.federated.engines.workers import Workers
from fedbolic.federated.gradient_method import GradientMethod
from fedbolic.federated.method import Method
from fedbolic.log import logger
from fedbolic.rng import Rng
from fedbolic.types import Tree

FEW, MORE = 1, 3
"""Epochs over a first batch in the two exchanges that are timed."""

SHORT = 1.0
"""Seconds of an exchange up to which it is timed itself: there, what an estimate leaves out counts.
"""

TRIALS = 3
"""How often each is timed: the least counts, for whatever else the machine does only adds."""


@dataclass(frozen=True)
class Auto(Engine):
    """Whichever of some engines is fastest at the work of a first exchange.

    Before it, each candidate goes over the first batch of every client once and three times, after
    a warm-up and the best of three trials; the straight line through the two times says what the
    whole exchange would take. Where that is less than a second, the exchange itself is timed. What
    they give is thrown away. A candidate that cannot work for these clients is left out. For a
    method without gradient steps nothing is timed: it is given the first.

    A run's folder keeps the choice and the times in ``engine.json``, and the run goes on with it
    after a crash. Engines agree up to rounding only, and another machine may choose another one:
    where digits are to be repeated, name an engine.

    Args:
        candidates: The engines to choose from, at least one; the first wins a tie.

    Raises:
        ValueError: If there is no candidate, two are equal, or one is an ``Auto``.

    Example:
        >>> Auto((Sequential(), Batched(memory=100.0))).candidates[0]
        Sequential()
    """

    candidates: tuple[Engine, ...] = (Sequential(), Batched(), Workers())

    def __post_init__(self) -> None:
        names = [repr(engine) for engine in self.candidates]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"candidates must be different engines, at least one, got {names}")
        if any(isinstance(engine, Auto) for engine in self.candidates):
            raise ValueError(f"candidates must do the work themselves, got {names}")

    @override
    def check(self, clients: Sequence[Client]) -> None:
        self._usable(clients)

    def _usable(self, clients: Sequence[Client]) -> list[Engine]:
        """The candidates that can work for these clients."""
        usable, refusals = [], []
        for engine in self.candidates:
            try:
                engine.check(clients)
                usable.append(engine)
            except ValueError as error:
                refusals.append(str(error))
        if not usable:
            raise ValueError(f"no candidate can work: {'; '.join(refusals)}")
        return usable

    def settle(
        self,
        method: Method,
        messages: Mapping[int, Tree],
        clients: Sequence[Client],
        rng: Rng,
    ) -> tuple[Engine, dict[str, float]]:
        """The candidate that a run goes on with, and seconds of an exchange with each.

        Args:
            method: Whose first exchange lies ahead.
            messages: What each client will receive, by id.
            clients: Those who will take part.
            rng: A stream of its own: nothing drawn here is used again.
        """
        usable = self._usable(clients)
        if len(usable) == 1 or not _timeable(method):
            return usable[0], {}
        times = [seconds(engine, method, messages, clients, rng) for engine in usable]
        chosen = usable[times.index(min(times))]
        table = {repr(engine): of_engine for engine, of_engine in zip(usable, times, strict=True)}
        logger.info("clients are run by %r; seconds of an exchange: %s", chosen, table)
        return chosen, table

    def named(self, name: str) -> Engine:
        """The candidate with this ``repr``.

        Raises:
            ValueError: If there is none.
        """
        for engine in self.candidates:
            if repr(engine) == name:
                return engine
        raise ValueError(f"no candidate is {name}: they are {list(self.candidates)}")

    @override
    def run(
        self,
        method: Method,
        messages: Mapping[int, Tree],
        clients: Sequence[Client],
        client_states: Mapping[int, Tree],
        rng: Rng,
    ) -> Iterator[Result]:
        engine, _ = self.settle(method, messages, clients, rng.at("auto"))
        return engine.run(method, messages, clients, client_states, rng)


def _timeable(method: Method) -> TypeGuard[GradientMethod]:
    """True if the method takes gradient steps and has a field for their number."""
    return (
        isinstance(method, GradientMethod)
        and is_dataclass(method)
        and "local" in {field.name for field in fields(method)}
    )


def seconds(
    engine: Engine,
    method: GradientMethod,
    messages: Mapping[int, Tree],
    clients: Sequence[Client],
    rng: Rng,
) -> float:
    """Seconds of one exchange with a running engine; infinity if the engine cannot work.

    Args:
        engine: Which can work for these clients.
        method: A dataclass with the field ``local``.
        messages: What each client would receive, by id.
        clients: Those who would take part.
        rng: Of the timed steps.
    """
    try:
        guess = _estimate(engine, method, messages, clients, rng)
        return guess if guess > SHORT else _least(engine, [method], messages, clients, rng)[0]
    except RunStoppedError as error:
        logger.info("%r is no candidate: %s", engine, error)
        return float("inf")


def _estimate(
    engine: Engine,
    method: GradientMethod,
    messages: Mapping[int, Tree],
    clients: Sequence[Client],
    rng: Rng,
) -> float:
    """The seconds of an exchange, from those of a few epochs over every client's first batch."""
    local = method.local
    short = [_first_batch(client, local.batch_size) for client in clients]
    few = [
        replace(method, local=replace(local, epochs=epochs))  # type: ignore[type-var]  # a dataclass
        for epochs in (FEW, MORE)
    ]
    first, more = _least(engine, few, messages, short, rng)
    of_epoch = max(0.0, more - first) / (MORE - FEW)
    whole, timed = (
        sum(-(-client.size // (local.batch_size or client.size or 1)) for client in some)
        for some in (clients, short)
    )
    return first + of_epoch * (local.epochs * whole / max(timed, 1) - FEW)


def _least(
    engine: Engine,
    methods: Sequence[Method],
    messages: Mapping[int, Tree],
    clients: Sequence[Client],
    rng: Rng,
) -> list[float]:
    """The least seconds of an exchange of each method, over a few trials after a warm-up."""
    with engine.open(clients) as opened:

        def timed(method: Method) -> float:
            began = time.perf_counter()
            for _ in opened.run(method, messages, clients, {}, rng):
                pass
            return time.perf_counter() - began

        timed(methods[0])
        return [min(timed(method) for _ in range(TRIALS)) for method in methods]


def _first_batch(client: Client, batch_size: int | None) -> Client:
    if batch_size is None or client.size <= batch_size:
        return client
    return replace(client, train=client.train.part(torch.arange(batch_size)))
