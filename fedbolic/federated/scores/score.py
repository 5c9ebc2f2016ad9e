"""Accuracy, loss and additional scores of a classifier on a client's own data."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Client, Split
from fedbolic.federated.aggregators.update import host_or_scalar, on_host, split_columns
from fedbolic.federated.scores.metrics import extra_scores, label_scores, measured
from fedbolic.nn.network.model import Model

CHUNK = 1024
"""Maximum examples scored at once: enough to saturate the machine, few enough for any memory."""


def chunks(num_examples: int, device: torch.device | None = None) -> tuple[Tensor, ...]:
    """Positions of all examples, in parts of at most :data:`CHUNK` whose sizes differ by at most 1.

    Equal parts avoid a last part of one example, for which batch norm has no variance.

    Args:
        num_examples: Number of examples.
        device: Device of the positions; ``None`` for torch's own.

    Example:
        >>> [len(part) for part in chunks(1025)]
        [513, 512]
    """
    positions = torch.arange(num_examples, device=device)
    return positions.tensor_split(max(1, -(-num_examples // CHUNK)))


@runtime_checkable
class Predictor(Protocol):
    """The part of a gradient method that its scores need."""

    def model(self, meta: Meta) -> Model:
        """The architecture."""
        ...

    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        """One logit per class for every example."""
        ...


def score(method: Predictor, local: Tree, context: Tree, client: Client) -> dict[str, float]:
    """Scores of a client's model ``local``: :func:`score_logits` of the method's predictions."""
    model = method.model(client.meta)
    return score_logits(lambda batch: method.predict(model, local, batch, context), client)


def score_logits(logits: Callable[[Params], Tensor], client: Client) -> dict[str, float]:
    """Scores on the client's validation and test examples; an empty split has no scores.

    Args:
        logits: Function from a batch to one logit per class for every example.
        client: Client with the examples.

    Returns:
        ``test/accuracy`` (in [0, 1]), ``test/loss`` (mean cross-entropy of the logits, in nats),
        ``test/examples``, the additional scores of the current context, and the same for
        ``validation``.
    """
    return all_on_host([unread_scores(logits, client)])[0]


def unread_scores(logits: Callable[[Params], Tensor], client: Client) -> dict[str, float | Tensor]:
    """The same, whose tensors on an accelerator :func:`all_on_host` brings to the host.

    Args:
        logits: Function from a batch to one logit per class for every example.
        client: Client with the examples.
    """
    splits = {"validation": client.validation, "test": client.test}
    return {
        f"{name}/{metric}": value
        for name, split in splits.items()
        if len(split)
        for metric, value in _score(logits, split, client.no_inputs.device).items()
    }


def score_labels(labels: Callable[[Params], Tensor], client: Client) -> dict[str, float]:
    """Scores of predicted labels, for models without logits and therefore without a loss.

    Args:
        labels: Function from all examples of a split to their labels, or to one label for all.
        client: Client with the validation and test examples.

    Returns:
        ``test/accuracy`` (in [0, 1]), ``test/examples``, ``test/macro_f1`` if the current context
        asks for it, and the same for ``validation``.
    """
    scores = {}
    for name, split in {"validation": client.validation, "test": client.test}.items():
        if len(split):
            examples = split.all()
            predicted = labels(examples).expand_as(examples["y"])
            right = predicted == examples["y"]
            scores[f"{name}/accuracy"] = float(right.double().mean())
            if "macro_f1" in measured():
                found = label_scores(predicted, examples["y"], num_classes=client.meta.num_classes)
                scores |= {f"{name}/{metric}": value for metric, value in found.items()}
            scores[f"{name}/examples"] = float(len(split))
    return scores


def score_values(
    logits: Float[Tensor, "n classes"], labels: Int64[Tensor, " n"]
) -> dict[str, float | Tensor]:
    """Scores of computed logits, as in :func:`score_logits`: ``accuracy``, ``loss`` and others.

    On an accelerator, accuracy and loss stay there; :func:`all_on_host` brings them to the host.

    Args:
        logits: One row per example, at least one.
        labels: Labels of the examples.
    """
    correct, loss = _sums(logits, labels)
    return _means(correct, loss, len(labels)) | extra_scores(logits, labels)


def stacked_score_values(
    logits: Float[Tensor, "clients n classes"],
    labels: Int64[Tensor, "clients n"],
    lengths: Sequence[int],
    *,
    counts: Int64[Tensor, " clients"] | None = None,
) -> list[dict[str, float | Tensor]]:
    """The scores of :func:`score_values` of several clients; empty for one without examples.

    Args:
        logits: Logits of every client's examples, padded at the end.
        labels: Their labels, padded likewise.
        lengths: Number of examples of every client.
        counts: The same on the device of the logits; ``None`` to copy them there.
    """
    num_clients, width = labels.shape
    if counts is None:
        counts = torch.tensor(lengths, device=labels.device)
    valid = torch.arange(width, device=labels.device) < counts.unsqueeze(1)
    values = _full_precision(logits)
    losses = cross_entropy(values.flatten(0, 1), labels.flatten(), reduction="none")
    losses = losses.view(num_clients, width).double().masked_fill(~valid, 0.0)
    right = (values.argmax(dim=-1) == labels) & valid
    sums = torch.stack((right.sum(dim=1), losses.sum(dim=1))) / counts.clamp(min=1)
    columns = {"accuracy": sums[0], "loss": sums[1]}
    rows = zip(split_columns(columns, num_clients), logits, labels, lengths, strict=True)
    return [
        scores | {"examples": float(n)} | extra_scores(of_client[:n], of_labels[:n]) if n else {}
        for scores, of_client, of_labels, n in rows
    ]


def all_on_host(scores: Sequence[Mapping[str, float | Tensor]]) -> list[dict[str, float]]:
    """Scores of several clients as numbers; the host waits once for all on an accelerator.

    Args:
        scores: Numbers of every client, or tensors without axes.
    """
    there = [x for of_client in scores for x in of_client.values() if isinstance(x, Tensor)]
    return with_numbers(scores, [x.item() for x in on_host(there)])


def with_numbers(
    scores: Sequence[Mapping[str, float | Tensor]], numbers: Sequence[float]
) -> list[dict[str, float]]:
    """Scores of several clients with numbers in the place of tensors, in their order.

    Args:
        scores: Numbers of every client, or tensors without axes.
        numbers: The values of all tensors.
    """
    found = iter(numbers)
    return [
        {name: next(found) if isinstance(x, Tensor) else x for name, x in of_client.items()}
        for of_client in scores
    ]


def _score(
    logits: Callable[[Params], Tensor], split: Split, device: torch.device
) -> dict[str, float | Tensor]:
    sums, kept = [], []
    with torch.no_grad():
        for index in chunks(len(split), device):
            batch = split.at(index)
            found = logits(batch)
            sums.append(_sums(found, batch["y"]))
            kept += [(found, batch["y"])] if measured() else []
    correct, loss = (torch.stack(parts).sum() for parts in zip(*sums, strict=True))
    extra = extra_scores(*(torch.cat(parts) for parts in zip(*kept, strict=True))) if kept else {}
    return _means(correct, loss, len(split)) | extra


def _full_precision(logits: Tensor) -> Tensor:
    """Logits in float32 at least, as those of a network under autocast may be in less."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _sums(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    values = _full_precision(logits)
    loss = cross_entropy(values, labels, reduction="sum")
    return (values.argmax(dim=-1) == labels).sum(), loss.double()


def _means(correct: Tensor, loss: Tensor, num_examples: int) -> dict[str, float | Tensor]:
    accuracy, mean_loss = torch.stack((correct, loss)) / num_examples
    return {
        "accuracy": host_or_scalar(accuracy),
        "loss": host_or_scalar(mean_loss),
        "examples": float(num_examples),
    }
