"""A worker process of an engine: its main loop, and its handle in the parent process."""

import contextlib
import dataclasses
import functools
import heapq
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, Literal, TypeAlias

import torch

from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client, ClientSlices
from fedbolic.federated.aggregators.update import Update
from fedbolic.federated.contract.engine import Engine, Exchange, Failure
from fedbolic.federated.contract.method import Method
from fedbolic.federated.processes.shared_memory import Extent, Place, SharedMemory
from fedbolic.federated.scores.metrics import Metric, measured, measuring

SPAWN = multiprocessing.get_context("spawn")
"""Processes are spawned: a fork would inherit torch's thread pools and locks of other threads."""

EXIT_SECONDS = 5.0
"""Seconds that a process has to exit before it is killed."""

ById: TypeAlias = Mapping[int, Client] | ClientSlices
"""Clients by id; the sequence of a whole federation qualifies, as its indices are the ids."""

RequestKind: TypeAlias = Literal["updates", "scores"]

Reply = tuple[int, Update | Failure, Tree]
"""Id of a client, its update and its new client state."""


class WorkerError(RuntimeError):
    """A worker process ended early; the clients it had not finished are left out."""


@dataclass(frozen=True, eq=False)
class WorkerRequest:
    """One worker's share of an exchange.

    Args:
        kind: ``updates`` or ``scores``; scores are returned as the metrics of an update.
        method: The pickled method.
        messages: Message to each of the worker's clients, by ascending id.
        client_states: State of each client that has one, by id.
        rng: Random stream of the exchange.
        dtype: Torch's default dtype.
        autocast: Dtype of torch's autocast on the CPU; ``None`` if autocast is off.
        metrics: Additional scores that the process of the trainer measures.
    """

    kind: RequestKind
    method: bytes
    messages: dict[int, Tree]
    client_states: dict[int, Tree]
    rng: Rng
    dtype: torch.dtype
    autocast: torch.dtype | None
    metrics: tuple[Metric, ...] = ()


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """Context manager in which started processes ignore Ctrl-C, even while they import."""
    resource_tracker.ensure_running()  # its start, by the first process, would unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def worker_requests(
    kind: RequestKind, method: bytes, exchange: Exchange, shares: Sequence[Sequence[Client]]
) -> list[WorkerRequest]:
    """One request per share, with the dtype, autocast setting and metrics of this process.

    Args:
        kind: Work of the clients.
        method: The pickled method.
        exchange: The exchange of all clients.
        shares: Clients of each request.
    """
    states, casts = exchange.client_states, torch.is_autocast_enabled("cpu")
    return [
        WorkerRequest(
            kind,
            method,
            {client.id: exchange.messages[client.id] for client in share},
            {client.id: states[client.id] for client in share if client.id in states},
            exchange.rng,
            torch.get_default_dtype(),
            torch.get_autocast_dtype("cpu") if casts else None,
            measured(),
        )
        for share in shares
    ]


def deal(clients: Sequence[Client], num: int) -> list[list[Client]]:
    """Split clients into ``num`` shares of nearly equal work, each in ascending order of id.

    The work of a client is its number of examples. The largest clients are assigned first, each
    to the share with the least work so far (Graham's rule).
    """
    shares: list[list[Client]] = [[] for _ in range(num)]
    loads = [(0, i) for i in range(num)]
    for client in sorted(clients, key=lambda client: (-client.size, client.id)):
        load, i = heapq.heappop(loads)
        shares[i].append(client)
        heapq.heappush(loads, (load + max(client.size, 1), i))
    return [sorted(share, key=lambda client: client.id) for share in shares]


def by_id(clients: Sequence[Client]) -> ById:
    """Mapping from id to client, without a copy if the sequence already is one."""
    if isinstance(clients, ClientSlices):
        return clients
    return {client.id: client for client in clients}


def pickled(method: Method) -> bytes:
    """The method as bytes for a :class:`WorkerRequest`.

    Raises:
        ValueError: If the method cannot be pickled.
    """
    try:
        return pickle.dumps(method)
    except Exception as error:
        raise ValueError(
            f"{type(method).__name__} cannot be sent to a process ({error}): define it in a module"
        ) from error


class Worker:
    """Handle of a worker process in the process that started it.

    Args:
        index: Number of the worker, for error messages.
        inner: Engine that runs the worker's clients.
        data: Shared memory that holds all clients.
        clients: Position of the clients in ``data``.
        down: Shared memory through which the worker receives its tasks.

    Raises:
        OSError: If the process cannot be started.
    """

    def __init__(
        self, index: int, inner: Engine, data: SharedMemory, clients: Extent, down: SharedMemory
    ) -> None:
        self.index, self.up = index, SharedMemory()
        self.ready = False
        self.pending: set[int] = set()
        self.connection, other = SPAWN.Pipe()
        arguments = (other, inner, data, clients, down, self.up)
        self.process = SPAWN.Process(target=_run_worker, args=arguments, daemon=True)
        try:
            with deaf():
                self.process.start()
        finally:
            other.close()  # otherwise the pipe would stay open when the process ends

    def give(self, task: Extent, clients: Iterable[int]) -> None:
        """Send the worker a task that was written to ``down``, for the clients with these ids."""
        self.pending = set(clients)
        with contextlib.suppress(OSError):  # the worker has died: receive reports it
            self.connection.send(task)
            self.connection.send(None)

    def receive(self, given: Mapping[Place, Any]) -> dict[int, tuple[Update | Failure, Tree]]:
        """Result that the worker sent, by client id; empty if it only reported that it is ready.

        Call this once the worker has sent something or has ended.

        Args:
            given: Tensors of the worker's task, by place.

        Raises:
            WorkerError: If the process has ended.
        """
        try:
            said = self.connection.recv() if self.connection.poll() else None
        except (EOFError, OSError):
            said = None
        if said is None:
            raise WorkerError(self.end())
        client_id, extent = said
        if extent is None:
            self.ready = True
            return {}
        try:
            (update, client_state), _ = self.up.read(extent, given, copy=True)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the result cannot be unpickled here: this client fails
            update, client_state = Failure(error), {}
        self.pending.discard(client_id)
        if self.pending:
            with contextlib.suppress(OSError):
                self.connection.send(None)  # the result is copied: `up` may be overwritten
        return {client_id: (update, client_state)}

    def end(self, grace: float = EXIT_SECONDS) -> str:
        """Stop the process and describe its exit.

        Args:
            grace: Seconds that the process has to exit, at least 0; then it is killed. An idle
                process exits when the pipe is closed.
        """
        self.connection.close()
        self.process.join(grace)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        code, name = self.process.exitcode or 0, f"worker {self.index} (process {self.process.pid})"
        self.process.close()
        if code < 0:
            return f"{name} was killed by {signal.Signals(-code).name}"
        return f"{name} ended with exit code {code}"


def _run_worker(
    connection: Connection,
    inner: Engine,
    data: SharedMemory,
    clients: Extent,
    down: SharedMemory,
    up: SharedMemory,
) -> None:
    """Main loop of a worker process, which ends when the parent closes the pipe.

    The worker sends ``(None, None)`` once, when it is ready. For a task it sends one ``(client id,
    extent in up)`` per client, each after the parent has signalled that ``up`` may be overwritten.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent acts
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    held = by_id(data.read(clients)[0])
    with contextlib.suppress(EOFError, ConnectionError):  # the parent closed the pipe
        connection.send((None, None))
        while True:
            task, given = down.read(connection.recv())
            for client_id, update, client_state in results(inner, held, task):
                connection.recv()
                connection.send((client_id, _write(up, given, update, client_state)))
    sys.stdout.flush()
    os._exit(0)  # nothing needs cleanup, and Python's would take a second


def results(inner: Engine, clients: ById, task: WorkerRequest) -> Iterator[Reply]:
    """One result per client of a task; clients without a result of the engine are failures."""
    left = dict.fromkeys(task.messages)
    fault: Exception = RuntimeError(f"{type(inner).__name__} gave no result for this client")
    torch.set_default_dtype(task.dtype)
    casts = {"enabled": task.autocast is not None, "cache_enabled": False}  # or it keeps every cast
    cast = torch.autocast("cpu", task.autocast, **casts)
    try:
        method, share = _method(task.method), [clients[i] for i in task.messages]
        with cast, measuring(task.metrics):
            exchange = Exchange(method, task.messages, share, task.client_states, task.rng)
            for client_id, update, client_state in _replies(inner, task.kind, exchange):
                del left[client_id]
                yield client_id, update, client_state
    except Exception as error:  # from the engine or from unpickling the method, not from one client
        fault = error
    for client_id in left:
        yield client_id, Failure(fault), {}


def _replies(inner: Engine, kind: RequestKind, exchange: Exchange) -> Iterator[Reply]:
    if kind == "scores":
        for client_id, scores in inner.scores(exchange).items():
            yield client_id, Update({}, metrics=scores), {}
        return
    for client, update, client_state in inner.run(exchange):
        yield client.id, update, client_state


@functools.lru_cache(maxsize=1)
def _method(text: bytes) -> Method:
    return pickle.loads(text)


def _write(
    up: SharedMemory, given: Mapping[Place, Any], update: Update | Failure, client_state: Tree
) -> Extent:
    """Write a client's result, or a failure if the result cannot be pickled."""
    if isinstance(update, Failure):
        update = Failure(_portable(update.error))
    elif isinstance(update, Update):
        update = dataclasses.replace(update, row=None)  # its stack has the results of all clients
    try:
        (extent,), _ = up.write([(update, client_state)], given)
    except BaseException as error:  # Ctrl-C is ignored in a worker
        (extent,), _ = up.write([(Failure(_portable(error)), {})], given)
    return extent


def _portable(error: BaseException) -> BaseException:
    """The error if it survives pickling, otherwise a ``RuntimeError`` with its text."""
    with contextlib.suppress(BaseException):
        return pickle.loads(pickle.dumps(error))
    with contextlib.suppress(BaseException):
        return RuntimeError(f"{type(error).__name__}: {error}")
    return RuntimeError(type(error).__name__)


def _end_with_parent() -> None:
    """Exit this process at once, even in the middle of a task, when its parent has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
