"""Scores beyond accuracy and loss that an evaluation may ask for by name, by torchmetrics.

Some scores of the federation are those of the pooled examples: every client gives sums, and the
score is a function of the sums over clients. The sums travel next to a client's scores, under
names that contain ``sums/``, and are not recorded.
"""

import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedbolic.core import check
from fedbolic.core.imports import extra
from fedbolic.federated.scores.score_histograms import (
    MetricSums,
    histogram_auroc,
    score_histograms,
)

Metric = Literal[
    "macro_f1", "auroc", "average_precision", "calibration_error", "top_2", "top_3", "top_5"
]

EXTRA_METRICS: tuple[Metric, ...] = get_args(Metric)
"""Names of the additional scores."""

NUM_BINS = 15
"""Bins of the calibration error, of equal width, as in Guo et al. (2017)."""

SUM_NAME = re.compile(r"sums/(macro_f1|calibration_error|auroc)/([a-z]+)\.(\d{1,9})", re.ASCII)
"""Name of a sum: the metric, the kind of the sum, and the class or bin."""

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
    """The additional scores of the current context that these examples determine, and their sums.

    Args:
        logits: One row per example, at least one.
        labels: Labels of the examples.
    """
    found: dict[str, float] = {}
    for name in measured():
        if name == "macro_f1":
            found |= label_scores(logits.argmax(dim=-1), labels, num_classes=logits.shape[-1])
        elif name == "calibration_error":
            found |= _calibration(logits, labels)
        elif name == "auroc" or name == "average_precision":
            value = one_versus_rest(name, logits, labels)
            found |= {} if value is None else {name: value}
            if name == "auroc":
                found |= _named(name, score_histograms(logits, labels))
        else:
            found[name] = _top(int(name.removeprefix("top_")), logits, labels)
    return found


def label_scores(
    predicted: Int64[Tensor, " n"], labels: Int64[Tensor, " n"], *, num_classes: int
) -> dict[str, float]:
    r"""Mean of the F1 scores of the classes that occur among labels or predictions, and its sums.

    .. math:: F_1(k) = \frac{2 \, TP_k}{2 \, TP_k + FP_k + FN_k}

    Args:
        predicted: Predicted label of every example.
        labels: Label of every example, at least one.
        num_classes: Number of classes.

    Example:
        >>> scores = label_scores(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 2]), num_classes=3)
        >>> round(scores["macro_f1"], 6)
        0.666667
    """
    counts = _torchmetrics().multiclass_stat_scores(
        predicted, labels, max(num_classes, 2), average="none", validate_args=False
    )
    kinds = zip(("tp", "fp", "fn"), counts[:, [0, 1, 3]].T.double().tolist(), strict=True)
    sums = {kind: dict(enumerate(values)) for kind, values in kinds}
    return {"macro_f1": _macro_f1(sums), **_named("macro_f1", sums)}


def _macro_f1(sums: MetricSums) -> float:
    values = []
    for k in sums["tp"]:
        tp, fp, fn = (sums[kind].get(k, 0.0) for kind in ("tp", "fp", "fn"))
        if tp + fp + fn:
            values.append(2 * tp / (2 * tp + fp + fn))
    return sum(values) / len(values) if values else 0.0


def _calibration(
    logits: Float[Tensor, "n classes"], labels: Int64[Tensor, " n"]
) -> dict[str, float]:
    r"""Expected calibration error, and its sums in bins of the confidence.

    .. math:: \sum_b \frac{|B_b|}{n} \, |\mathrm{acc}(B_b) - \mathrm{conf}(B_b)|

    References:
        Guo et al. (2017), Eq. 3, arXiv:1706.04599.
    """
    shares = logits.double().softmax(dim=-1)
    error = _torchmetrics().multiclass_calibration_error(
        shares, labels, logits.shape[-1], NUM_BINS, validate_args=False
    )
    confidence, predicted = shares.max(dim=-1)
    edges = torch.linspace(0, 1, NUM_BINS + 1, dtype=shares.dtype, device=shares.device)
    bins = torch.bucketize(confidence, edges, right=True) - 1
    weights = {
        "count": torch.ones_like(confidence),
        "conf": confidence,
        "right": (predicted == labels).double(),
    }
    sums = {
        kind: dict(enumerate(bins.bincount(weight, NUM_BINS + 1).tolist()))
        for kind, weight in weights.items()
    }
    return {"calibration_error": float(error), **_named("calibration_error", sums)}


def _calibration_error(sums: MetricSums) -> float:
    bins = sums["count"]
    gaps = (abs(sums["conf"].get(b, 0.0) - sums["right"].get(b, 0.0)) for b in bins)
    num = sum(bins.values())
    return sum(gaps) / num if num else 0.0


def _top(k: int, logits: Float[Tensor, "n classes"], labels: Int64[Tensor, " n"]) -> float:
    """Fraction of examples whose label is among the ``k`` largest logits."""
    num_classes = logits.shape[-1]
    if k >= num_classes:
        return 1.0
    return float(_torchmetrics().multiclass_accuracy(logits, labels, num_classes, "micro", top_k=k))


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
    values = []
    for column in range(shares.shape[1]):
        positive = labels == column + first
        if positive.any() and not positive.all():
            values.append(_ranked(name, shares[:, column], positive))
    return sum(values) / len(values) if values else None


def _ranked(name: str, scores: Float[Tensor, " n"], positive: Bool[Tensor, " n"]) -> float:
    # torchmetrics applies a sigmoid to scores outside [0, 1], which would round some to ties
    ranks = scores.unique(return_inverse=True)[1].double() / len(scores)
    score = getattr(_torchmetrics(), f"binary_{name}")
    return float(score(ranks, positive.long()))


def _torchmetrics() -> ModuleType:
    with extra("scores", "this metric"):
        # imported where it is needed, because it takes two seconds
        from torchmetrics.functional import classification
    return classification


def _named(metric: str, sums: MetricSums) -> dict[str, float]:
    """The sums by name, without those that are 0."""
    return {
        f"sums/{metric}/{kind}.{i}": value
        for kind, values in sums.items()
        for i, value in values.items()
        if value
    }


_POOLED: dict[str, tuple[tuple[str, ...], Callable[[MetricSums], dict[str, float]]]] = {
    "macro_f1": (("tp", "fp", "fn"), lambda sums: {"macro_f1": _macro_f1(sums)}),
    "calibration_error": (
        ("count", "conf", "right"),
        lambda sums: {"calibration_error": _calibration_error(sums)},
    ),
    "auroc": (("positive", "negative"), histogram_auroc),
}
"""Kinds of the sums of a metric, and the function from the sums to scores by name."""


def is_sum(name: str) -> bool:
    """True for the name of a sum, which is not a score.

    Example:
        >>> is_sum("test/sums/macro_f1/tp.3"), is_sum("test/macro_f1")
        (True, False)
    """
    return "sums/" in name


def pooled_scores(scores: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Scores of the pooled examples of several clients, by name with the split.

    Args:
        scores: Scores and sums of every client; sums of unknown metrics are ignored.

    Example:
        >>> two = ({"test/sums/macro_f1/tp.0": 3.0}, {"test/sums/macro_f1/fp.0": 2.0})
        >>> pooled_scores(two)
        {'test/macro_f1': 0.75}
    """
    totals: dict[tuple[str, str], MetricSums] = {}
    for named in scores:
        for name, value in named.items():
            split, _, rest = name.partition("/")
            found = SUM_NAME.fullmatch(rest)
            if found and found[2] in _POOLED[found[1]][0]:
                kinds = _POOLED[found[1]][0]
                sums = totals.setdefault(
                    (split, found[1]), {kind: defaultdict(float) for kind in kinds}
                )
                for kind in kinds:
                    sums[kind][int(found[3])] += value if kind == found[2] else 0.0
    return {
        f"{split}/{name}": value
        for (split, metric), sums in totals.items()
        for name, value in _POOLED[metric][1](sums).items()
    }
