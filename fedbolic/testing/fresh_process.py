"""Answers of a method in a process that has not seen it before."""

import contextlib
import functools
import hashlib
import itertools
import multiprocessing
import pickle
import secrets
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

import torch

from fedbolic.core.types import Tree
from fedbolic.federated import Method
from fedbolic.federated.processes.worker import deaf
from fedbolic.testing.recording import RecordedExchange


@contextlib.contextmanager
def fixed_secrets() -> Iterator[None]:
    """Context manager in which the module ``secrets`` draws the same numbers every time."""
    numbers = itertools.count()

    def token_bytes(size: int = 32) -> bytes:
        return hashlib.shake_256(str(next(numbers)).encode()).digest(size)

    def randbelow(bound: int) -> int:
        return int.from_bytes(token_bytes(64), "big") % bound

    with mock.patch.multiple(secrets, token_bytes=token_bytes, randbelow=randbelow):
        yield


def answers(method: Method, exchange: RecordedExchange) -> Tree:
    """Results of an exchange and scores before and after it, computed again with fixed secrets.

    Two clients stand for all of them.

    Args:
        method: Method that scores the clients.
        exchange: The exchange.
    """
    x, found = exchange, {}
    for client in x.clients[:2]:
        with fixed_secrets():
            update, kept = x.work(client)
        found[f"client {client.id}"] = {**vars(update), "kept": kept}
        held = {"before": (x.server_state, x.client_states), "after": (x.next, x.kept)}
        for time, (server_state, client_states) in held.items():
            message = method.broadcast(server_state, client.id)
            with fixed_secrets():
                scores = method.evaluate(message, client, client_states[client.id], x.rng)
            found[f"client {client.id}"][time] = scores
    total = x.phase.aggregator.aggregate(x.updates.items())
    return {**found, "total": total.payload, "next": x.phase.server_update(x.server_state, x.total)}


def answers_elsewhere(method: Method, exchange: RecordedExchange) -> Tree:
    """Result of :func:`answers` for pickled copies, from another process.

    The process is the same for all calls: it knows what earlier calls have sent, and no more.

    Args:
        method: As for :func:`answers`.
        exchange: As for :func:`answers`.
    """
    given = pickle.dumps((method, exchange))
    with deaf():
        return pickle.loads(_process().submit(_pickled_answers, given).result())


def _pickled_answers(given: bytes) -> bytes:
    return pickle.dumps(answers(*pickle.loads(given)))


@functools.cache
def _process() -> ProcessPoolExecutor:
    anew, threads = multiprocessing.get_context("spawn"), (torch.get_num_threads(),)
    return ProcessPoolExecutor(1, anew, initializer=torch.set_num_threads, initargs=threads)
