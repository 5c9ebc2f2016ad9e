"""Execution of clients by captured steps: the host launches each step with one call."""

import contextlib
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.log import logger
from fedbolic.data.contract.client import Client
from fedbolic.federated.batched.client_task import ClientTask
from fedbolic.federated.batched.stacking import Ended, advance
from fedbolic.federated.batched.static_steps import StaticSteps, waves
from fedbolic.federated.contract.engine import Engine, MethodKey
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.engines.batched import Batched

KEPT = 8
"""Number of forms of waves whose buffers and graphs are kept; the least recently used go first."""


@dataclass(frozen=True)
class Graphed(Batched):
    """Trains clients by steps that a CUDA device replays without work by the host.

    The parameters, batches and counters of all clients lie in buffers that never move. A step over
    these buffers, of all clients together, is captured as a CUDA graph at its second use, and then
    costs one launch instead of hundreds. Clients with the most steps come first, and steps are
    captured for a few numbers of active clients only, so at most a quarter of the work is for
    clients that have finished. Batches that differ in length are padded, unless the model mixes the
    examples of a batch.

    Buffers and graphs are kept from one exchange to the next while the form of the clients stays
    the same. On other devices than CUDA, the step is called instead of captured, with the same
    results; there ``Batched`` is faster. A method whose steps cannot be captured is trained as by
    ``Batched``, with one log message. Clients are scored, and trained one by one if need be, as by
    :class:`~fedbolic.federated.engines.batched.Batched`.

    Args:
        memory: Megabytes as in ``Batched``.
        together: Most clients that are trained at the same time, at least 1; ``None`` for as many
            as fit in memory. With 1, clients follow one another and ``vmap`` is not used: for
            networks of which one fills the device.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> from fedbolic.federated import Trainer
        >>> Trainer(Graphed(together=1)).engine.together
        1
    """

    together: int | None = None
    _kept: "OrderedDict[Hashable, StaticSteps]" = field(
        default_factory=OrderedDict, init=False, repr=False, compare=False
    )
    _uncaptured: set[MethodKey] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.together is not None:
            check.at_least(1, together=self.together)

    @override
    @contextlib.contextmanager
    def open(self, clients: Sequence[Client]) -> Iterator[Engine]:
        self.check(clients)
        try:
            yield self
        finally:
            self._kept.clear()

    @override
    def _advanced(self, method: GradientMethod, tasks: Sequence[ClientTask]) -> Ended:
        if MethodKey(method) in self._uncaptured:
            return advance(method, tasks)
        try:
            return self._replayed(method, tasks)
        except Exception as error:
            self._kept.clear()
            results = advance(method, tasks)  # raises if a client is at fault
            name, reason = type(method).__name__, f"{type(error).__name__}: {error}"
            logger.info("the steps of %s are not captured: %s", name, reason)
            self._uncaptured.add(MethodKey(method))
            return results

    def _replayed(self, method: GradientMethod, tasks: Sequence[ClientTask]) -> Ended:
        """Results of ``advance``, in the order of the tasks."""
        order = sorted(range(len(tasks)), key=lambda i: -len(tasks[i].plan.lengths))
        ended: list[Ended] = []
        for wave in waves([tasks[i] for i in order], method.local.repeats, self.together):
            key = MethodKey(method), wave.form()
            if key not in self._kept:
                self._kept[key] = StaticSteps(method, wave, alone=self.together == 1)
            self._kept.move_to_end(key)
            ended.append(self._kept[key].run(wave))
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return Ended.joined(ended, order)
