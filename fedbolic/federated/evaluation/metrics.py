"""Scores beyond accuracy and loss that an evaluation may ask for by name."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedbolic import check

Metric = Literal["macro_f1", "auroc", "average_precision"]

EXTRA_METRICS: tuple[Metric, ...] = get_args(Metric)
"""Names of the additional scores."""

_MEASURED: ContextVar[tuple[Metric, ...]] = ContextVar("measured", default=())


def check_metrics(names: tuple[Metric, ...]) -> None:
    """Refuse an unknown or repeated name.

    Raises:
        ValueError: If a name is unknown, or is given twice.
    """
    for name in names:
        check.one_of(EXTRA_METRICS, metrics=name)
    if len(set(names)) < len(names):
        raise ValueError(f"metrics must differ from one another, got {list(names)}")


@contextlib.contextmanager
def measuring(names: tuple[Metric, ...]) -> Iterator[None]:
    """Context manager in which the scores of a classifier include some more.

    Args:
        names: Names of the additional scores.

    Example:
        >>> with measuring(("macro_f1",)):
        ...     measured()
        ('macro_f1',)
    """
    token = _MEASURED.set(names)
    try:
        yield
    finally:
        _MEASURED.reset(token)


def measured() -> tuple[Metric, ...]:
    """Names of the scores that the current context adds."""
    return _MEASURED.get()


def extra_scores(
    logits: Float[Tensor, "n classes"], labels: Int64[Tensor, " n"]
) -> dict[str, float]:
    """The additional scores of the current context that these examples determine.

    Args:
        logits: One row per example, at least one.
        labels: Labels of the examples.
    """
    found: dict[str, float] = {}
    for name in measured():
        if name == "macro_f1":
            found[name] = macro_f1(logits.argmax(dim=-1), labels)
        else:
            value = one_versus_rest(name, logits, labels)
            found |= {} if value is None else {name: value}
    return found


def macro_f1(predicted: Int64[Tensor, " n"], labels: Int64[Tensor, " n"]) -> float:
    r"""Mean of the F1 scores of the classes that occur among labels or predictions.

    .. math:: F_1(k) = \frac{2 \, TP_k}{2 \, TP_k + FP_k + FN_k}

    Args:
        predicted: Predicted label of every example.
        labels: Label of every example, at least one.

    Example:
        >>> macro_f1(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 2]))
        0.6666666666666666
    """
    size = 1 + int(torch.maximum(predicted.max(), labels.max()))
    right, of_label, of_prediction = (
        x.bincount(minlength=size).double()
        for x in (labels[predicted == labels], labels, predicted)
    )
    counts = of_label + of_prediction
    return float((2 * right / counts)[counts > 0].mean())


def one_versus_rest(
    name: Literal["auroc", "average_precision"],
    logits: Float[Tensor, "n classes"],
    labels: Int64[Tensor, " n"],
) -> float | None:
    """Mean over classes of a score of the class's probability; ``None`` if no class has one.

    With two classes it is the score of class 1 alone. A class that no example has, or that every
    example has, is left out.

    Args:
        name: Score of a ranking.
        logits: One row per example.
        labels: Labels of the examples.
    """
    shares = logits.double().softmax(dim=-1)
    if logits.shape[-1] == 2:  # the difference keeps the order of probabilities that round to 1
        shares = (logits.double() @ logits.new_tensor([-1.0, 1.0]).double())[:, None]
    first = int(logits.shape[-1] == 2)
    ranked = auroc if name == "auroc" else average_precision
    values = []
    for column in range(shares.shape[1]):
        positive = labels == column + first
        if positive.any() and not positive.all():
            values.append(ranked(shares[:, column], positive))
    return sum(values) / len(values) if values else None


def auroc(scores: Float[Tensor, " n"], positive: Bool[Tensor, " n"]) -> float:
    r"""Area under the ROC curve: the share of pairs of a positive and a negative in right order.

    .. math:: \frac{1}{|P| |N|} \sum_{i \in P, j \in N} [s_i > s_j] + \tfrac 1 2 [s_i = s_j]

    Args:
        scores: Score of every example.
        positive: True for positives; there must be positives and negatives.

    References:
        Hanley and McNeil (1982), doi:10.1148/radiology.143.1.7063747.

    Example:
        >>> auroc(torch.tensor([0.9, 0.4, 0.4, 0.1]), torch.tensor([True, True, False, False]))
        0.875
    """
    others = scores[~positive].sort().values
    own = scores[positive].contiguous()
    below = torch.searchsorted(others, own, right=False)
    up_to = torch.searchsorted(others, own, right=True)
    return float((below + up_to).double().mean()) / (2 * len(others))


def average_precision(scores: Float[Tensor, " n"], positive: Bool[Tensor, " n"]) -> float:
    r"""Precision at every threshold, weighted by the increase of recall: tied scores count once.

    .. math:: \sum_k (R_k - R_{k - 1}) P_k

    Args:
        scores: Score of every example.
        positive: True for positives, of which there must be one.

    Example:
        >>> average_precision(torch.tensor([0.9, 0.5, 0.4]), torch.tensor([True, False, True]))
        0.8333333333333333
    """
    order = scores.argsort(descending=True)
    ranked, right = scores[order], positive[order].double().cumsum(0)
    last = torch.ones_like(positive)  # the last of equal scores stands for their threshold
    last[:-1] = ranked[:-1] != ranked[1:]
    place = torch.arange(1, len(scores) + 1, device=scores.device)[last]
    recall, precision = right[last] / right[-1], right[last] / place
    steps = recall.diff(prepend=recall.new_zeros(1))
    return float((steps * precision).sum())
