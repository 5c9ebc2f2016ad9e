"""Accuracy and loss of a classifier on a client's own data."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedbolic.data.client import Client, Split
from fedbolic.types import Params, Tree

if TYPE_CHECKING:
    from fedbolic.federated.gradient_method import GradientMethod

CHUNK = 1024
"""Most examples scored at once: enough to fill the machine, little enough for any memory."""


def chunks(num_examples: int) -> tuple[Tensor, ...]:
    """The positions of all examples, in parts that differ by one at most.

    So no last part is a single example, of which batch norm by batch statistics has no variance.

    Example:
        >>> [len(part) for part in chunks(1025)]
        [513, 512]
    """
    return torch.arange(num_examples).tensor_split(max(1, -(-num_examples // CHUNK)))


def score(method: "GradientMethod", local: Tree, context: Tree, client: Client) -> dict[str, float]:
    """Scores of ``local`` at a client: :func:`score_logits` of what the method predicts there."""
    model = method.model(client.meta)
    return score_logits(lambda batch: method.predict(model, local, batch, context), client)


def score_logits(logits: Callable[[Params], Tensor], client: Client) -> dict[str, float]:
    """Scores on the client's validation and test examples, as far as there are any.

    Args:
        logits: From a batch to one logit per class for every example.
        client: On whose examples.

    Returns:
        ``test/accuracy`` (a share), ``test/loss`` (mean cross-entropy of the logits, in nats),
        ``test/examples``, and the same for ``validation``.
    """
    splits = {"validation": client.validation, "test": client.test}
    return {
        f"{name}/{metric}": value
        for name, split in splits.items()
        if len(split)
        for metric, value in _score(logits, split).items()
    }


def score_labels(labels: Callable[[Params], Tensor], client: Client) -> dict[str, float]:
    """Scores of predicted labels, for models that have no logits to give a loss of.

    Args:
        labels: From all examples of a split to the label of each, or one for all.
        client: On whose validation and test examples.

    Returns:
        ``test/accuracy`` (a share), ``test/examples``, and the same for ``validation``.
    """
    scores = {}
    for name, split in {"validation": client.validation, "test": client.test}.items():
        if len(split):
            examples = split.all()
            right = labels(examples) == examples["y"]
            scores[f"{name}/accuracy"] = float(right.double().mean())
            scores[f"{name}/examples"] = float(len(split))
    return scores


def score_values(
    logits: Float[Tensor, "n classes"], labels: Int64[Tensor, " n"]
) -> dict[str, float]:
    """``accuracy``, ``loss`` and ``examples`` of logits that are there already, at least one row.

    Args:
        logits: One row for every example.
        labels: Of the examples.
    """
    correct, loss = _sums(logits, labels)
    return _means(correct, loss, len(labels))


def _score(logits: Callable[[Params], Tensor], split: Split) -> dict[str, float]:
    sums = []
    with torch.no_grad():
        for index in chunks(len(split)):
            batch = split.at(index)
            sums.append(_sums(logits(batch), batch["y"]))
    correct, loss = (torch.stack(parts).sum() for parts in zip(*sums, strict=True))
    return _means(correct, loss, len(split))


def _sums(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    values = logits.float()
    loss = cross_entropy(values, labels, reduction="sum")
    return (values.argmax(dim=-1) == labels).sum(), loss.double()


def _means(correct: Tensor, loss: Tensor, num_examples: int) -> dict[str, float]:
    return {
        "accuracy": int(correct) / num_examples,
        "loss": float(loss) / num_examples,
        "examples": float(num_examples),
    }
