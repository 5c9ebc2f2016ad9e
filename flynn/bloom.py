"""Fly Bloom filters as integer counts that add and subtract exactly, and scores in log space."""

import math

import torch
from jaxtyping import Float, Float64, Int, Int32, Int64
from torch import Tensor

from fedbolic.core import check
from flynn import kernel

_CELLS = 2**22
"""Counts that are looked up in one step."""


def count(
    winners: Int32[Tensor, "n active"],
    labels: Int64[Tensor, " n"],
    *,
    dim: int,
    num_classes: int,
    weights: Float64[Tensor, " n"] | None = None,
) -> Int64[Tensor, "num_classes dim"] | Float64[Tensor, "num_classes dim"]:
    r"""Number of examples of each class with a one at each position of the hash.

    .. math:: c_l[i] = |\{(x, y) : y = l,\; h(x)[i] = 1\}|, \qquad w_l[i] = \gamma^{c_l[i]}

    The counts of disjoint parts add up exactly to those of the whole, and can be subtracted again.

    Args:
        winners: Positions of the ones in each hash.
        labels: Integers below ``num_classes``.
        dim: Length of a hash.
        num_classes: Number of classes, including classes without examples.
        weights: Weight of each example, at least 0; ``None`` for 1 each.

    References:
        Ram and Sinha (2022), Algorithm 1, line 6, arXiv:2112.07157. Departs from the paper: the
        state is ``c`` instead of ``w``, because a ``w`` of 0 no longer determines the count.

    Example:
        >>> winners = torch.tensor([[0, 2], [1, 2]], dtype=torch.int32)
        >>> count(winners, torch.tensor([1, 1]), dim=3, num_classes=2)
        tensor([[0, 0, 0],
                [1, 1, 2]])
    """
    places = (labels[:, None] * dim + winners).flatten()
    each = None if weights is None else weights.repeat_interleave(winners.shape[1])
    return torch.bincount(places, each, minlength=num_classes * dim).view(num_classes, dim)


def log_scores(
    counts: Int[Tensor, "num_classes dim"] | Float64[Tensor, "num_classes dim"],
    winners: Int32[Tensor, "n active"],
    decay: float,
    *,
    left_out: Int64[Tensor, " n"] | None = None,
) -> Float64[Tensor, "n num_classes"]:
    r"""Logarithm of the novelty score of each class; the smallest is the prediction.

    .. math:: \log w_l^T h(x) = \log \sum_{i : h(x)[i] = 1} \gamma^{c_l[i]}

    With ``decay`` 0, it is the logarithm of the number of zero counts, or of one half if there are
    none. Scores of equal counts are bitwise equal, whatever the order of the counts.

    Args:
        counts: Counts from :func:`count`, at least 0.
        winners: Positions of the ones in each hash.
        decay: Gamma, in [0, 1).
        left_out: Labels of the examples for leave-one-out scores: each example is subtracted from
            its class's counts before it is scored. ``None`` for ordinary scores.

    Raises:
        ValueError: If ``decay`` is not in [0, 1), a hash has a one outside the counts, or an
            example that is left out was not counted.

    References:
        Ram and Sinha (2022), Algorithm 1, line 12, arXiv:2112.07157.

    Example:
        >>> counts, winners = torch.tensor([[3, 1], [0, 5]]), torch.tensor([[0, 1]]).int()
        >>> log_scores(counts, winners, decay=0.5).exp()
        tensor([[0.6250, 1.0312]], dtype=torch.float64)
    """
    check_decay(decay)
    _refuse_outside(winners, counts.shape[1])
    bits = 0 if decay == 0 else 62 - math.ceil(math.log2(winners.shape[1]))
    whole = counts.device.type == "cpu" and not counts.is_floating_point()
    search = _compiled if kernel.FOUND and whole else _by_torch
    sums, least = search(counts, winners, decay, bits)
    if left_out is not None:
        least = least - torch.nn.functional.one_hot(left_out, len(counts))
        if (least < 0).any():
            raise ValueError(
                "an example that is left out was not learned: a count would be below 0"
            )
    if decay == 0:
        return torch.where(least <= 0, sums, 0).double().clamp(min=0.5).log()
    return sums.double().log() + (least.double() * math.log(decay) - bits * math.log(2))


def _refuse_outside(winners: Int32[Tensor, "n active"], dim: int) -> None:
    for end in torch.aminmax(winners) if len(winners) else ():
        if not 0 <= int(end) < dim:
            raise ValueError(f"a hash has a one at {int(end)}, but counts are at 0 .. {dim - 1}")


def _by_torch(counts: Tensor, winners: Tensor, decay: float, bits: int) -> tuple[Tensor, Tensor]:
    """Least count, and sum of the decay's powers of the counts above it; both n x classes."""
    step = max(1, _CELLS // (len(counts) * winners.shape[1]))
    sums, least = [], []
    for some in winners.split(step):
        found = counts[:, some.long()]  # classes x n x active
        least.append(found.amin(dim=-1).T)
        sums.append(_powers(found - least[-1].T[..., None], decay, bits).sum(dim=-1).T)
    return torch.cat(sums), torch.cat(least)


def _compiled(counts: Tensor, winners: Tensor, decay: float, bits: int) -> tuple[Tensor, Tensor]:
    # all powers from this exponent on are rounded to 0
    last = 1 if decay == 0 else math.ceil((bits + 1) / -math.log2(decay))
    if last > _CELLS:
        last = min(last, int(counts.max()))
    table = _powers(torch.arange(last + 1), decay, bits)
    sums = torch.empty(len(winners), len(counts), dtype=torch.int64)
    least = torch.empty_like(sums)
    kernel.look_up(*(of.numpy() for of in (counts, winners, table, sums, least)))
    return sums, least


def _powers(excess: Tensor, decay: float, bits: int) -> Tensor:
    """Powers of the decay times ``2 ** bits``, as integers: no sum depends on the order."""
    if decay == 0:
        return (excess == 0).long()
    return (excess.double() * math.log(decay)).exp().mul_(2.0**bits).round_().long()


def check_decay(decay: float) -> None:
    """Check that a decay is in [0, 1).

    Raises:
        ValueError: If ``decay`` is outside [0, 1). With 1, every class would have the same score.
    """
    if decay == 1:
        raise ValueError("decay must lie in [0, 1), got 1: every class would have the same score")
    check.rate(decay=decay)


def predictions(scores: Float[Tensor, "n num_classes"]) -> Int64[Tensor, " n"]:
    """Class with the least score; the first of equal ones."""
    least = scores.amin(dim=-1, keepdim=True)
    return (scores == least).to(torch.uint8).argmax(dim=-1)
