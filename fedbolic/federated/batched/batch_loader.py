"""Batches of many clients, step by step."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from fedbolic.core.types import Params
from fedbolic.federated.batched.buckets import buckets, most_padding, pad_stack
from fedbolic.federated.batched.client_task import ClientTask
from fedbolic.federated.contract.jagged import jagged_sizes

Call: TypeAlias = tuple[int, Tensor]
"""Padded length of a joint call and the rows of its clients."""


class BatchLoader:
    """Batches of many clients, step by step.

    Args:
        tasks: One task per client, in descending order of the number of steps.
        repeats: Steps on each batch, at least 1.
        width: Least number of positions of a step, of which the last ones may be padding.
    """

    def __init__(self, tasks: Sequence[ClientTask], repeats: int, *, width: int = 0) -> None:
        self.repeats = repeats
        self.examples, begins = joined_examples([task.examples.all() for task in tasks])
        self.device = next(iter(self.examples.values())).device
        plans = [task.plan for task in tasks]
        self.lengths = pad_stack([plan.lengths for plan in plans])
        steps, width = self.lengths.shape[1], max(width, longest_batch(tasks))
        positions = []
        for plan in plans:
            s, b = plan.positions.shape
            whole = (s, b) == (steps, width)
            positions.append(
                plan.positions if whole else pad(plan.positions, (0, width - b, 0, steps - s))
            )
        # padding repeats the client's own first example, so a bad example affects its client alone
        placed = torch.stack(positions).add_(torch.tensor(begins).view(-1, 1, 1))
        self.mixes_examples = tasks[0].model.mixes_examples
        self.most_padding = most_padding(self.lengths, mixes_examples=self.mixes_examples)
        draws = [plan.draws for plan in plans]
        if jagged_sizes(tasks[0].context):  # then the context outweighs the batch
            self.most_padding = math.inf
            draws = [{name: _of_width(x, width) for name, x in each.items()} for each in draws]
        self.num_active = (self.lengths > 0).sum(dim=0).tolist()
        self._plan_calls(placed)
        self.visits = torch.arange(repeats, device=self.device)
        self.draws = {
            name: pad_stack([each[name] for each in draws]).to(self.device) for name in draws[0]
        }

    def _plan_calls(self, positions: Tensor) -> None:
        """Plan the calls of all steps, and copy everything they index to the device at once."""
        planned = plan_calls(self.lengths, self.most_padding)
        several = [rows for calls in planned if len(calls) > 1 for _, rows in calls]
        self.positions, self.counts, *copied = copy_together(
            [positions, self.lengths, *several], self.device
        )
        indices = iter(copied)
        self.calls: list[list[tuple[int, Tensor | slice]]] = [
            [
                (length, slice(num_active) if len(calls) == 1 else next(indices))
                for length, _ in calls
            ]
            for calls, num_active in zip(planned, self.num_active, strict=True)
        ]

    def batches(self, step: int) -> Iterator[tuple[Tensor | slice, Params, dict[str, int | None]]]:
        """Calls of one step: the rows of the clients, the batch, and each entry's client axis."""
        if step == len(self.num_active):
            return
        for length, row in self.calls[step]:
            positions = self.positions[row, step, :length]
            mask = torch.arange(length, device=self.device) < self.counts[row, step, None]
            batch = {
                **{name: take_rows(values, positions) for name, values in self.examples.items()},
                "mask": mask,
                **{name: draw[row, step] for name, draw in self.draws.items()},
            }
            dims: dict[str, int | None] = dict.fromkeys(batch, 0)
            visit = self.visits[step % self.repeats]
            yield row, {**batch, "visit": visit}, {**dims, "visit": None}


def _of_width(draw: Tensor, width: int) -> Tensor:
    """Draws for the examples of a batch of a given length; other draws as they are."""
    if draw.ndim < 2:
        return draw
    return pad(draw, (*[0] * 2 * (draw.ndim - 2), 0, width - draw.shape[1]))


def longest_batch(tasks: Sequence[ClientTask]) -> int:
    """Number of examples of the largest batch."""
    return max(task.plan.positions.shape[1] for task in tasks)


def plan_calls(lengths: Int[Tensor, "clients steps"], most: float) -> list[list[Call]]:
    """Padded length and clients of each call of every step.

    Args:
        lengths: Number of examples of each client's batches, in descending order of the number of
            steps; 0 after a client's last step.
        most: As in :func:`~fedbolic.federated.batched.buckets.buckets`.
    """
    num_active, longest = (lengths > 0).sum(dim=0).tolist(), lengths.amax(dim=0)
    shortest = torch.where(lengths > 0, lengths, longest).amin(dim=0)
    is_one = (shortest == longest).tolist()  # most steps need no sorting
    everyone = torch.arange(len(lengths))
    return [
        [(length, everyone[:active])]
        if is_one[step] or most == math.inf
        else buckets(lengths[:active, step], most)
        for step, (active, length) in enumerate(zip(num_active, longest.tolist(), strict=True))
    ]


def copy_together(values: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy tensors of one dtype to a device by a single transfer.

    Args:
        values: Tensors of any shapes.
        device: Device of the copies.
    """
    whole = torch.cat([x.flatten() for x in values]).to(device)
    parts = whole.split([x.numel() for x in values])
    return [part.view(x.shape) for part, x in zip(parts, values, strict=True)]


def joined_examples(splits: Sequence[Params]) -> tuple[Params, list[int]]:
    """The examples of all clients along one axis, and the first position of each client.

    Examples that already share one storage, as those of a data source do, are not copied.

    Args:
        splits: Named examples of every client.
    """
    columns = {name: [split[name] for split in splits] for name in splits[0]}
    begins, *others = [_places(rows) for rows in columns.values()]
    lengths = [len(rows) for rows in next(iter(columns.values()))]
    if begins is None or any(other != begins for other in others):
        ends = itertools.accumulate(lengths, initial=0)
        return {name: torch.cat(rows) for name, rows in columns.items()}, list(ends)[:-1]
    return {name: _storage_of(rows[0]) for name, rows in columns.items()}, begins


def _storage_of(rows: Tensor) -> Tensor:
    """All rows of a tensor's storage: the same tensor whichever clients take part."""
    row = rows.shape[1:].numel() * rows.element_size()
    num_rows = rows.untyped_storage().nbytes() // row
    return rows.as_strided((num_rows, *rows.shape[1:]), rows.stride(), 0)


def _places(rows: Sequence[Tensor]) -> list[int] | None:
    """First row of each tensor in their common storage; ``None`` if they do not share one."""
    size = rows[0].shape[1:].numel()
    offsets = [x.storage_offset() for x in rows]
    apart = len({x.untyped_storage().data_ptr() for x in rows}) > 1
    whole_rows = size > 0 and all(x.is_contiguous() for x in rows)
    if apart or not whole_rows or any(offset % size for offset in offsets):
        return None
    return [offset // size for offset in offsets]


def take_rows(values: Tensor, positions: Tensor) -> Tensor:
    """``values[positions]``, in half the time of indexing on the CPU.

    Args:
        values: Examples of all clients.
        positions: Rows of ``values``, in any shape.
    """
    taken = values.index_select(0, positions.flatten())
    return taken.unflatten(0, positions.shape)
