"""Validation and counting of client updates before aggregation."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Real
from typing import Any

from torch import Tensor

from fedbolic.core import tree
from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.core.types import Params, Tree
from fedbolic.federated.aggregators.aggregator import Additive, Aggregator
from fedbolic.federated.aggregators.channel import Channel
from fedbolic.federated.aggregators.update import (
    MOST_WEIGHT,
    OUTLYING,
    RowNumbers,
    StackedRow,
    Update,
    counts_of,
    norm_of,
    on_host,
    rough_norm_of,
)
from fedbolic.federated.contract.engine import Failure, Result, RunStoppedError
from fedbolic.federated.contract.method import Method

READ_TOGETHER = 16
"""Results on an accelerator whose numbers are read by one transfer, for which the host waits."""

UNKNOWN = RowNumbers(math.nan, {}, {})
"""Numbers of a result of which the host knows none."""


class UpdateFilter:
    """Separates the results of an engine into usable updates and failures, and counts both.

    A failure is an error, a value that is not finite or beyond the bounds of the method, or a form
    other than its template. It is left out with a warning, before any channel; its client keeps its
    previous state.

    Args:
        phase: Method of this exchange.
        messages: Message to every client, by id.
        channels: Transformations of updates on the wire.
        rng: Random stream of this exchange.
    """

    def __init__(
        self,
        phase: Method,
        messages: Mapping[int, Tree],
        channels: tuple[Channel, ...],
        rng: Rng,
    ) -> None:
        self.phase, self.messages, self.channels, self.rng = phase, messages, channels, rng
        self.client_states: dict[int, Tree] = {}
        self.metrics: dict[int, dict[str, float]] = {}
        self.norms: dict[int, float] = {}
        self.bytes_up = 0
        self._examined: _Examined | None = None
        self._template: tuple[Tree, dict[str, str] | None] = {}, None

    def usable(self, results: Iterator[Result]) -> Iterator[tuple[int, Update]]:
        """Yield the usable updates as they arrive, in ascending order of client id."""
        form = None
        for client, update, client_state, known_numbers in self._read(results):
            expected = self._expected(client.id, form)
            aggregator = self.phase.aggregator
            examined = self._examined
            known = examined is not None and examined.covers(update, client_state, expected)
            fault = find_update_fault(
                update,
                client_state,
                expected,
                aggregator,
                bounds=functools.partial(self._find_outside, client.id, known_numbers.counts),
                norm=known_numbers.norm,
                examined=known,
            )
            if fault is not None or isinstance(update, Failure):
                logger.warning("client %d is left out of this exchange: %s", client.id, fault)
                continue
            if isinstance(self.phase.aggregator, Additive):  # the first sets the form of the sum
                form = form or tree.signature(self.phase.aggregator.form(update.payload))
            if examined is None or not known:
                examined = self._examined = _Examined(update, client_state, expected)
            update = _detached(update, examined=known)
            whole = update.payload
            for i, channel in enumerate(self.channels):
                stream = self.rng.at("client", client.id, "channel", i)
                update = channel.send(update, client, stream)
            self.client_states[client.id] = client_state
            self.metrics[client.id] = {n: float(value) for n, value in update.metrics.items()}
            sent = update.payload
            self.bytes_up += examined.num_bytes if sent is whole else tree.num_bytes(sent)
            yield client.id, update

    def _expected(self, client_id: int, form: dict[str, str] | None) -> dict[str, str] | None:
        """Form of a payload by the template; without one, ``form``."""
        message, (last, expected) = self.messages[client_id], self._template
        if message is not last:  # most messages are the same object
            template = self.phase.template(message)
            expected = None if template is None else tree.signature(template)
            self._template = message, expected
        return form if expected is None else expected

    def _find_outside(
        self, client_id: int, counts: Params, payload: Tree, norm: float
    ) -> str | None:
        self.norms[client_id] = norm
        return self.phase.find_fault(self.messages[client_id], {**payload, **counts}, norm)

    def find_outliers(self, *, round: int, repeatable: bool) -> list[int]:
        """Ids of the clients without whom an exchange is attempted again, with a warning.

        No bound on single updates excludes that the server's state becomes infinite. Then the
        exchange is attempted once more, without the clients whose updates were suspiciously long
        for their messages: they are not asked again in this run. Nothing is rewound: clients keep
        what they kept, the costs of both attempts are counted, and the attempt's number is part of
        every random stream, since two results with the same noise would differ by that noise no
        more.

        Args:
            round: Number of the round, from 1.
            repeatable: Whether clients may be asked again.

        Raises:
            RunStoppedError: If they may not, or no client or every client is an outlier.
        """
        most = {i: OUTLYING * (1 + norm_of(self.messages[i])) for i in self.client_states}
        outliers = [i for i in most if repeatable and not self.norms[i] <= most[i]]
        if not outliers or len(outliers) == len(self.client_states):
            raise RunStoppedError(
                f"round {round}: the server's state would hold NaN or infinite values although "
                "every update was finite: use a smaller step size"
            )
        logger.warning(
            "round %d is repeated without clients %s, which are not asked again: with their "
            "updates, the server's state would hold NaN or infinite values",
            round,
            outliers,
        )
        return outliers

    def _read(self, results: Iterator[Result]) -> Iterator[tuple[*Result, RowNumbers]]:
        """Results with metrics on the host, and numbers that the host knows.

        Nothing is done ahead on the CPU, where no transfer is saved.
        """
        sent = next(iter(self.messages.values()), {})
        if all(x.device.type == "cpu" for x in tree.tensors(sent).values()):
            for result in results:
                yield *result, _known_of(row_of(*result[1:]))
            return
        waiting: list[Result] = []
        for result in results:
            waiting.append(result)
            if len(waiting) == READ_TOGETHER:
                yield from _numbers_read(waiting)
                waiting = []
        yield from _numbers_read(waiting)

    def counts(self) -> dict[str, float]:
        """Costs: bytes of messages and of payloads, clients asked and clients left out."""
        counts = {
            "bytes/down": _sum_of_bytes(self.messages.values()),
            "bytes/up": self.bytes_up,
            "clients/asked": len(self.messages),
            "clients/failed": len(self.messages) - len(self.metrics),
        }
        return {name: float(count) for name, count in counts.items()}


def _sum_of_bytes(messages: Iterable[Tree]) -> int:
    """Bytes of all messages; most hold the same leaves, whose bytes are then counted once."""
    known: dict[tuple[int, ...], int] = {}
    total = 0
    for message in messages:
        key = tuple(map(id, tree.values(message)))
        if key not in known:
            known[key] = tree.num_bytes(message)
        total += known[key]
    return total


def find_update_fault(
    update: object,
    client_state: object,
    expected: Mapping[str, str] | None,
    aggregator: Aggregator | None = None,
    *,
    bounds: Callable[[Tree, float], str | None] | None = None,
    norm: float = math.nan,
    examined: bool = False,
) -> str | None:
    """Reason why an update cannot be used, as text; ``None`` if it can.

    Args:
        update: Result of the engine, of any type.
        client_state: Client state to keep, of any type.
        expected: Signature that the form of the payload must have; ``None`` if any is valid.
        aggregator: Aggregator that gives the form of the payload and also examines the update;
            ``None`` for the payload's own form and no further examination.
        bounds: Function of the payload and of a bound of its norm that finds numbers which the
            method does not allow.
        norm: As in :class:`~fedbolic.federated.aggregators.update.RowNumbers`.
        examined: True if results with the same names, shapes and dtypes have passed before.
    """
    try:
        if isinstance(update, Failure):
            return f"{type(update.error).__name__}: {update.error}"
        if not isinstance(update, Update):
            return f"it returned {type(update).__name__} instead of an Update"
        fault = None
        if not examined:
            fault = _find_fault_of_form(update, client_state, expected, aggregator)
        return fault or _find_fault_of_numbers(update, client_state, aggregator, bounds, norm)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a client returns, only that client is left out
        return f"its result cannot be examined: {type(error).__name__}"


def _find_fault_of_form(
    update: Update,
    client_state: Any,
    expected: Mapping[str, str] | None,
    aggregator: Aggregator | None,
) -> str | None:
    for name, part in (("payload", update.payload), ("client state", client_state)):
        if (fault := tree.find_tree_fault(part)) is not None:
            return f"its {name} is not a tree: {fault}"
    payload = update.payload
    form = tree.signature(payload if aggregator is None else aggregator.form(payload))
    if expected is not None and form != expected:
        places = sorted({place for place, _ in form.items() ^ expected.items()})[:2]
        came = "; ".join(
            f"{place} is {form.get(place, 'missing')}, expected {expected.get(place, 'nothing')}"
            for place in places
        )
        return f"its payload has another form than its method's template: {came}"
    return None


def _find_fault_of_numbers(
    update: Update,
    client_state: Any,
    aggregator: Aggregator | None,
    bounds: Callable[[Tree, float], str | None] | None,
    norm: float,
) -> str | None:
    if not (_is_number(update.weight) and 0 <= update.weight <= MOST_WEIGHT):
        return f"its weight is {update.weight!r:.80}"
    if not isinstance(update.metrics, Mapping) or not all(map(_is_metric, update.metrics.items())):
        return f"its metrics are not numbers by name: {update.metrics!r:.80}"
    both = {"payload": update.payload, "client_state": client_state}
    norm = norm if math.isfinite(norm) else rough_norm_of(both)
    if not math.isfinite(norm) and not tree.is_finite(both):
        return "its update holds NaN or infinite values"
    # the aggregator first: the bounds rely on the form of a part, such as some rows of a table
    fault = None if aggregator is None else aggregator.find_fault(update)
    return fault or (bounds(update.payload, norm) if bounds else None)


def _detached(update: Update, *, examined: bool) -> Update:
    """The update without gradient history, and with a number of Python's own as its weight."""
    if not examined and any(x.requires_grad for x in tree.tensors(update.payload).values()):
        update = dataclasses.replace(
            update, payload=tree.map_tensors(Tensor.detach, update.payload)
        )
    if type(update.weight) in (int, float):
        return update
    return dataclasses.replace(update, weight=float(update.weight))


def _is_metric(metric: tuple[object, object]) -> bool:
    name, value = metric
    if isinstance(value, Tensor):
        scalar = tree.find_tree_fault({"": value}) is None and not value.ndim
        return tree.is_text(name) and scalar and not value.is_complex()
    return tree.is_text(name) and _is_number(value)


def _is_number(value: object) -> bool:
    """True for a number that fits a float, as NaN and infinity do and 10 ** 400 does not."""
    if type(value) is float:
        return True
    if not isinstance(value, Real):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


class _Examined:
    """Form of a result that has passed its examination, for those that have the same.

    Args:
        update: Update that has passed.
        client_state: The client state that was computed with it.
        expected: Form that was expected.
    """

    def __init__(
        self, update: Update, client_state: Tree, expected: Mapping[str, str] | None
    ) -> None:
        self.stack, self.expected = update.stack, expected
        self.num_bytes = tree.num_bytes(update.payload)
        self.kinds = tree.kind(update.payload), tree.kind(client_state)

    def covers(
        self, update: object, client_state: object, expected: Mapping[str, str] | None
    ) -> bool:
        """True if the result is a row of the same stack, or a tree of the same kind."""
        if not isinstance(update, Update) or self.expected != expected:
            return False
        row = row_of(update, client_state)
        if row is not None and row.stack is not None and row.stack is self.stack:
            return True
        payload, state = self.kinds
        return tree.is_of_kind(update.payload, payload) and tree.is_of_kind(client_state, state)


def row_of(update: object, client_state: object) -> StackedRow | None:
    """Row of a stack in which an engine left exactly these results, if there is one.

    Args:
        update: Result of an engine, of any type.
        client_state: The client state that came with it.
    """
    if not isinstance(update, Update) or update.row is None:
        return None
    row = update.row
    return row if row.payload is update.payload and row.client_state is client_state else None


def _known_of(row: StackedRow | None) -> RowNumbers:
    """Numbers that an engine has computed for a row."""
    return row.numbers.rows[row.index] if row and row.numbers else UNKNOWN


def _numbers_read(results: list[Result]) -> Iterator[tuple[*Result, RowNumbers]]:
    """Results whose metrics have been read, and numbers that the host knows."""
    numbers = [_numbers_of(update, client_state) for _, update, client_state in results]
    found = iter(on_host([x for of_client in numbers for x in of_client.values()]))
    for (client, update, client_state), of_client in zip(results, numbers, strict=True):
        read = {place: next(found) for place in of_client}
        known = _known_of(row_of(update, client_state))
        if read and isinstance(update, Update):
            metrics = {name: float(x) for (kind, name), x in read.items() if kind == "metric"}
            update = dataclasses.replace(update, metrics={**update.metrics, **metrics})
            counts = {name: x for (kind, name), x in read.items() if kind == "count"}
            known = RowNumbers(float(read["norm", ""]), counts, metrics)
        yield client, update, client_state, known


def _numbers_of(update: Update | Failure, client_state: Tree) -> dict[tuple[str, str], Tensor]:
    """Numbers on an accelerator by kind and name: metrics, counts, and the norm of all floats.

    It is empty if the result cannot be examined like that, whatever it holds.
    """
    known = _known_of(row_of(update, client_state))
    if not isinstance(update, Update) or math.isfinite(known.norm):
        return {}
    try:
        both = {"payload": update.payload, "client_state": client_state}
        if tree.find_tree_fault(both) is not None:
            return {}
        floats = [x for x in tree.tensors(both).values() if x.is_floating_point()]
        cpu = [x for x in floats if x.device.type == "cpu"]
        numbers = [x for x in tree.values(both) if isinstance(x, float)]
        elsewhere = math.hypot(*numbers, *([float(tree.rough_norm(cpu))] if cpu else []))
        floats = [x for x in floats if x.device.type != "cpu"]
        metrics = {n: x for n, x in update.metrics.items() if isinstance(x, Tensor) and not x.ndim}
        devices = {x.device for x in (*floats, *metrics.values())}
        if len(devices) != 1 or not floats or not math.isfinite(elsewhere):
            return {}
        norm, counts = tree.rough_norm(floats), counts_of(update.payload)
        counts = {name: x for name, x in counts.items() if x.device in devices}
        return {
            **{("metric", name): x for name, x in metrics.items()},
            **{("count", name): x for name, x in counts.items()},
            ("norm", ""): norm + elsewhere if elsewhere else norm,
        }
    except Exception:  # the examination that follows says what is wrong
        return {}
