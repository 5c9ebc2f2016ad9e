"""Area under the ROC curve of pooled examples, from histograms of scores that clients add up."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import one_hot

NUM_SCORE_BINS = 2048
"""Bins of the score of a class, of equal width between minus and plus ``LARGEST_SCORE``."""

LARGEST_SCORE = 16.0
"""Largest log-odds with a bin; scores beyond it fall in the first or the last bin."""

MetricSums = dict[str, dict[int, float]]
"""Values of the sums of one metric by kind, then by class or bin."""


def log_odds(logits: Float[Tensor, "n classes"]) -> Float[Tensor, "n classes"]:
    r"""Log-odds of every class against all others.

    .. math:: \log \frac{p_k}{1 - p_k} = z_k - \log \sum_{j \neq k} e^{z_j}

    It grows with the probability of the class and does not saturate where that rounds to 1.

    Args:
        logits: One row per example, of at least two classes.

    Example:
        >>> log_odds(torch.tensor([[0.0, 50.0]])).tolist()
        [[-50.0, 50.0]]
    """
    top = one_hot(logits.argmax(dim=-1), logits.shape[-1]).bool()
    others = logits.masked_fill(top, -torch.inf).logsumexp(dim=-1, keepdim=True)
    log_shares = logits.log_softmax(dim=-1)
    # at most 1/2, so that 1 - p has no cancellation
    shares = log_shares.exp().masked_fill(top, 0.0)
    return torch.where(top, logits - others, log_shares - torch.log1p(-shares))


def score_histograms(logits: Float[Tensor, "n classes"], labels: Int64[Tensor, " n"]) -> MetricSums:
    """Numbers of examples by class, bin of its log-odds, and whether the example is of the class.

    With two classes, only those of class 1 are needed.

    Args:
        logits: One row per example, of at least two classes.
        labels: Labels of the examples.

    Returns:
        The counts as ``positive`` and ``negative``, by ``class * NUM_SCORE_BINS + bin``; bins
        without examples are left out.
    """
    num_classes = logits.shape[-1]
    scores = log_odds(logits.double())
    share = (scores + LARGEST_SCORE) / (2 * LARGEST_SCORE)
    bins = (share * NUM_SCORE_BINS).long().clamp(0, NUM_SCORE_BINS - 1)
    bins = bins + NUM_SCORE_BINS * torch.arange(num_classes, device=bins.device)
    positive = one_hot(labels, num_classes).bool()
    first = int(num_classes == 2)
    sums: MetricSums = {}
    for kind, chosen in (("positive", positive), ("negative", ~positive)):
        places, counts = bins[:, first:][chosen[:, first:]].unique(return_counts=True)
        sums[kind] = dict(zip(places.tolist(), counts.double().tolist(), strict=True))
    return sums


def histogram_auroc(sums: MetricSums) -> dict[str, float]:
    r"""Mean over classes of the area under the ROC curve, and a bound of its error.

    .. math::
        A = \frac{1}{PN} \sum_b n_b \Bigl(\tfrac{p_b}{2} + \sum_{a > b} p_a\Bigr), \qquad
        |A - A_{\text{exact}}| \le \frac{1}{2PN} \sum_b p_b n_b

    for a class with p_b positive and n_b negative examples in bin b, and P and N in all bins. A
    pair of examples in one bin counts as one half, and no pair of two bins is ordered wrongly. A
    class that no example has, or that every example has, is left out.

    Args:
        sums: Counts of :func:`score_histograms`, added up over clients.

    Returns:
        ``auroc`` and ``auroc_bound``; empty if no class has an area.

    Example:
        >>> histogram_auroc({"positive": {2: 3.0, 7: 1.0}, "negative": {2: 1.0, 1: 1.0}})
        {'auroc': 0.8125, 'auroc_bound': 0.1875}
    """
    kinds = sums["positive"], sums["negative"]
    bins = sorted({place for kind in kinds for place in kind if any(k.get(place) for k in kinds)})
    areas, bounds = [], []
    for number in dict.fromkeys(place // NUM_SCORE_BINS for place in bins):
        mine = [place for place in bins if place // NUM_SCORE_BINS == number]
        p, n = (
            torch.tensor([kind.get(place, 0.0) for place in mine], dtype=torch.float64)
            for kind in kinds
        )
        pairs = float(p.sum() * n.sum())
        if pairs:
            above = p.sum() - p.cumsum(0)
            areas.append(float((n * (above + p / 2)).sum()) / pairs)
            bounds.append(float((p * n).sum()) / (2 * pairs))
    if not areas:
        return {}
    return {"auroc": sum(areas) / len(areas), "auroc_bound": sum(bounds) / len(bounds)}
