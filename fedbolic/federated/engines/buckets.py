"""Buckets of batches of similar length, and the cost of padding them."""

import itertools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

MOST_PADDED = 1.25
"""Examples that are computed over those that count: with more, batches are cut into several calls.

A call more costs a tiny model as much as the whole step; below this bound that is not worth it.
"""


def most_padding(lengths: Int[Tensor, "clients steps"], *, mixes_examples: bool) -> float:
    """Largest growth by padding that :func:`buckets` may allow.

    Args:
        lengths: Of every client's batches; 0 where it is done.
        mixes_examples: Whether an output depends on the rest of the batch, as with batch norm.
    """
    if mixes_examples:
        return 1.0
    computed = (lengths.amax(dim=0) * (lengths > 0).sum(dim=0)).sum()
    return math.inf if computed <= MOST_PADDED * lengths.sum() else MOST_PADDED


def buckets(lengths: Int[Tensor, " clients"], most: float) -> list[tuple[int, Tensor]]:
    """Batches that share a call: the padded length, and the clients of each bucket.

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
    table = pad_stack(lengths)
    most = most_padding(table, mixes_examples=mixes_examples)
    calls = (call for step in table.T for call in buckets(step[step > 0], most))
    return sum(length * len(clients) for length, clients in calls) / int(table.sum())


def pad_stack(rows: Sequence[Tensor]) -> Tensor:
    """Values per step of all clients as one tensor, padded with zeros at the end.

    Args:
        rows: Of each client, with a first axis of steps.
    """
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
