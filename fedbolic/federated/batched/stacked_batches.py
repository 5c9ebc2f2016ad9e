"""All examples of many clients in batches of several clients, for one pass without training."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from fedbolic.core.types import Params
from fedbolic.data.contract.client import Split
from fedbolic.federated.batched.batch_loader import copy_together, joined_examples, take_rows
from fedbolic.federated.batched.buckets import MOST_PADDED, buckets
from fedbolic.federated.scores.score import CHUNK

Batches: TypeAlias = tuple[Tensor | slice, Iterator[Params]]
"""Rows of some clients, and the batches of all their examples."""


def stacked_batches(splits: Sequence[Split]) -> Iterator[Batches]:
    """All examples of several clients; clients of similar size share their batches.

    A batch has at most :data:`~fedbolic.federated.scores.score.CHUNK` examples of all its
    clients together, or one of each. Its entries have a leading axis of clients. ``mask`` excludes
    the padding of smaller clients, which repeats their own first example. Clients without examples
    are left out.

    Args:
        splits: Examples of the clients.

    Example:
        >>> from fedbolic.data import Examples
        >>> splits = [Examples({"x": torch.arange(n)}) for n in (4, 5)]
        >>> for rows, batches in stacked_batches(splits):
        ...     print(rows, [batch["x"].tolist() for batch in batches])
        slice(None, None, None) [[[0, 1, 2, 3, 0], [0, 1, 2, 3, 4]]]
    """
    sizes = torch.tensor([len(split) for split in splits])
    (some,) = sizes.nonzero(as_tuple=True)
    if not len(some):
        return
    examples, begins = joined_examples([split.all() for split in splits])
    device = next(iter(examples.values())).device
    groups = [(longest, some[rows]) for longest, rows in buckets(sizes[some], MOST_PADDED)]
    of_groups = [rows for _, rows in groups]
    begin, length, *copied = copy_together([torch.tensor(begins), sizes, *of_groups], device)
    is_one = len(groups) == 1 and len(some) == len(splits)

    def batches(rows: Tensor | slice, longest: int, step: int) -> Iterator[Params]:
        for place in torch.arange(longest, device=device).split(step):
            mask = place < length[rows, None]
            positions = begin[rows, None] + torch.where(mask, place, 0)
            yield {**{n: take_rows(x, positions) for n, x in examples.items()}, "mask": mask}

    for (longest, rows), there in zip(groups, copied, strict=True):
        given = slice(None) if is_one else there
        yield given, batches(given, longest, max(1, CHUNK // len(rows)))
