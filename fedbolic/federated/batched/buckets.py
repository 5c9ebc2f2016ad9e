"""Buckets of batches of similar length, and the cost of padding them."""

import itertools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

MOST_PADDED = 1.25
"""Ratio of computed to real examples above which the batches of a step are split into buckets.

For a tiny model one more call costs as much as the whole step; below this ratio it does not pay.
"""


def most_padding(lengths: Int[Tensor, "clients steps"], *, mixes_examples: bool) -> float:
    """Largest ratio of computed to real examples that :func:`buckets` may allow.

    Args:
        lengths: Number of examples in each client's batch at each step; 0 after its last step.
        mixes_examples: True if an output depends on the rest of the batch, as with batch norm.
    """
    if mixes_examples:
        return 1.0
    computed = (lengths.amax(dim=0) * (lengths > 0).sum(dim=0)).sum()
    return math.inf if computed <= MOST_PADDED * lengths.sum() else MOST_PADDED


def buckets(lengths: Int[Tensor, " clients"], most: float) -> list[tuple[int, Tensor]]:
    """Padded length and clients of each bucket; the batches of a bucket share one call.

    Args:
        lengths: Number of examples in each client's batch, at least 1.
        most: Largest allowed ratio of computed to real examples, at least 1; at 1 a bucket holds
            batches of equal length only.
    """
    longest_first, clients = lengths.sort(descending=True)
    ends, allowed = [0, len(lengths)], most * int(lengths.sum())
    while True:
        found = [(int(longest_first[a]), clients[a:b]) for a, b in itertools.pairwise(ends)]
        if sum(length * len(some) for length, some in found) <= allowed:
            return found
        saved = [  # by a cut before each client: later batches would be padded to its length only
            (longest_first[a] - longest_first[a:b]) * torch.arange(b - a, 0, -1)
            for a, b in itertools.pairwise(ends)
        ]
        ends = sorted([*ends, int(torch.cat(saved).argmax())])


def pad_stack(rows: Sequence[Tensor]) -> Tensor:
    """Stack the values of all clients, padded with zeros at the end of the step axis.

    Args:
        rows: One tensor per client, with steps as its first axis.
    """
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
