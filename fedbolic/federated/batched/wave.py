"""Clients that are trained at the same time, and the calls of their steps."""

import functools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedbolic.core import tree
from fedbolic.core.types import Params, Tree
from fedbolic.federated.batched.batch_loader import BatchLoader, longest_batch, plan_calls
from fedbolic.federated.batched.client_task import ClientTask, tree_form
from fedbolic.federated.batched.stacking import joined, of_one_client
from fedbolic.federated.contract.jagged import Jagged

SERIES = (16, 20, 25, 32, 40, 50, 63, 80, 100, 125)
"""Renard's numbers above 16, times powers of 10."""

FREE_EXAMPLES = 4096
"""Examples of padding in a step of all clients that cost less than a further call would."""

FEW_ROWS = 4
"""Clients of the smallest call by index; the next one has 16, for those between cost as much."""


class CallForm(NamedTuple):
    """All that the launches of a call depend on, besides the contents of buffers.

    Args:
        num_rows: Number of clients, of which some may have no batch.
        width: Length to which batches are padded.
        by_index: Whether the clients are any of the wave; else they are the first ones.
        padded: Whether some of the clients have no batch.
    """

    num_rows: int
    width: int
    by_index: bool
    padded: bool


class PlannedCall(NamedTuple):
    """A call of one step.

    Args:
        form: Its form.
        step: Number of the step.
        clients: Rows of the clients that have a batch.
    """

    form: CallForm
    step: int
    clients: Tensor


@dataclass(frozen=True, eq=False)
class Wave:
    """Clients that are trained at the same time.

    Args:
        tasks: Their tasks, of equal form and in descending order of the number of steps.
        loader: Batches of these and possibly of further clients.
        begin: Row of the first task in ``loader``.
        most: Largest number of clients of a wave, to which buffers are limited.
    """

    tasks: Sequence[ClientTask]
    loader: BatchLoader
    begin: int
    most: int

    @property
    def rows(self) -> slice:
        """Rows of the tasks in the loader."""
        return slice(self.begin, self.begin + len(self.tasks))

    @functools.cached_property
    def num_steps(self) -> int:
        """Number of steps of the first client."""
        return len(self.tasks[0].plan.lengths)

    @functools.cached_property
    def capacity(self) -> int:
        """Fewest clients for which buffers are allocated, to be used again for others."""
        if jagged_leaves(self.context[0]):  # further clients would take much more memory
            return len(self.tasks)
        return max(len(self.tasks), min(capacity(len(self.tasks)), self.most))

    @functools.cached_property
    def row_counts(self) -> list[int]:
        """Numbers of clients of a call, as :func:`row_counts` gives them."""
        return row_counts(self.capacity)

    @property
    def width(self) -> int:
        """Length of a padded batch."""
        return self.loader.positions.shape[2]

    @functools.cached_property
    def shares_examples(self) -> bool:
        """True if the examples stay at one address, as parts of a storage of several clients.

        Those of a client alone may have been computed for this wave.
        """
        return all(
            x.untyped_storage().data_ptr() == (every := self.loader.examples[name]).data_ptr()
            and len(x) < len(every)
            for name, x in self.tasks[0].examples.all().items()
        )

    def form(self) -> Hashable:
        """Hashable form; buffers and captured steps serve all waves of equal form."""
        context, dims = self.context
        examples = self.loader.examples.items()
        if self.shares_examples:
            given = tuple((name, x.data_ptr(), x.shape) for name, x in examples)
        else:
            given = tuple((name, x.shape[1:]) for name, x in examples)
        return (
            self.tasks[0].form,
            tree_form(dims),
            # without a block, a captured step reads jagged parts where they lie
            tuple(
                leaf.block.kind(leaf.parts) if leaf.block else tuple(map(id, leaf.parts))
                for leaf in jagged_leaves(context)
            ),
            given,
            (self.width, self.loader.mixes_examples),
            autocast_dtypes(),
        )

    @functools.cached_property
    def context(self) -> tuple[Tree, Tree]:
        """Joint context, and the client axis of each leaf.

        A step that is never captured needs no block, and reads jagged parts without padding.
        """
        context, dims = joined([task.context for task in self.tasks])
        if len(self.tasks) == 1 and self.most > 1 and "own" in context:  # as in larger waves
            context, dims = {**context}, {**dims}
            context["own"], dims["own"] = of_one_client(context["own"])
        if self.loader.device.type == "cuda":
            return context, dims
        return tree.map(
            lambda x: replace(x, block=None) if isinstance(x, Jagged) else x, context
        ), dims

    def plan(self) -> Params:
        """Positions, lengths and draws of all steps, with axes of clients and steps."""
        loader, cut = self.loader, (self.rows, slice(self.num_steps))
        named = {"positions": loader.positions, "counts": loader.counts, **loader.draws}
        return {name: x[cut] for name, x in named.items()}

    def windows(self, num_rows: int, num_steps: int) -> Iterator[list[PlannedCall]]:
        """All calls in order, those of some steps at a time.

        Args:
            num_rows: Number of clients for which buffers are allocated.
            num_steps: Most steps at a time, and most calls unless one step has more.
        """
        lengths = self.loader.lengths[self.rows, : self.num_steps]
        some: list[PlannedCall] = []
        for step, calls in enumerate(plan_calls(lengths, self._most_padding(lengths))):
            planned = [
                self._planned(step, length, clients, alone=len(calls) == 1, every=num_rows)
                for length, clients in calls
            ]
            full = len(some) + len(planned) > num_steps
            if some and (full or step >= some[0].step + num_steps):
                yield some
                some = []
            some += planned
        if some:
            yield some

    def _most_padding(self, lengths: Tensor) -> float:
        """As in ``plan_calls``: several calls of a step only where padding costs more."""
        if self.loader.mixes_examples:
            return self.loader.most_padding
        padding = (lengths > 0).sum(dim=0) * lengths.amax(dim=0) - lengths.sum(dim=0)
        few = not len(padding) or int(padding.max()) <= FREE_EXAMPLES
        return math.inf if few else self.loader.most_padding

    def _planned(
        self, step: int, length: int, clients: Tensor, *, alone: bool, every: int
    ) -> PlannedCall:
        """One of several calls of a step, or the one that is alone.

        Its number of rows is a function of the wave. Only a call of all rows of the buffers, which
        are ``every``, is not padded: the others have one form.
        """
        num, most, width = len(clients), self.capacity, self.width
        if self.loader.mixes_examples:
            # a batch must not be padded, and every length has a graph: few numbers of clients do
            alone, width = alone and (num, length) == (most, width), length
        elif not alone:
            width = min(width, capacity(length))
        if not alone:
            num_rows = min(most, FEW_ROWS if num <= FEW_ROWS else max(SERIES[0], capacity(num)))
            return PlannedCall(CallForm(num_rows, width, True, True), step, clients)
        of_block = any(leaf.block for leaf in jagged_leaves(self.context[0]))
        num_rows = every if of_block else min(n for n in self.row_counts if n >= num)
        padded = num_rows > 1 and num < every
        return PlannedCall(CallForm(num_rows, width, False, padded), step, clients)


def capacity(number: int) -> int:
    """The least of a few preferred numbers that is not smaller.

    These are the powers of 2 up to 16, where a step of more clients takes no longer on a GPU, and
    then Renard's numbers, of which the next one is larger by about a quarter.

    Args:
        number: Number of clients or examples, at least 0.

    Example:
        >>> [capacity(n) for n in (3, 9, 17, 21, 100, 101)]
        [4, 16, 20, 25, 100, 125]
    """
    if number <= SERIES[0]:
        return power_of_2(number)
    scale = 1
    while number > SERIES[-1] * scale:
        scale *= 10
    return min(s * scale for s in SERIES if s * scale >= number)


def power_of_2(number: int) -> int:
    """The least power of 2 that is not smaller than a number of 0 or more."""
    return 1 << max(0, number - 1).bit_length()


def row_counts(num_clients: int) -> list[int]:
    """Numbers of clients for which a step is captured, ascending.

    Args:
        num_clients: Number of clients of a wave, at least 1.

    Example:
        >>> row_counts(30)
        [1, 2, 4, 8, 16, 20, 25, 30]
    """
    found = [1]
    while found[-1] < num_clients:
        found.append(min(capacity(found[-1] + 1), num_clients))
    return found


def waves(
    tasks: Sequence[ClientTask],
    repeats: int,
    *,
    size: int | None,
    most: int,
    batch_size: int | None,
) -> list[Wave]:
    """Waves of at most ``size`` clients.

    Args:
        tasks: Tasks of equal form, in descending order of the number of steps.
        repeats: Steps on each batch, at least 1.
        size: Most clients in a wave; ``None`` for all in one.
        most: Number of clients that may be trained at the same time.
        batch_size: Largest batch; ``None`` if it is all examples of a client.
    """
    longest = longest_batch(tasks)
    width = capacity(longest)
    if any(leaf.block for leaf in jagged_leaves(tasks[0].context)):  # one width for a kind of parts
        sizes = [leaf.sizes[0] for task in tasks for leaf in jagged_leaves(task.context)]
        width = power_of_2(max(longest, SERIES[0], *sizes))
    if batch_size is not None:
        width = batch_size if tasks[0].model.mixes_examples else min(width, batch_size)
    elif tasks[0].model.mixes_examples:
        width = longest
    loader, most = BatchLoader(tasks, repeats, width=width), min(most, size or most)
    size = size or len(tasks)
    return [Wave(tasks[i : i + size], loader, i, most) for i in range(0, len(tasks), size)]


def jagged_leaves(context: Tree) -> list[Jagged]:
    """Jagged leaves that a step reads, in order.

    Args:
        context: Context of a client, or a joint one.
    """
    leaves = [leaf for _, leaf in tree.leaves(context) if isinstance(leaf, Jagged)]
    return [leaf for leaf in leaves if any(leaf.sizes)]


def autocast_dtypes() -> tuple[torch.dtype, ...]:
    """Lower precisions in which operations run by autocast, empty if there is none."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return tuple(torch.get_autocast_dtype(kind) for kind in kinds)
