"""Accuracy and loss of a classifier on a client's own data."""

import torch
from torch.nn.functional import cross_entropy

from fedbolic.data.client import Client, Split
from fedbolic.federated.stepped import Stepped
from fedbolic.nn.model import Model
from fedbolic.types import Tree

CHUNK = 1024
"""Examples scored at once: enough to fill the machine, little enough for any memory."""


def score(method: Stepped, local: Tree, context: Tree, client: Client) -> dict[str, float]:
    """Scores of ``local`` on the client's validation and test examples, as far as there are any.

    Returns:
        ``test/accuracy`` (a share), ``test/loss`` (mean cross-entropy of the logits, in nats),
        ``test/examples``, and the same for ``validation``.
    """
    model = method.model(client.meta)
    splits = {"validation": client.validation, "test": client.test}
    return {
        f"{name}/{metric}": value
        for name, split in splits.items()
        if len(split)
        for metric, value in _score(method, model, local, context, split).items()
    }


def _score(
    method: Stepped, model: Model, local: Tree, context: Tree, split: Split
) -> dict[str, float]:
    correct, loss = [], []
    with torch.no_grad():
        for index in torch.arange(len(split)).split(CHUNK):
            batch = split.at(index)
            logits = method.predict(model, local, batch, context).float()
            correct.append((logits.argmax(dim=-1) == batch["y"]).sum())
            loss.append(cross_entropy(logits, batch["y"], reduction="sum").double())
    return {
        "accuracy": int(torch.stack(correct).sum()) / len(split),
        "loss": float(torch.stack(loss).sum()) / len(split),
        "examples": float(len(split)),
    }
