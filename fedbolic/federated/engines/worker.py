"""One process of an engine that has several: its loop, and how it looks from outside."""

import contextlib
import functools
import heapq
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, Literal, TypeAlias, TypeVar

import torch

from fedbolic.data.client import Client, ClientSlices
from fedbolic.federated.engines.engine import Engine, Failure
from fedbolic.federated.engines.shared_memory import Extent, Place, SharedMemory
from fedbolic.federated.method import Method
from fedbolic.federated.update import Update
from fedbolic.rng import Rng
from fedbolic.types import Tree

SPAWN = multiprocessing.get_context("spawn")
"""A forked process would inherit torch's thread pools, and locks that other threads hold."""

EXIT_SECONDS = 5.0
"""Seconds that a process has to end by itself."""

Sent = TypeVar("Sent")

ById: TypeAlias = Mapping[int, Client] | ClientSlices
"""Clients by id: of a whole federation its sequence, in which each stands at its id."""

RequestKind: TypeAlias = Literal["updates", "scores"]

Reply = tuple[int, Update | Failure, Tree]
"""The id of a client, its update, its new memory."""


class WorkerError(RuntimeError):
    """A process ended before its work was done; the clients it still had are left out."""


@dataclass(frozen=True, eq=False)
class WorkerRequest:
    """One worker's share of an exchange.

    Args:
        kind: Whether updates are asked for, or scores: these come as the metrics of an update.
        method: Pickled.
        messages: What its clients received, by id, ascending.
        client_states: What its clients keep, by id.
        rng: The stream of the exchange.
        dtype: Torch's default.
        autocast: The dtype that operations are cast to; ``None`` if they are not.
    """

    kind: RequestKind
    method: bytes
    messages: dict[int, Tree]
    client_states: dict[int, Tree]
    rng: Rng
    dtype: torch.dtype
    autocast: torch.dtype | None


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """A block in which processes are started that never hear Ctrl-C, not even while they import."""
    resource_tracker.ensure_running()  # its start, which the first process brings, would unblock
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def worker_requests(
    kind: RequestKind,
    method: bytes,
    messages: Mapping[int, Tree],
    shares: Sequence[Sequence[Client]],
    client_states: Mapping[int, Tree],
    rng: Rng,
) -> list[WorkerRequest]:
    """One task for every share, to be done with the arithmetic of this process."""
    casts = torch.is_autocast_enabled("cpu")
    return [
        WorkerRequest(
            kind,
            method,
            {client.id: messages[client.id] for client in share},
            {client.id: client_states[client.id] for client in share if client.id in client_states},
            rng,
            torch.get_default_dtype(),
            torch.get_autocast_dtype("cpu") if casts else None,
        )
        for share in shares
    ]


def deal(clients: Sequence[Client], num: int) -> list[list[Client]]:
    """The clients in ``num`` shares of about as many examples, each in ascending order of id.

    The largest are dealt first, each to the share that has the fewest so far (Graham's rule).
    """
    shares: list[list[Client]] = [[] for _ in range(num)]
    loads = [(0, i) for i in range(num)]
    for client in sorted(clients, key=lambda client: (-client.size, client.id)):
        load, i = heapq.heappop(loads)
        shares[i].append(client)
        heapq.heappush(loads, (load + max(client.size, 1), i))
    return [sorted(share, key=lambda client: client.id) for share in shares]


def by_id(clients: Sequence[Client]) -> ById:
    """The clients to be looked up by id."""
    if isinstance(clients, ClientSlices):
        return clients
    return {client.id: client for client in clients}


def pickled(method: Method) -> bytes:
    """The method for a :class:`WorkerRequest`.

    Raises:
        ValueError: If it cannot be pickled.
    """
    try:
        return pickle.dumps(method)
    except Exception as error:
        raise ValueError(
            f"{type(method).__name__} cannot be sent to a process ({error}): define it in a module"
        ) from error


class Worker:
    """A process that works for clients, seen from the one that started it.

    Args:
        index: Its number, for messages.
        inner: How it loops its clients.
        data: Memory that holds all clients.
        clients: Where they lie there.
        down: Memory that holds its tasks.

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
        self.process = SPAWN.Process(target=run_worker, args=arguments, daemon=True)
        try:
            with deaf():
                self.process.start()
        finally:
            other.close()  # so that the end of the process ends the pipe

    def give(self, task: Extent, clients: Iterable[int]) -> None:
        """Hand over a task that was written to the memory of tasks, for clients of these ids."""
        self.pending = set(clients)
        with contextlib.suppress(OSError):  # it has just died: receive will tell
            self.connection.send(task)
            self.connection.send(None)

    def receive(self, given: Mapping[Place, Any]) -> dict[int, tuple[Update | Failure, Tree]]:
        """The result that the process sent, by client id; it must have sent something, or ended.

        Args:
            given: The tensors of its task, by place.

        Raises:
            WorkerError: If it has ended.
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
        except Exception as error:  # its form cannot be read here: a failure of this client
            update, client_state = Failure(error), {}
        self.pending.discard(client_id)
        if self.pending:
            with contextlib.suppress(OSError):
                self.connection.send(None)  # what it sent is copied, and may be written over
        return {client_id: (update, client_state)}

    def end(self, grace: float = EXIT_SECONDS) -> str:
        """See to it that the process is no more; how it ended.

        Args:
            grace: Seconds that it has to end by itself, which it does if it is idle.
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


def run_worker(
    connection: Connection,
    inner: Engine,
    data: SharedMemory,
    clients: Extent,
    down: SharedMemory,
    up: SharedMemory,
) -> None:
    """The life of a worker: task after task, until the other end of the pipe is closed.

    It says ``(None, None)`` once, when it is ready. A task is answered by one ``(client id, extent
    in up)`` per client, each sent when the other end has said that ``up`` may be written.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: one answers it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    held = by_id(data.read(clients)[0])
    with contextlib.suppress(EOFError, ConnectionError):  # the other end was closed
        connection.send((None, None))
        while True:
            task, given = down.read(connection.recv())
            write = functools.partial(_write, up, given)
            for client_id, update, client_state in results(inner, held, task):
                connection.recv()
                connection.send((client_id, sent(write, update, client_state)))
    sys.stdout.flush()
    os._exit(0)  # there is nothing to tidy, and Python would take a second for it


def results(inner: Engine, clients: ById, task: WorkerRequest) -> Iterator[Reply]:
    """One result for every client of a task, whatever happens."""
    left = dict.fromkeys(task.messages)
    fault: Exception = RuntimeError(f"{type(inner).__name__} gave no result for this client")
    torch.set_default_dtype(task.dtype)
    casts = {"enabled": task.autocast is not None, "cache_enabled": False}  # it would keep all
    cast = torch.autocast("cpu", task.autocast, **casts)
    try:
        method, share = _method(task.method), [clients[i] for i in task.messages]
        with cast:
            given = method, task.messages, share, task.client_states, task.rng
            for client_id, update, client_state in _replies(inner, task.kind, *given):
                del left[client_id]
                yield client_id, update, client_state
    except Exception as error:  # of the engine or in reading the method, not of a client
        fault = error
    for client_id in left:
        yield client_id, Failure(fault), {}


def _replies(
    inner: Engine,
    kind: RequestKind,
    method: Method,
    messages: Mapping[int, Tree],
    clients: Sequence[Client],
    client_states: Mapping[int, Tree],
    rng: Rng,
) -> Iterator[Reply]:
    if kind == "scores":
        for client_id, scores in inner.scores(
            method, messages, clients, client_states, rng
        ).items():
            yield client_id, Update({}, metrics=scores), {}
        return
    for client, update, client_state in inner.run(method, messages, clients, client_states, rng):
        yield client.id, update, client_state


@functools.lru_cache(maxsize=1)
def _method(text: bytes) -> Method:
    return pickle.loads(text)


def sent(send: Callable[[object], Sent], update: Update | Failure, client_state: Tree) -> Sent:
    """Send a result, or the client's failure if the result cannot be sent."""
    if isinstance(update, Failure):
        update = Failure(_portable(update.error))
    try:
        return send((update, client_state))
    except Exception as error:
        return send((Failure(_portable(error)), {}))


def _write(up: SharedMemory, given: Mapping[Place, Any], value: object) -> Extent:
    (extent,), _ = up.write([value], given)
    return extent


def _portable(error: Exception) -> Exception:
    """The error, or its words in one that another process can read."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _end_with_parent() -> None:
    """End this process as soon as the one that started it is gone, whatever it is doing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
