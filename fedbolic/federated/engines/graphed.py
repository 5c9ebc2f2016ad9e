"""Execution of clients by captured steps: the host launches each step with one call."""

import contextlib
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.log import log_fallback
from fedbolic.data.contract.client import Client
from fedbolic.federated.batched.captured_scores import CapturedScores, capture_key
from fedbolic.federated.batched.client_task import ClientTask
from fedbolic.federated.batched.memory_budget import is_out_of_memory
from fedbolic.federated.batched.replay import GraphPool
from fedbolic.federated.batched.stacked_scores import Held, Scores
from fedbolic.federated.batched.stacking import Ended, advance
from fedbolic.federated.batched.static_steps import StaticSteps
from fedbolic.federated.batched.wave import Wave, capacity, jagged_leaves, waves
from fedbolic.federated.contract.engine import Engine, MethodKey
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.jagged import Jagged
from fedbolic.federated.engines.batched import Batched

KEPT = 8
"""Number of forms of waves whose buffers and graphs are kept, and of groups of scored clients.

The least recently used go first.
"""

GROWTH = 12
"""Tenths of a cohort for which buffers get room when a cohort is larger than those before."""


@dataclass(frozen=True)
class Graphed(Batched):
    """Trains clients by steps that a CUDA device replays without work by the host.

    The parameters, batches and counters of all clients lie in buffers that never move. A step over
    these buffers, of all clients together, is captured as a CUDA graph at its second use, and then
    costs one launch instead of hundreds. Clients with the most steps come first, and steps are
    captured for a few numbers of clients only: with more than 16 of them, about a quarter of the
    work, at most, is for clients that have finished or do not exist. Batches that differ in length
    are padded, unless the model mixes the examples of a batch.

    Buffers and graphs are kept from one exchange to the next, and serve every cohort of clients of
    the same form. Scores of the same clients are a graph, too, from their third evaluation on. On
    other devices than CUDA, the step is called instead of captured, with the same results; there
    ``Batched`` is faster. A method whose steps or scores cannot be captured is trained or scored as
    by ``Batched``, with one log message. Clients are trained one by one if need be, as by
    :class:`~fedbolic.federated.engines.batched.Batched`.

    Args:
        memory: Megabytes as in ``Batched``.
        together: Most clients that are trained at the same time, at least 1; ``None`` for as many
            as fit in memory. With 1, clients follow one another and ``vmap`` is not used: for
            networks of which one fills the device.
        compiled: Whether Inductor turns the operators of a step into few kernels, which takes up to
            a minute for every form of a step. Results agree with those of other engines up to
            rounding. It needs a C++ compiler, and on a CUDA device triton; where it fails, steps
            are captured as they are, with one log message.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> from fedbolic.federated import Trainer
        >>> Trainer(Graphed(together=1)).engine.together
        1
    """

    together: int | None = None
    compiled: bool = False
    _kept: "OrderedDict[Hashable, StaticSteps]" = field(
        default_factory=OrderedDict, init=False, repr=False, compare=False
    )
    _pools: dict[torch.device, GraphPool] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _num_clients: list[int] = field(default_factory=list, init=False, repr=False, compare=False)
    _uncaptured: set[MethodKey] = field(default_factory=set, init=False, repr=False, compare=False)
    _scoring: "OrderedDict[Hashable, CapturedScores | None]" = field(
        default_factory=OrderedDict, init=False, repr=False, compare=False
    )
    _unscored: set[MethodKey] = field(default_factory=set, init=False, repr=False, compare=False)
    _uncompiled: set[MethodKey] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.together is not None:
            check.at_least(1, together=self.together)

    @property
    def num_graphs(self) -> int:
        """Number of CUDA graphs that are kept."""
        replays = [replay for steps in self._kept.values() for replay in steps.replays.values()]
        replays += [scores.replay for scores in self._scoring.values() if scores]
        return sum(replay.graph is not None for replay in replays)

    @override
    @contextlib.contextmanager
    def open(self, clients: Sequence[Client]) -> Iterator[Engine]:
        self.check(clients)
        self._num_clients.append(len(clients))
        try:
            yield self
        finally:
            self._num_clients.pop()
            self._free()

    @override
    def _advanced(self, method: GradientMethod, tasks: Sequence[ClientTask]) -> Ended:
        if MethodKey(method) in self._uncaptured:
            return advance(method, tasks)
        try:
            return self._replayed(method, tasks)
        except Exception as error:
            others = len(self._kept) > 1 or any(self._scoring.values())
            self._free()
            if not is_out_of_memory(error):
                results = advance(method, tasks)  # raises if a client is at fault
                name, reason = type(method).__name__, f"{type(error).__name__}: {error}"
                what = "compiled" if self._compiles(method) else "captured"
                log_fallback(f"the steps of %s are not {what}: %s", name, reason)
                without = self._uncompiled if self._compiles(method) else self._uncaptured
                without.add(MethodKey(method))
                return results
            if not others:
                raise
        return self._replayed(method, tasks)  # in the memory that other steps held

    @override
    def _scores_of(self, method: GradientMethod, held: Sequence[Held]) -> Scores:
        device = held[0].client.no_inputs.device
        if device.type != "cuda" or MethodKey(method) in self._unscored:
            return super()._scores_of(method, held)
        if (key := capture_key(method, held)) is None:
            return super()._scores_of(method, held)
        again = key in self._scoring
        captured = self._scoring.pop(key, None)
        try:
            if again:  # clients that are scored once are not worth buffers
                captured = captured or CapturedScores(method, held, self._pool(device))
            found = captured(held) if captured else super()._scores_of(method, held)
            self._scoring[key] = captured
            while len(self._scoring) > KEPT:
                self._scoring.popitem(last=False)
            return found
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        captured = None  # with the error, it would hold memory that the scores need
        self._free()
        found = super()._scores_of(method, held)  # raises if a client is at fault
        log_fallback("the scores of %s are not captured: %s", type(method).__name__, reason)
        self._unscored.add(MethodKey(method))
        return found

    def _pool(self, device: torch.device) -> GraphPool:
        if device not in self._pools:
            self._pools[device] = GraphPool(device)
        return self._pools[device]

    def _compiles(self, method: GradientMethod) -> bool:
        return self.compiled and MethodKey(method) not in self._uncompiled

    @override
    def _freeable(self) -> float:
        pools = sum(pool.nbytes for pool in self._pools.values())
        kept = [*self._kept.values(), *filter(None, self._scoring.values())]
        return (pools + sum(each.nbytes for each in kept)) / 2**20

    def _replayed(self, method: GradientMethod, tasks: Sequence[ClientTask]) -> Ended:
        """Results of ``advance``, in the order of the tasks."""
        order = sorted(range(len(tasks)), key=lambda i: -len(tasks[i].plan.lengths))
        ended: list[Ended] = []
        for wave in waves(
            [tasks[i] for i in order],
            method.local.repeats,
            size=self.together,
            most=self._num_clients[-1] if self._num_clients else len(tasks),
            batch_size=method.local.batch_size,
        ):
            ended.append(self._steps_of(method, wave).run(wave))
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return Ended.joined(ended, order)

    def _steps_of(self, method: GradientMethod, wave: Wave) -> StaticSteps:
        """Buffers and captured steps for a wave, those of an earlier one if they are large enough.

        Cohorts that grow are of random size, and get room for larger ones.
        """
        key, device = (MethodKey(method), wave.form()), wave.loader.device
        known, num_rows = self._kept.get(key), wave.capacity
        if known is None or not known.fits(wave):
            smaller: list[Jagged] = []
            if known is not None:
                grown = min(wave.most, capacity(GROWTH * num_rows // 10))
                num_rows, smaller = (
                    max(num_rows, known.num_rows, grown),
                    jagged_leaves(known.context),
                )
                del known, self._kept[key]
            self._kept[key] = StaticSteps(
                method,
                wave,
                self._pool(device),
                num_rows=num_rows,
                alone=self.together == 1,
                compiles=self._compiles(method),
                like=smaller,
            )
        self._kept.move_to_end(key)
        return self._kept[key]

    def _free(self) -> None:
        """Forget all buffers and graphs."""
        self._kept.clear()
        self._scoring.clear()
        self._pools.clear()
