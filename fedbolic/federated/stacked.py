"""The local work of many clients as one: what they hold lies side by side on a leading axis."""

import functools
import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from fedbolic import tree
from fedbolic.data.client import Client, Split
from fedbolic.federated.ragged import Ragged, sizes
from fedbolic.federated.stepped import Plan, Stepped, check_losses
from fedbolic.nn.model import Model
from fedbolic.rng import Rng
from fedbolic.types import Params, Tree

MOST_PADDED = 1.25
"""Examples that are computed over those that count: with more, batches are cut into several calls.

A call more costs a tiny model as much as the whole step; below this bound that is not worth it.
"""


@dataclass(frozen=True, eq=False)
class Task:
    """The round of one client before its first step."""

    client: Client
    model: Model
    local: Tree
    context: Tree
    plan: Plan
    examples: Split

    @classmethod
    def begin(
        cls, method: Stepped, message: Tree, client: Client, memory: Tree, rng: Rng
    ) -> "Task":
        """The task of a client with what it received and kept, and its own stream."""
        begun = method.begin(message, client, memory, rng)
        return cls(client, *begun, method.examples(client))

    @functools.cached_property
    def form(self) -> Hashable:
        """What tasks that are done together have in common: names, shapes, dtypes, numbers."""
        draws = {n: (draw.dtype, draw.shape[1:]) for n, draw in self.plan.draws.items()}
        examples = self.examples.at(torch.arange(0))
        return id(self.model), *map(_form, (self.local, self.context, draws, examples))


def _form(x: Any) -> Hashable:
    """What a tree looks like: of a tensor all but its values, everything else as it is."""
    if isinstance(x, Tensor):
        return x.dtype, x.device, x.shape
    if isinstance(x, Ragged):
        return Ragged
    return tuple((name, _form(value)) for name, value in x.items()) if isinstance(x, dict) else x


def advance(method: Stepped, tasks: Sequence[Task]) -> list[tuple[Tree, float]]:
    """``local`` of every client after its last step, and the sum of the losses of its examples.

    Those who have the most steps stand first, so that those who still work are always the first
    few: who is done is cut off and not touched again.

    Args:
        method: Whose steps are made.
        tasks: Of one form.
    """
    order = sorted(range(len(tasks)), key=lambda i: -len(tasks[i].plan.lengths))
    tasks = [tasks[i] for i in order]
    feed = Feed(tasks, method.schedule.repeats)
    context, dims = _stack_context([task.context for task in tasks])
    state = _stack([task.local for task in tasks])
    state = {"local": state, "loss": torch.zeros(len(tasks), device=feed.device)}
    ended: list[Tree] = []
    losses: list[Tensor] = []
    for step, num_active in enumerate([*feed.num_active, 0]):
        if num_active < len(state["loss"]):
            ended = _unstack(_at(state["local"], slice(num_active, None))) + ended
            losses = [state["loss"][num_active:], *losses]
            state, context = _at(state, slice(num_active)), _at(context, slice(num_active), dims)
        moved, rows = [], []
        for row, batch, batch_dims in feed.batches(step):
            own, given = _at(state, row), _at(context, row, dims)
            moved.append(_step(method, tasks[0].model, own, batch, given, (batch_dims, dims)))
            rows.append(row)
        if len(moved) == 1:
            state = moved[0]
        elif moved:
            back = torch.cat(rows).argsort()
            state = tree.map(lambda *x, back=back: torch.cat(x)[back], *moved)
    of_client = dict(zip(order, zip(ended, torch.cat(losses).tolist(), strict=True), strict=True))
    return [of_client[i] for i in range(len(tasks))]


def alike(tasks: Sequence[Task]) -> list[list[Task]]:
    """Tasks of one form, parted where what they hold of different size would be padded too much."""
    found = [of_task for task in tasks for of_task in sizes(task.context) or ()]
    if not found:
        return [list(tasks)]
    return [
        [tasks[i] for i in sorted(some.tolist())]
        for _, some in parts(torch.tensor(found), MOST_PADDED)
    ]


def most_padding(lengths: Int[Tensor, "clients steps"], *, mixes_examples: bool) -> float:
    """How much the batches of one step may grow by padding, as for :func:`parts`.

    Args:
        lengths: Of every client's batches; 0 where it is done.
        mixes_examples: Whether an output depends on the rest of the batch, as with batch norm.
    """
    if mixes_examples:
        return 1.0
    computed = (lengths.amax(dim=0) * (lengths > 0).sum(dim=0)).sum()
    return math.inf if computed <= MOST_PADDED * lengths.sum() else MOST_PADDED


def parts(lengths: Int[Tensor, " clients"], most: float) -> list[tuple[int, Tensor]]:
    """Which clients' batches go into one call: the length that these get, and whose they are.

    Args:
        lengths: Of every client's own batch, at least 1.
        most: The examples that are computed are at most this many times those that count; at 1 only
            equal lengths go together.
    """
    longest_first, clients = lengths.sort(descending=True)
    ends, allowed = [0, len(lengths)], most * int(lengths.sum())
    while True:
        found = [(int(longest_first[a]), clients[a:b]) for a, b in itertools.pairwise(ends)]
        if sum(length * len(some) for length, some in found) <= allowed:
            return found
        saved = [  # by a cut before each client: all from there on would be as short as it is
            (longest_first[a] - longest_first[a:b]) * torch.arange(b - a, 0, -1)
            for a, b in itertools.pairwise(ends)
        ]
        ends = sorted([*ends, int(torch.cat(saved).argmax())])


def padded_work(lengths: Sequence[Tensor], *, mixes_examples: bool = False) -> float:
    """Examples that are computed over examples that count; 1 is no padding.

    Args:
        lengths: The lengths of every client's batches.
        mixes_examples: As in :func:`most_padding`.

    Example:
        >>> padded_work([torch.tensor([8, 8, 8]), torch.tensor([8, 4])])  # 40 for 36
        1.1111111111111112
    """
    table = _side_by_side(lengths)
    most = most_padding(table, mixes_examples=mixes_examples)
    calls = (call for step in table.T for call in parts(step[step > 0], most))
    return sum(length * len(clients) for length, clients in calls) / int(table.sum())


class Feed:
    """The batches of many clients, who stand in descending order of their numbers of steps.

    Args:
        tasks: Of the clients.
        repeats: Steps on each batch.
    """

    def __init__(self, tasks: Sequence[Task], repeats: int) -> None:
        self.repeats = repeats
        self.examples, begins = _in_one([task.examples.all() for task in tasks])
        self.device = next(iter(self.examples.values())).device
        plans = [task.plan for task in tasks]
        self.lengths = _side_by_side([plan.lengths for plan in plans])
        steps, width = self.lengths.shape[1], max(plan.positions.shape[1] for plan in plans)
        positions = []
        for begin, plan in zip(begins, plans, strict=True):  # a client's padding is its own first
            s, b = plan.positions.shape  # example: whatever is wrong there is wrong with it alone
            positions.append(begin + pad(plan.positions, (0, width - b, 0, steps - s)))
        mixes_examples = tasks[0].model.mixes_examples
        self.most_padding = most_padding(self.lengths, mixes_examples=mixes_examples)
        if sizes(tasks[0].context):  # then what is large is not the batch
            self.most_padding = math.inf
        self.num_active = (self.lengths > 0).sum(dim=0).tolist()
        self.positions = torch.stack(positions).to(self.device)
        self.counts = self.lengths.to(self.device)
        self.draws = {
            name: _side_by_side([plan.draws[name] for plan in plans]).to(self.device)
            for name in plans[0].draws
        }

    def batches(self, step: int) -> Iterator[tuple[Tensor | slice, Params, dict[str, int | None]]]:
        """What goes into each call of one step: whose rows, the batch, and its axes of clients."""
        if step == len(self.num_active):
            return
        active = slice(self.num_active[step])
        calls = parts(self.lengths[active, step], self.most_padding)
        for length, clients in calls:
            row = active if len(calls) == 1 else clients.to(self.device)
            positions = self.positions[row, step, :length]
            mask = torch.arange(length, device=self.device) < self.counts[row, step, None]
            batch = {
                **{name: _take(values, positions) for name, values in self.examples.items()},
                "mask": mask,
                **{name: draw[row, step] for name, draw in self.draws.items()},
            }
            dims: dict[str, int | None] = dict.fromkeys(batch, 0)
            visit = torch.tensor(step % self.repeats, device=self.device)
            yield row, {**batch, "visit": visit}, {**dims, "visit": None}


def _step(
    method: Stepped, model: Model, state: Tree, batch: Params, context: Tree, dims: tuple
) -> Tree:
    """One step of all clients: a forward pass of each, one backward pass, a step of each."""
    local = state["local"]
    parameters = {n: value.detach().requires_grad_() for n, value in local["parameters"].items()}

    given = model, parameters, local["buffers"], batch, context
    losses, buffers = method.stacked_loss(*given, axes=dims)
    mask = batch["mask"]
    check_losses(losses, mask)
    sums = torch.where(mask, losses, 0.0).sum(dim=1)
    means = sums / mask.sum(dim=1)
    values = list(parameters.values())
    gradients = torch.autograd.grad(means.sum(), values, materialize_grads=True)
    with torch.no_grad():
        local = {**local, "buffers": tree.map(torch.Tensor.detach, buffers)}
        named = dict(zip(parameters, gradients, strict=True))
        local = method.stacked_step(local, named, context, axes=dims[1])
        return {"local": local, "loss": state["loss"] + sums.detach()}


def _stack(trees: Sequence[Tree]) -> Tree:
    return tree.map(lambda *leaves: torch.stack(leaves), *trees)


def _unstack(stacked: Tree) -> list[Tree]:
    """The tree of every client, each in storage of its own."""
    rows = tree.map(lambda x: iter(x.unbind()), stacked)
    num_clients = len(next(iter(tree.tensors(stacked).values())))
    return [tree.map(lambda row: next(row).clone(), rows) for _ in range(num_clients)]


def _stack_context(contexts: Sequence[Tree]) -> tuple[Tree, Tree]:
    """The contexts as one, and the axis of clients of each leaf: none where all hold the same."""

    def same(*leaves: object) -> bool:
        values = isinstance(leaves[0], Tensor | Ragged)
        return not values or all(leaf is leaves[0] for leaf in leaves)

    def joined(*leaves: Any) -> Any:
        if same(*leaves):
            return leaves[0]
        if isinstance(leaves[0], Ragged):
            return Ragged.side_by_side(leaves)
        return torch.stack(leaves)

    dims = tree.map(lambda *leaves: None if same(*leaves) else 0, *contexts)
    return tree.map(joined, *contexts), dims


def _in_one(splits: Sequence[Params]) -> tuple[Params, list[int]]:
    """The examples of all clients along one axis, and where each client's begin.

    Those that already lie in one storage, as a source lays them, are not copied.
    """
    columns = {name: [split[name] for split in splits] for name in splits[0]}
    begins, *others = [_places(rows) for rows in columns.values()]
    lengths = [len(rows) for rows in next(iter(columns.values()))]
    if begins is None or any(other != begins for other in others):
        ends = itertools.accumulate(lengths, initial=0)
        return {name: torch.cat(rows) for name, rows in columns.items()}, list(ends)[:-1]
    end = max(begin + length for begin, length in zip(begins, lengths, strict=True))
    first = {name: rows[0] for name, rows in columns.items()}
    whole = {n: x.as_strided((end, *x.shape[1:]), x.stride(), 0) for n, x in first.items()}
    return whole, begins


def _places(rows: Sequence[Tensor]) -> list[int] | None:
    """The first row of each tensor, from the start of the storage of all; none if there is none."""
    size = rows[0].shape[1:].numel()
    offsets = [x.storage_offset() for x in rows]
    apart = len({x.untyped_storage().data_ptr() for x in rows}) > 1
    whole_rows = size > 0 and all(x.is_contiguous() for x in rows)
    if apart or not whole_rows or any(offset % size for offset in offsets):
        return None
    return [offset // size for offset in offsets]


def _side_by_side(rows: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def _take(values: Tensor, positions: Tensor) -> Tensor:
    """``values[positions]``, on the CPU in half the time."""
    taken = values.index_select(0, positions.flatten())
    return taken.unflatten(0, positions.shape)


def _at(stacked: Tree, rows: Tensor | slice, dims: Tree | None = None) -> Tree:
    """The rows of some clients; what all have in common stays."""
    if dims is None:
        return tree.map_tensors(lambda x: x[rows], stacked)
    return tree.map(lambda x, dim: x if dim is None else x[rows], stacked, dims)
