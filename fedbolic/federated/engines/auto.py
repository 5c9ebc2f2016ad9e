"""Choice of the fastest engine by timing the candidates."""

import math
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
"""Most timings of an exchange; the minimum counts, as other load on the machine only adds time."""

SHARE = 0.05
"""Share of a run that the trials of all candidates may take together."""

START_SECONDS = 5.0
"""Seconds until worker processes have imported torch and this library."""

NEAR = 1.05
"""Time of the first candidate, in units of the least one, up to which the first is chosen."""


@dataclass(frozen=True)
class Auto(Engine):
    """The fastest of several engines, chosen before the first exchange.

    Each candidate trains on the first batch of every client for one epoch and for three epochs,
    after a warm-up; the best of three trials counts. Linear extrapolation from the two times
    estimates the time of the whole exchange. If the estimate is at most one second, the exchange
    itself is timed. The results of these trials are discarded. They take at most a twentieth of the
    run: a shorter run is timed less often, or on fewer clients, and a run of few steps not at all.
    The first candidate is chosen if it is within a twentieth of the fastest.

    A candidate that cannot run the clients is left out, and so is ``Graphed`` if their data are not
    on a CUDA device, as nothing can be captured there. ``Workers``, whose processes start in
    seconds, are left out where the trials of the others leave no time for two starts, as in runs of
    a few minutes: name them where you want them. A method without gradient steps gets the first
    usable candidate, untimed.

    A run's folder keeps the choice and the times in ``engine.json``, and a resumed run uses the
    same engine. Engines agree only up to rounding, and another machine may choose another engine:
    name an engine where every digit must be reproducible.

    Args:
        candidates: Engines to choose from, at least one.

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

    def settle(
        self, exchange: Exchange, rounds: int | float = math.inf
    ) -> tuple[Engine, dict[str, float]]:
        """The chosen candidate and the seconds of an exchange with each, empty if nothing is timed.

        Args:
            exchange: First exchange, with a random stream for the trials that is used nowhere else.
            rounds: Number of exchanges of the run, which bounds the trials; infinite for no bound.
        """
        usable = self._usable(exchange.clients)
        allowed = SHARE * rounds / len(usable)
        method = exchange.method
        if (
            len(usable) == 1
            or not _timeable(method)
            or _Trials.of(method, exchange, allowed) is None
        ):
            return usable[0], {}
        times: dict[str, float] = {}
        began = time.perf_counter()
        for engine in sorted(usable, key=lambda engine: isinstance(engine, Workers)):
            exchanges = allowed
            if isinstance(engine, Workers) and times:  # what others left, but for two starts
                least = min(times.values())
                spent = time.perf_counter() - began + 2 * START_SECONDS
                exchanges = min(allowed, SHARE * rounds - spent / least) if least else 0.0
            if _Trials.of(method, exchange, exchanges) is None:
                logger.info("%r is not tried: a run this short does not repay its start", engine)
            else:
                times[repr(engine)] = seconds(engine, method, exchange, exchanges)
        least, first = min(times.values()), times.get(repr(usable[0]), math.inf)
        near = usable[0] if first <= NEAR * least else None
        chosen = near or self.named(min(times, key=lambda name: times[name]))
        logger.info("clients are run by %r; seconds per exchange: %s", chosen, times)
        return chosen, times

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


@dataclass(frozen=True)
class _Trials:
    """Work of the trials of one candidate.

    Args:
        clients: Clients with their first batches.
        num: Number of timings of each short exchange.
        whole: Number of timings of the whole exchange, if that is short.
    """

    clients: Sequence[Client]
    num: int
    whole: int

    @staticmethod
    def of(
        method: GradientMethod, exchange: Exchange, allowed: float, *, one_by_one: bool = False
    ) -> "_Trials | None":
        """Trials that take as long as ``allowed`` exchanges; ``None`` if no two clients can.

        Clients that run one by one take their time each, and other engines may be far faster: an
        eighth is allowed to them.
        """
        clients = exchange.clients
        steps = method.local.epochs * _num_batches(clients, method.local.batch_size)
        once, again = 1 + FEW + MORE, FEW + MORE  # epochs with the warm-up, and of a further trial
        size, least = int(min(len(clients), allowed * steps / once)), min(2, len(clients))
        if size < least or not steps:
            return None
        if one_by_one:
            size, allowed = max(size // 8, least), allowed / 8
        num = max(1, int(min(TRIALS, 1 + (allowed * steps / size - once) / again)))
        left = allowed - size * (once + (num - 1) * again) / steps
        short = [_first_batch(c, method.local.batch_size) for c in clients[:: len(clients) // size]]
        return _Trials(short[:size], num, int(min(TRIALS, left - 1)))


def seconds(
    engine: Engine, method: GradientMethod, exchange: Exchange, allowed: float = math.inf
) -> float:
    """Seconds of one exchange, without the engine's start; infinity if the engine fails.

    Args:
        engine: Engine that accepts these clients.
        method: Method of the exchange, a dataclass with the field ``local``.
        exchange: The exchange, with the random stream of the timed steps.
        allowed: Number of exchanges that may take as long as the trials.
    """
    one_by_one = isinstance(engine, Sequential)
    trials = _Trials.of(method, exchange, allowed, one_by_one=one_by_one)
    if trials is None:
        return math.inf
    try:
        guess = _estimate(engine, method, exchange, trials)
        if guess > SHORT or trials.whole < 1:
            return guess
        return _least(engine, [method], exchange, trials.whole)[0]
    except RunStoppedError as error:
        logger.info("%r is not usable: %s", engine, error)
        return math.inf


def _estimate(engine: Engine, method: GradientMethod, exchange: Exchange, trials: _Trials) -> float:
    """Seconds of an exchange, extrapolated from epochs over first batches."""
    local, short = method.local, trials.clients
    few = [
        replace(method, local=replace(local, epochs=epochs))  # type: ignore[type-var]  # a dataclass
        for epochs in (FEW, MORE)
    ]
    first, more = _least(engine, few, exchange.of(short), trials.num)
    of_epoch = max(0.0, more - first) / (MORE - FEW)
    whole, timed = (_num_batches(some, local.batch_size) for some in (exchange.clients, short))
    besides = max(0.0, first - FEW * of_epoch) * len(exchange.clients) / len(short)
    return besides + of_epoch * local.epochs * whole / max(timed, 1)


def _least(
    engine: Engine, methods: Sequence[Method], exchange: Exchange, trials: int
) -> list[float]:
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
        return [min(timed(method) for _ in range(trials)) for method in methods]


def _num_batches(clients: Sequence[Client], batch_size: int | None) -> int:
    """Number of batches of all clients in an epoch.

    Args:
        clients: The clients.
        batch_size: Examples per step; ``None`` for all examples of the client.
    """
    return sum(-(-client.size // (batch_size or client.size or 1)) for client in clients)


def _first_batch(client: Client, batch_size: int | None) -> Client:
    if batch_size is None or client.size <= batch_size:
        return client
    return replace(client, train=client.train.part(torch.arange(batch_size)))
