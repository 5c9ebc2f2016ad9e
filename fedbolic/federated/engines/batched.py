"""All clients of an exchange side by side: one forward and one backward pass for everybody."""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from fedbolic import check
from fedbolic.data.client import Client
from fedbolic.federated.engines.client_task import ClientTask
from fedbolic.federated.engines.engine import Engine, Failure, Result, torch_stream
from fedbolic.federated.engines.memory_estimate import LIBRARIES, MemoryEstimate
from fedbolic.federated.engines.sequential import Sequential
from fedbolic.federated.engines.stacked_scores import (
    Scores,
    held_together,
    is_stackable,
    stacked_scores,
)
from fedbolic.federated.engines.stacking import advance, bucket_tasks, own_storage
from fedbolic.federated.gradient_method import GradientMethod
from fedbolic.federated.method import Method
from fedbolic.log import logger
from fedbolic.rng import Rng
from fedbolic.types import Tree

OneByOne = Callable[[Sequence[Client]], list[Result]]
"""The results of some clients by the definition."""


DEFINITION = ("local_update", "batches")
"""The functions of a method that say what is done here another way."""


@dataclass(frozen=True)
class Batched(Engine):
    """The clients of an exchange advance together, one step of all of them after another.

    Faster than :class:`~fedbolic.federated.engines.sequential.Sequential` where a step of one
    client does
    not fill the machine: small models and small batches, and on a GPU most others.

    Clients go together if what they hold has the same names and shapes. Short batches are filled up
    and masked, by at most a quarter of all work; where a model mixes the examples of a batch, only
    batches of one length go together.
    What is not :class:`~fedbolic.federated.gradient_method.GradientMethod`, has a ``local_update``
    of its own, cannot be vectorised or draws from torch's global random stream, which is each
    client's own in ``Sequential`` alone, is run one by one, and the log says so once. Where a
    client raises an error, those who went together with it are run again one by one. Clients are
    scored together, too, unless the method has an ``evaluate`` of its own.

    Args:
        memory: Megabytes, above 0, that an exchange may take beside data, messages and results; as
            many clients go together as fit by an estimate, and at least one.

    Raises:
        ValueError: If ``memory`` is not above 0.

    Example:
        >>> from fedbolic.federated import Trainer
        >>> Trainer(Batched(memory=100.0)).engine
        Batched(memory=100.0)
    """

    memory: float = 512.0
    _refused: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check.positive(memory=self.memory)

    @override
    def run(
        self,
        method: Method,
        messages: Mapping[int, Tree],
        clients: Sequence[Client],
        client_states: Mapping[int, Tree],
        rng: Rng,
    ) -> Iterator[Result]:
        def one_by_one(some: Sequence[Client]) -> list[Result]:
            return list(Sequential().run(method, messages, some, client_states, rng))

        if not isinstance(method, GradientMethod):
            self._refuse(method, "it makes no steps")
        elif any(
            getattr(type(method), name) is not getattr(GradientMethod, name) for name in DEFINITION
        ):
            self._refuse(method, "it has a local_update of its own")
        else:
            for tasks in self._together(method, messages, clients, client_states, rng):
                yield from self._results(method, tasks, one_by_one)
            return
        yield from Sequential().run(method, messages, clients, client_states, rng)

    @override
    def scores(
        self,
        method: Method,
        messages: Mapping[int, Tree],
        clients: Sequence[Client],
        client_states: Mapping[int, Tree],
        rng: Rng,
    ) -> Scores:
        refused = self._refused.keys() & {repr(method), _scored(method)}
        if refused or not isinstance(method, GradientMethod) or not is_stackable(method):
            return super().scores(method, messages, clients, client_states, rng)
        found: Scores = {client.id: {} for client in clients}
        given = messages, clients, client_states
        for held in held_together(method, *given, megabytes=self.memory):
            try:
                with _vectorised(clients[0]):
                    found |= stacked_scores(method, held)
            except Exception as error:
                found = super().scores(method, messages, clients, client_states, rng)
                name = type(method).__name__  # had it been a client's error, we would not be here
                logger.info("the clients of %s are scored one by one: %r", name, error)
                self._refused[_scored(method)] = repr(error)
                break
        return found

    def _together(
        self,
        method: GradientMethod,
        messages: Mapping[int, Tree],
        clients: Sequence[Client],
        client_states: Mapping[int, Tree],
        rng: Rng,
    ) -> Iterator[dict[int, ClientTask | Client]]:
        """Neighbours in the order of ids, as many as fit; those who cannot begin as they are."""
        footprint, tasks, taken = MemoryEstimate(method), {}, LIBRARIES
        for client in clients:
            message, memory = messages[client.id], client_states.get(client.id, {})
            stream = rng.at("client", client.id)
            try:
                with torch_stream(client, stream):
                    task = ClientTask.begin(method, message, client, memory, stream)
                    needed = footprint.megabytes(task)
            except Exception:  # one by one it will be raised again, and be this client's failure
                task, needed = client, 0.0
            if tasks and taken + needed > self.memory:
                yield tasks
                tasks, taken = {}, LIBRARIES
            tasks[client.id] = task
            taken += needed
        if tasks:
            yield tasks

    def _results(
        self, method: GradientMethod, tasks: Mapping[int, ClientTask | Client], one_by_one: OneByOne
    ) -> Iterator[Result]:
        """The results of those who were taken together, in ascending order of id."""
        groups: dict[Hashable, list[ClientTask]] = {}
        results: list[Result] = []
        for task in tasks.values():
            if isinstance(task, ClientTask):
                groups.setdefault(task.form, []).append(task)
            else:
                results += one_by_one([task])
        for group in groups.values():
            for some in bucket_tasks(group):
                results += self._advance(method, some, one_by_one)
        return iter(sorted(results, key=lambda result: result[0].id))

    def _advance(
        self, method: GradientMethod, tasks: Sequence[ClientTask], one_by_one: OneByOne
    ) -> list[Result]:
        clients = [task.client for task in tasks]
        if repr(method) in self._refused:
            return one_by_one(clients)
        try:
            with _vectorised(clients[0]):
                ended = advance(method, tasks)
            concluded = [
                method.conclude(local, task.client, task.context, task.plan, loss, clamped=clamped)
                for task, (local, loss, clamped) in zip(tasks, ended, strict=True)
            ]
            updates = [
                (
                    dataclasses.replace(update, payload=own_storage(update.payload)),
                    own_storage(memory),
                )
                for update, memory in concluded
            ]
        except Exception as error:
            results = one_by_one(clients)
            if not any(isinstance(update, Failure) for _, update, _ in results):
                self._refuse(method, f"{type(error).__name__}: {error}")
            return results
        return [(client, *both) for client, both in zip(clients, updates, strict=True)]

    def _refuse(self, method: Method, reason: str) -> None:
        """Say, once, that the clients of this method are run one by one, and remember it."""
        if repr(method) not in self._refused:
            name = type(method).__name__
            logger.info("the clients of %s are run one by one: %s", name, reason)
            self._refused[repr(method)] = reason


@contextlib.contextmanager
def _vectorised(client: Client) -> Iterator[None]:
    """Refuse work that would not be that of each client by itself, done at once for all.

    Args:
        client: Any of them.

    Raises:
        UserWarning: If vmap goes through the clients one operation long.
        RuntimeError: If anything was drawn for all of them together.
    """
    with warnings.catch_warnings(), torch_stream(client, Rng()) as drawn:
        warnings.filterwarnings("error", message="There is a performance drop")
        yield
        if drawn():
            raise RuntimeError("its network draws from torch's global random stream")


def _scored(method: Method) -> str:
    """The name under which it is noted that a method's clients are scored one by one."""
    return f"scores of {method!r}"
