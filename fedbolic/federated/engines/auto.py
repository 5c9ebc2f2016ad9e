"""Choice of the fastest engine by timing the candidates."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TypeGuard

import torch
from typing_extensions import override

from fedbolic.core.log import logger
from fedbolic.data.contract.client import Client
from fedbolic.federated.contract.engine import Engine, Exchange, Result, RunStoppedError
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.method import Method
from fedbolic.federated.engines.batched import Batched
from fedbolic.federated.engines.graphed import Graphed
from fedbolic.federated.engines.sequential import Sequential
from fedbolic.federated.engines.workers import Workers

FEW, MORE = 1, 3
"""Epochs over every client's first batch in the two timed exchanges."""

SHORT = 1.0
"""Estimated seconds up to which the whole exchange is timed: an estimate is too inexact there."""

TRIALS = 3
"""Timings of each exchange; the minimum counts, as other load on the machine only adds time."""


@dataclass(frozen=True)
class Auto(Engine):
    """The fastest of several engines, chosen before the first exchange.

    Each candidate trains on the first batch of every client for one epoch and for three epochs,
    after a warm-up; the best of three trials counts. Linear extrapolation from the two times
    estimates the time of the whole exchange. If the estimate is at most one second, the exchange
    itself is timed. The results of these trials are discarded. A candidate that cannot run the
    clients is left out, and so is ``Graphed`` if their data are not on a CUDA device, as nothing
    can be captured there. A method without gradient steps gets the first usable candidate, untimed.

    A run's folder keeps the choice and the times in ``engine.json``, and a resumed run uses the
    same engine. Engines agree only up to rounding, and another machine may choose another engine:
    name an engine where every digit must be reproducible.

    Args:
        candidates: Engines to choose from, at least one; the first wins a tie.

    Raises:
        ValueError: If there is no candidate, two candidates are equal, or one is an ``Auto``.

    Example:
        >>> Auto((Sequential(), Batched(memory=100.0))).candidates[0]
        Sequential()
    """

    candidates: tuple[Engine, ...] = (Sequential(), Batched(), Graphed(), Workers())

    def __post_init__(self) -> None:
        names = [repr(engine) for engine in self.candidates]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"candidates must be different engines, at least one, got {names}")
        if any(isinstance(engine, Auto) for engine in self.candidates):
            raise ValueError(f"candidates must not be Auto themselves, got {names}")

    @override
    def check(self, clients: Sequence[Client]) -> None:
        self._usable(clients)

    def _usable(self, clients: Sequence[Client]) -> list[Engine]:
        """The candidates that can run these clients."""
        usable, refusals = [], []
        for engine in self.candidates:
            try:
                if isinstance(engine, Graphed) and not _on_cuda(clients):
                    raise ValueError("Graphed gains only on a CUDA device")
                engine.check(clients)
                usable.append(engine)
            except ValueError as error:
                refusals.append(str(error))
        if not usable:
            raise ValueError(f"no candidate can run these clients: {'; '.join(refusals)}")
        return usable

    def settle(self, exchange: Exchange) -> tuple[Engine, dict[str, float]]:
        """The chosen candidate and the seconds of an exchange with each, empty if nothing is timed.

        Args:
            exchange: First exchange, with a random stream for the trials that is used nowhere else.
        """
        usable = self._usable(exchange.clients)
        if len(usable) == 1 or not _timeable(exchange.method):
            return usable[0], {}
        times = [seconds(engine, exchange.method, exchange) for engine in usable]
        chosen = usable[times.index(min(times))]
        table = {repr(engine): of_engine for engine, of_engine in zip(usable, times, strict=True)}
        logger.info("clients are run by %r; seconds per exchange: %s", chosen, table)
        return chosen, table

    def named(self, name: str) -> Engine:
        """The candidate with this ``repr``.

        Raises:
            ValueError: If no candidate has this ``repr``.
        """
        for engine in self.candidates:
            if repr(engine) == name:
                return engine
        raise ValueError(f"no candidate is {name}: the candidates are {list(self.candidates)}")

    @override
    def run(self, exchange: Exchange) -> Iterator[Result]:
        engine, _ = self.settle(replace(exchange, rng=exchange.rng.at("auto")))
        return engine.run(exchange)


def _on_cuda(clients: Sequence[Client]) -> bool:
    return bool(clients) and clients[0].no_inputs.device.type == "cuda"


def _timeable(method: Method) -> TypeGuard[GradientMethod]:
    """True if the method takes gradient steps and has a field ``local`` for their number."""
    return (
        isinstance(method, GradientMethod)
        and is_dataclass(method)
        and "local" in {field.name for field in fields(method)}
    )


def seconds(engine: Engine, method: GradientMethod, exchange: Exchange) -> float:
    """Seconds of one exchange, without the engine's start; infinity if the engine fails.

    Args:
        engine: Engine that accepts these clients.
        method: Method of the exchange, a dataclass with the field ``local``.
        exchange: The exchange, with the random stream of the timed steps.
    """
    try:
        guess = _estimate(engine, method, exchange)
        return guess if guess > SHORT else _least(engine, [method], exchange)[0]
    except RunStoppedError as error:
        logger.info("%r is not usable: %s", engine, error)
        return float("inf")


def _estimate(engine: Engine, method: GradientMethod, exchange: Exchange) -> float:
    """Seconds of an exchange, extrapolated from epochs over every client's first batch."""
    local = method.local
    short = [_first_batch(client, local.batch_size) for client in exchange.clients]
    few = [
        replace(method, local=replace(local, epochs=epochs))  # type: ignore[type-var]  # a dataclass
        for epochs in (FEW, MORE)
    ]
    first, more = _least(engine, few, exchange.of(short))
    of_epoch = max(0.0, more - first) / (MORE - FEW)
    whole, timed = (
        sum(-(-client.size // (local.batch_size or client.size or 1)) for client in some)
        for some in (exchange.clients, short)
    )
    return first + of_epoch * (local.epochs * whole / max(timed, 1) - FEW)


def _least(engine: Engine, methods: Sequence[Method], exchange: Exchange) -> list[float]:
    """Fewest seconds of an exchange of each method, over a few trials after a warm-up."""
    with engine.open(exchange.clients) as opened:

        def timed(method: Method) -> float:
            began = time.perf_counter()
            for _ in opened.run(replace(exchange, method=method, client_states={})):
                pass
            if _on_cuda(exchange.clients):  # launched work may still be running
                torch.cuda.synchronize()
            return time.perf_counter() - began

        timed(methods[0])
        return [min(timed(method) for _ in range(TRIALS)) for method in methods]


def _first_batch(client: Client, batch_size: int | None) -> Client:
    if batch_size is None or client.size <= batch_size:
        return client
    return replace(client, train=client.train.part(torch.arange(batch_size)))
