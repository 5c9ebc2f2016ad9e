"""Worker processes of this machine that share the clients of an exchange."""

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.log import logger
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client, ClientSlices
from fedbolic.federated.aggregators.update import Update
from fedbolic.federated.contract.engine import Engine, Exchange, Failure, Result, RunStoppedError
from fedbolic.federated.contract.method import Method
from fedbolic.federated.engines.sequential import Sequential
from fedbolic.federated.processes.shared_memory import Place, SharedMemory
from fedbolic.federated.processes.worker import (
    EXIT_SECONDS,
    RequestKind,
    Worker,
    WorkerError,
    by_id,
    deal,
    pickled,
    worker_requests,
)

AT_ONCE = 4096
"""Clients that are sent to the workers in one request for scores."""


@dataclass(frozen=True)
class Workers(Engine):
    """Processes with one torch thread each, every one running a share of the clients.

    The processes are started once and kept for all rounds of a run. All clients' data are copied
    once to shared memory; messages, client states and updates go through shared memory, too. The
    largest clients are assigned first, each to the worker with the fewest examples so far.

    Results equal those of ``inner`` bit for bit for any number of workers, provided that the result
    of ``inner`` for a client does not depend on the other clients, as with :class:`Sequential`.
    For the same reason workers do not sum updates: the rounding of a sum of partial sums would
    depend on the assignment of clients to workers.

    A worker that dies, by a signal or from lack of memory, is replaced; its unfinished clients
    fail in that exchange.

    Args:
        num: Number of processes, at least 1; more processes than cores do not help.
        inner: Engine that runs the clients of each worker.

    Raises:
        ValueError: If ``num`` is below 1 or ``inner`` is itself a ``Workers``.

    Example:
        >>> Workers(num=4)
        Workers(num=4, inner=Sequential())
    """

    num: int = 2
    inner: Engine = Sequential()

    def __post_init__(self) -> None:
        check.at_least(1, num=self.num)
        if isinstance(self.inner, Workers):
            raise ValueError("inner must work in one process, got Workers: give num a larger value")

    @override
    def check(self, clients: Sequence[Client]) -> None:
        some = clients[:1] if isinstance(clients, ClientSlices) else clients  # one storage
        devices = {client.no_inputs.device.type for client in some}
        if devices - {"cpu"}:
            raise ValueError(
                f"Workers share the CPU, but the data are on {devices}: use device cpu"
            )
        self.inner.check(clients)

    @override
    def open(self, clients: Sequence[Client]) -> "_Pool":
        self.check(clients)
        return _Pool(self.num, self.inner, clients)

    @override
    def run(self, exchange: Exchange) -> Iterator[Result]:
        with self.open(exchange.clients) as pool:
            yield from pool.run(exchange)


class _Pool(Engine):
    """The running processes of :class:`Workers`; leaving the context stops them.

    Args:
        num: Number of processes, at least 1.
        inner: Engine that runs the clients of each worker.
        clients: All clients that the workers may run.
    """

    def __init__(self, num: int, inner: Engine, clients: Sequence[Client]) -> None:
        self.num, self.inner = num, inner
        self.clients = by_id(clients)
        self.data, self.down = SharedMemory(), SharedMemory()
        (self.extent,), _ = self.data.write([clients])
        self.workers: dict[int, Worker] = {}
        self.faults: dict[int, str] = {}
        self.given: dict[Place, Tensor] = {}
        self.method: tuple[Method | None, bytes] = (None, b"")

    def __enter__(self) -> "_Pool":
        for index in range(self.num):
            self._start(index)
        return self

    def __exit__(self, *raised: object) -> None:
        for worker in self.workers.values():
            worker.connection.close()
        for worker in self.workers.values():
            worker.end(EXIT_SECONDS if worker.ready and not worker.pending else 0.0)
        self.workers = {}

    @override
    def run(self, exchange: Exchange) -> Iterator[Result]:
        results = self._results("updates", exchange)
        with contextlib.closing(results):
            for client, update, client_state in results:
                old = exchange.state(client)
                yield client, update, old if isinstance(update, Failure) else client_state

    @override
    def scores(self, exchange: Exchange) -> dict[int, dict[str, float]]:
        found = {}
        for start in range(0, len(exchange.clients), AT_ONCE):
            some = exchange.of(exchange.clients[start : start + AT_ONCE])
            for client, update, _ in self._results("scores", some):
                if isinstance(update, Failure):
                    if isinstance(update.error, WorkerError):
                        raise RunStoppedError(f"a client cannot be scored: {update.error}")
                    raise update.error
                found[client.id] = update.metrics
        return found

    def _results(self, kind: RequestKind, exchange: Exchange) -> Generator[Result, None, None]:
        """Results of all clients, in the order given."""
        clients = exchange.clients
        if unknown := [c.id for c in clients if not self._holds(c)]:
            raise ValueError(f"the workers do not hold the data of clients {unknown[:10]}")
        if any(worker.pending for worker in self.workers.values()):
            raise ValueError("the workers run another exchange: end it or open another pool")
        found: dict[int, tuple[Update | Failure, Tree]] = {}
        try:
            self._hand_out(kind, exchange)
            for client in clients:
                while client.id not in found:
                    found |= self._listen()
                yield client, *found.pop(client.id)
        finally:
            self.given = {}
            for index, worker in list(self.workers.items()):
                if worker.pending:  # the caller stopped iterating early
                    self.workers.pop(index).end(0.0)

    def _holds(self, client: Client) -> bool:
        try:
            return self.clients[client.id] is client
        except LookupError:
            return False

    def _hand_out(self, kind: RequestKind, exchange: Exchange) -> None:
        """Send every worker its share of the exchange."""
        if exchange.method is not self.method[0]:
            self.method = (exchange.method, pickled(exchange.method))
        workers = self._ready()
        shares = [share for share in deal(exchange.clients, len(workers)) if share]
        work = worker_requests(kind, self.method[1], exchange, shares)
        extents, self.given = self.down.write(work)
        for worker, task, extent in zip(workers, work, extents, strict=False):
            worker.give(extent, task.messages)

    def _start(self, index: int) -> None:
        """Start a worker, or record the reason why it cannot be started."""
        try:
            self.workers[index] = Worker(index, self.inner, self.data, self.extent, self.down)
        except OSError as error:
            self.faults[index] = f"worker {index} cannot be started: {error}"

    def _ready(self) -> list[Worker]:
        """The workers that could be started, each ready for a task.

        Raises:
            RunStoppedError: If no worker could be started.
        """
        self.faults = {}
        self._listen(timeout=0.0)  # notice workers that died since the last exchange
        for index in range(self.num):
            if index not in self.workers:
                self._start(index)
        while not all(worker.ready for worker in self.workers.values()):
            self._listen()
        faults = "; ".join(self.faults.values())
        if not self.workers:
            raise RunStoppedError(f"no worker could be started: {faults}")
        if faults:
            logger.warning("%d of %d workers remain: %s", len(self.workers), self.num, faults)
        return [self.workers[index] for index in sorted(self.workers)]

    def _listen(self, timeout: float | None = None) -> dict[int, tuple[Update | Failure, Tree]]:
        """Wait for messages of the workers and return the results among them, by client id.

        A worker that died is restarted, unless it died before it was ready.

        Args:
            timeout: Maximum wait in seconds, at least 0; ``None`` to wait for the next message.
        """
        found: dict[int, tuple[Update | Failure, Tree]] = {}
        sources: dict[Any, int] = {}
        for index, worker in self.workers.items():
            sources |= {worker.connection: index, worker.process.sentinel: index}
        for index in {sources[source] for source in connection.wait(list(sources), timeout)}:
            worker = self.workers[index]
            try:
                found |= worker.receive(self.given)
            except WorkerError as error:
                del self.workers[index]
                lost = WorkerError(f"{error} before it finished this client")
                found |= {client_id: (Failure(lost), {}) for client_id in worker.pending}
                if worker.ready:
                    self._start(index)
                else:
                    self.faults[index] = f"{error} before it was ready"
        return found
