"""All clients of an exchange at once: one forward and one backward pass for everybody."""

import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from fedbolic import check
from fedbolic.data.client import Client
from fedbolic.federated.engine import Engine, Failure
from fedbolic.federated.method import Method, Update
from fedbolic.federated.sequential import Sequential
from fedbolic.federated.stacked import Task, advance
from fedbolic.federated.stepped import Stepped
from fedbolic.rng import Rng
from fedbolic.types import Tree

logger = logging.getLogger("fedbolic")

Result = tuple[Client, Update | Failure, Tree]


@dataclass(frozen=True)
class Batched(Engine):
    """The clients of an exchange side by side: they advance together, step by step.

    Much faster than :class:`~fedbolic.federated.sequential.Sequential` where one step of one client
    does not fill the machine: small models and batches, and on a GPU most others.

    Clients go together if what they hold has the same names and shapes. Short batches are filled up
    and masked; where a model mixes the examples of a batch, only batches of one length go together.
    What is not :class:`~fedbolic.federated.stepped.Stepped`, or cannot be vectorised, is run one by
    one, which the log says once.

    Args:
        num_together: The most clients at once.

    Example:
        >>> from fedbolic.federated import Trainer
        >>> Trainer(Batched()).engine
        Batched(num_together=1000)
    """

    num_together: int = 1000
    _refused: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check.at_least(1, num_together=self.num_together)

    @override
    def run(
        self,
        method: Method,
        messages: Mapping[int, Tree],
        clients: Sequence[Client],
        memories: Mapping[int, Tree],
        rng: Rng,
    ) -> Iterator[Result]:
        if not self._takes(method):
            yield from Sequential().run(method, messages, clients, memories, rng)
            return
        assert isinstance(method, Stepped)
        for start in range(0, len(clients), self.num_together):
            together = clients[start : start + self.num_together]
            results: dict[int, Result] = {}
            groups: dict[Hashable, list[Task]] = {}
            for client in together:
                memory = memories.get(client.id, {})
                try:
                    task = self._task(method, messages[client.id], client, memory, rng)
                    groups.setdefault(task.form, []).append(task)
                except Exception as error:
                    results[client.id] = client, Failure(error), memory
            for tasks in groups.values():
                try:
                    done = advance(method, tasks)
                except Exception as error:
                    alone = [task.client for task in tasks]
                    redone = list(Sequential().run(method, messages, alone, memories, rng))
                    results.update((result[0].id, result) for result in redone)
                    if not any(isinstance(update, Failure) for _, update, _ in redone):
                        self._refuse(method, f"{type(error).__name__}: {error}")
                    continue
                for task, (local, loss) in zip(tasks, done, strict=True):
                    client = task.client
                    try:
                        update, kept = method.conclude(local, client, task.context, task.plan, loss)
                    except Exception as error:
                        update, kept = Failure(error), memories.get(client.id, {})
                    results[client.id] = client, update, kept
            yield from (results[client.id] for client in together)

    def _task(self, method: Stepped, message: Tree, client: Client, memory: Tree, rng: Rng) -> Task:
        model = method.model(client.meta)
        local, context = method.start(message, client, memory)
        plan = method.plan(model, client, rng.at("client", client.id))
        return Task(client, model, local, context, plan)

    def _takes(self, method: Method) -> bool:
        if not isinstance(method, Stepped):
            self._refuse(method, "it makes no steps")
        elif type(method).local_update is not Stepped.local_update:
            self._refuse(method, "it has a local_update of its own")
        return repr(method) not in self._refused

    def _refuse(self, method: Method, reason: str) -> None:
        """Say, once, that the clients of this method are run one by one, and remember it."""
        if repr(method) not in self._refused:
            name = type(method).__name__
            logger.info("the clients of %s are run one by one: %s", name, reason)
            self._refused.add(repr(method))
