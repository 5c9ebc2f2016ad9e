"""The end of a round on an accelerator before the host knows any number of the clients' updates.

The updates are aggregated and the next models scored as if every update were usable; then the host
reads all numbers at once. If an update turns out to be unusable, the result is discarded.
"""

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedbolic.core import tree
from fedbolic.core.log import logger
from fedbolic.core.rows import Row
from fedbolic.core.types import Tree
from fedbolic.federated.aggregators.update import AggregatedUpdate, Unread, Update
from fedbolic.federated.contract.engine import Exchange, Result
from fedbolic.federated.contract.method import Method
from fedbolic.federated.rounds.update_filter import row_of

MOST_BYTES = 2**30
"""Most bytes of payloads that are held until the host has read their numbers."""

Scored = Callable[[Tree, dict[int, Tree]], list[Row]]
"""Function from the next server state and new client states to the scores after a round."""


@dataclass(frozen=True, eq=False)
class Speculation:
    """Result of an exchange if all updates are usable.

    Args:
        total: The aggregated update.
        server_state: The next server state.
        scores: The scores after the round.
        num_updates: Number of updates.
        norm: Norm of the server state's tensors on the accelerator.
        warnings: Warnings of the computation, which nobody has seen.
    """

    total: AggregatedUpdate
    server_state: Tree
    scores: list[Row]
    num_updates: int
    norm: Unread
    warnings: list[logging.LogRecord]

    @classmethod
    def of(
        cls, exchange: Exchange, before: Tree, results: Iterator[Result], scored: Scored
    ) -> tuple["Speculation | None", Iterator[Result]]:
        """Aggregate and score unread results, and give an iterator over all results.

        There is no speculation if the numbers of a result are known or that raises an error.

        Args:
            exchange: Exchange of the clients.
            before: Server state before it.
            results: Results of an engine.
            scored: Scores the next states.
        """
        held, results = _taken(results)
        if not held:
            return None, results
        phase: Method = exchange.method
        updates: Iterator[tuple[int, Update]] = (
            (client.id, update) for client, update, _ in held if isinstance(update, Update)
        )
        try:
            with _warnings_held() as warnings:
                total = phase.aggregator.aggregate(updates)
                server_state = phase.server_update(before, total)
                norm = _norm(server_state)
                scores = scored(server_state, {client.id: own for client, _, own in held})
        except Exception:  # it is raised again if it was not for an unusable update
            return None, results
        return cls(total, server_state, scores, len(held), norm, warnings), results

    def confirmed(self, updates: list[tuple[int, Update]]) -> "Speculation | None":
        """The result, whose warnings are logged; ``None`` if it is discarded.

        It stands if all updates are usable and the server state is finite.

        Args:
            updates: The usable updates.
        """
        finite = all(bool(x.isfinite()) for x in self.norm.read())
        if not finite or len(updates) < self.num_updates:
            return None
        for record in self.warnings:
            logger.handle(record)
        return self


def _taken(results: Iterator[Result]) -> tuple[list[Result], Iterator[Result]]:
    """All results, if they are rows whose numbers the host has not read, and an iterator over them.

    If one is no such row, or their payloads have more than :data:`MOST_BYTES`, the list is empty.
    """
    held: list[Result] = []
    numbers, size, num_bytes = None, 0, 0
    for result in results:
        row = row_of(*result[1:])
        if row is None or row.numbers is None or row.numbers.unread.is_read:
            return [], itertools.chain(held, [result], results)
        if row.numbers is not numbers:  # rows of a stack have equal sizes
            numbers, size = row.numbers, tree.num_bytes(row.payload)
        num_bytes += size
        if num_bytes > MOST_BYTES:
            return [], itertools.chain(held, [result], results)
        held.append(result)
    return held, iter(held)


@contextlib.contextmanager
def _warnings_held() -> Iterator[list[logging.LogRecord]]:
    """Keep the warnings of a block from the log, in the list that is given."""
    held: list[logging.LogRecord] = []

    def passes(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            held.append(record)
        return record.levelno < logging.WARNING

    logger.addFilter(passes)
    try:
        yield held
    finally:
        logger.removeFilter(passes)


def _norm(server_state: Tree) -> Unread:
    """Norm of the tensors on an accelerator.

    Raises:
        ValueError: If a number elsewhere is not finite.
    """
    there = [x for x in tree.tensors(server_state).values() if x.device.type != "cpu"]
    known = {id(x) for x in there}
    if not tree.is_finite({p: x for p, x in tree.leaves(server_state) if id(x) not in known}):
        raise ValueError("the server state is not finite")
    floats = [x for x in there if x.is_floating_point() or x.is_complex()]
    return Unread([tree.rough_norm(floats)] if floats else [])
