"""Stacked execution of clients: one forward and one backward pass for many of them."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.log import log_fallback, logger
from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.update import Update
from fedbolic.federated.batched.client_task import ClientTask, Forms
from fedbolic.federated.batched.joint import overrides
from fedbolic.federated.batched.memory_budget import (
    Lines,
    MemoryBudget,
    MemoryMeter,
    is_out_of_memory,
    memory_limit,
    memory_meter,
    return_freed,
)
from fedbolic.federated.batched.memory_estimate import MemoryEstimate
from fedbolic.federated.batched.stacked_results import results_of
from fedbolic.federated.batched.stacked_scores import (
    Held,
    Scores,
    held_together,
    is_stackable,
    stacked_scores,
)
from fedbolic.federated.batched.stacking import Ended, advance, bucket_tasks
from fedbolic.federated.contract.engine import (
    Engine,
    Exchange,
    Failure,
    MethodKey,
    Result,
    torch_stream,
)
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.method import Method
from fedbolic.federated.engines.sequential import Sequential


@dataclass(frozen=True)
class Batched(Engine):
    """Trains the clients of an exchange together, each step for all of them at once.

    Batched is faster than :class:`~fedbolic.federated.engines.sequential.Sequential` if a step of
    one client does not saturate the machine: with small models and small batches, and on a GPU with
    most others.

    Clients are stacked if their values have the same names and shapes. Short batches are padded
    and masked, with at most a quarter of extra work; if a model mixes the examples of a batch, only
    batches of equal length are stacked. If a client raises an error, all clients stacked with it
    are run again one by one. Clients are scored together, too, unless the method overrides
    ``evaluate`` without a joint form.

    A round ends on the stacked tensors, too, unless the method has a ``finish`` without a joint
    form (:func:`~fedbolic.federated.batched.joint.joint`): the host waits once for all losses and
    checks, and :class:`~fedbolic.federated.Mean` sums all payloads at once.

    Clients are run one by one, with one log message, if the method is not a
    :class:`~fedbolic.federated.contract.gradient_method.GradientMethod`, overrides
    ``local_update``, cannot be vectorised, or draws from torch's global random stream, which only
    ``Sequential`` seeds for each client.

    Args:
        memory: Megabytes that an exchange may use in addition to data, messages and results, above
            0. As many clients are stacked as fit, and at least one, by an estimate. ``None`` for
            512 on a CPU, and on a CUDA device for 0.8 of its free memory, with the estimate
            corrected by two measured steps; groups are halved if memory runs out. Clients in other
            groups agree only up to rounding: set a number where every digit must be reproducible on
            a device that others use, too.

    Raises:
        ValueError: If ``memory`` is not above 0.

    Example:
        >>> from fedbolic.federated import Trainer
        >>> Trainer(Batched(memory=100.0)).engine
        Batched(memory=100.0)
    """

    memory: float | None = None
    _refused: set[Hashable] = field(default_factory=set, init=False, repr=False, compare=False)
    _most: dict[MethodKey, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _lines: Lines = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.memory is not None:
            check.positive(memory=self.memory)

    @override
    def run(self, exchange: Exchange) -> Iterator[Result]:
        method = exchange.method
        if not isinstance(method, GradientMethod):
            self._refuse(method, "it takes no gradient steps")
        elif overrides(method, "local_update"):
            self._refuse(method, "it overrides local_update")
        else:
            for tasks in self._together(method, exchange):
                yield from self._results(method, tasks, exchange)
            return
        yield from Sequential().run(exchange)

    @override
    def scores(self, exchange: Exchange) -> Scores:
        method, clients = exchange.method, exchange.clients
        refused = self._refused & {MethodKey(method), _scored(method)}
        if refused or not isinstance(method, GradientMethod) or not is_stackable(method):
            return super().scores(exchange)
        found: Scores = {client.id: {} for client in clients}
        limit = memory_limit(self.memory, _meter(clients))
        for held in held_together(method, exchange, megabytes=limit):
            try:
                with _vectorised(clients[0]):
                    found |= self._scores_of(method, held)
            except Exception as error:
                found = super().scores(exchange)
                name = type(method).__name__  # a client's own error was raised above
                log_fallback("the clients of %s are scored one by one: %r", name, error)
                self._refused.add(_scored(method))
                break
        return found

    def _scores_of(self, method: GradientMethod, held: Sequence[Held]) -> Scores:
        """Scores of clients that fit in memory; a subclass may compute them otherwise."""
        return stacked_scores(method, held)

    def _together(
        self, method: GradientMethod, exchange: Exchange
    ) -> Iterator[dict[int, ClientTask | Client]]:
        """Groups of clients that fit in memory: the task of each, or the client if that failed."""
        budget, key, tasks = self._budget(method, exchange.clients), MethodKey(method), {}
        forms = Forms()
        for client in exchange.clients:
            message, memory = exchange.messages[client.id], exchange.state(client)
            stream = exchange.stream(client)
            try:
                with torch_stream(client, stream):
                    task = ClientTask.begin(method, message, client, memory, stream, forms)
                    needed = budget.estimate.megabytes(task)
            except KeyboardInterrupt:
                raise
            except BaseException:  # raised again when the client is run alone, as its failure
                tasks[client.id] = client
                continue
            if not budget.fits(task, needed) or len(tasks) == self._most.get(key):
                yield tasks
                tasks, forms = {}, Forms()  # which keep values of the group before
                budget.clear()
                return_freed()
            tasks[client.id] = task
            budget.add(task, needed)
        if tasks:
            yield tasks

    def _budget(self, method: GradientMethod, clients: Sequence[Client]) -> MemoryBudget:
        """Budget of an exchange; a limit that the user set is compared with the estimate alone."""
        meter = _meter(clients)
        measures = self.memory is None and MethodKey(method) not in self._refused
        return MemoryBudget(
            method,
            memory_limit(self.memory, meter, freeable=self._freeable()),
            estimate=MemoryEstimate(method),
            meter=meter if measures else None,
            steps=functools.partial(_stacked, method, advance),
            lines=self._lines,
        )

    def _results(
        self, method: GradientMethod, tasks: Mapping[int, ClientTask | Client], exchange: Exchange
    ) -> Iterator[Result]:
        """The results of one group, in ascending order of id."""
        groups: dict[Hashable, list[ClientTask]] = {}
        results: list[Result] = []
        for task in tasks.values():
            if isinstance(task, ClientTask):
                groups.setdefault(task.form, []).append(task)
            else:
                results += Sequential().run(exchange.of([task]))
        for group in groups.values():
            for some in bucket_tasks(group):
                results += self._advance(method, some, exchange)
        return iter(sorted(results, key=lambda result: result[0].id))

    def _advance(
        self, method: GradientMethod, tasks: Sequence[ClientTask], exchange: Exchange
    ) -> list[Result]:
        alone, key = exchange.of([task.client for task in tasks]), MethodKey(method)
        if key in self._refused:
            return list(Sequential().run(alone))
        try:
            updates = _stacked(method, self._advanced, tasks)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if not is_out_of_memory(error):
                results = list(Sequential().run(alone))
                # only now is the error trusted to have words: none of the clients fails
                if not any(isinstance(update, Failure) for _, update, _ in results):
                    reason = f"{type(error).__name__}: {error}"
                    self._refuse(method, reason, log=log_fallback)
                return results
        else:
            return [(client, *both) for client, both in zip(alone.clients, updates, strict=True)]
        half = len(tasks) // 2
        if not half:
            return list(Sequential().run(alone))
        # the error is gone, and with it what its traceback held
        text = "%s: no memory for %d clients at a time, from now on %d"
        log_fallback(text, type(method).__name__, len(tasks), half)
        self._most[key] = half
        halves = tasks[:half], tasks[half:]
        return [result for some in halves for result in self._advance(method, some, exchange)]

    def _advanced(self, method: GradientMethod, tasks: Sequence[ClientTask]) -> Ended:
        """Values after all local steps of some clients; a subclass may take them otherwise."""
        return advance(method, tasks)

    def _freeable(self) -> float:
        """Megabytes that the engine holds and frees when they are needed."""
        return 0.0

    def _refuse(self, method: Method, reason: str, log: Callable[..., None] = logger.info) -> None:
        """Record that this method's clients are run one by one, and log it the first time."""
        if MethodKey(method) not in self._refused:
            name = type(method).__name__
            log("the clients of %s are run one by one: %s", name, reason)
            self._refused.add(MethodKey(method))


def _meter(clients: Sequence[Client]) -> MemoryMeter | None:
    return memory_meter(clients[0].no_inputs.device) if len(clients) else None


def _stacked(
    method: GradientMethod,
    advanced: Callable[[GradientMethod, Sequence[ClientTask]], Ended],
    tasks: Sequence[ClientTask],
) -> list[tuple[Update, Tree]]:
    """Updates and client states of several clients of equal form, trained as one batch."""
    with _vectorised(tasks[0].client):
        return results_of(method, tasks, advanced(method, tasks))


@contextlib.contextmanager
def _vectorised(client: Client) -> Iterator[None]:
    """Context manager that rejects vectorised work that would differ from single clients' work.

    Args:
        client: Any of the stacked clients.

    Raises:
        UserWarning: If vmap falls back to a loop over clients for an operation.
        RuntimeError: If the block draws from torch's global random stream.
    """
    with warnings.catch_warnings(), torch_stream(client, Rng()) as drawn:
        warnings.filterwarnings("error", message="There is a performance drop")
        yield
        if drawn():
            raise RuntimeError("its network draws from torch's global random stream")


def _scored(method: Method) -> Hashable:
    """Key that records that a method's clients are scored one by one."""
    return MethodKey(method), "scores"
