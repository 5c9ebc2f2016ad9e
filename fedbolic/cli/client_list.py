"""Table of what the clients of a federation hold, printed before the first round."""

from collections.abc import Iterable

import torch

from fedbolic.data import Client, FederatedData, LabelledSplit
from fedbolic.run.progress import terminal

FIRST_CLIENTS = 20
"""Largest number of clients with a line each."""

LISTED = 10
"""Largest number of classes whose examples are counted one by one."""


class ClientList:
    """Table of the clients before round 1, as a callback of :func:`~fedbolic.run.experiment.run`.

    A private run and one with clients on other machines print nothing.
    """

    def on_run_start(self, round: int, data: FederatedData | None) -> None:
        """Print the table of a run that begins."""
        if round == 0 and data is not None:
            terminal().print(client_list(data), highlight=False, markup=False, soft_wrap=True)


def client_list(data: FederatedData) -> str:
    """Numbers of training, validation and test examples of every client, and of each class.

    Args:
        data: Federated data.

    Returns:
        A line for each of the first :data:`FIRST_CLIENTS` clients, and one for all others.

    Example:
        >>> from fedbolic.core.rng import Rng
        >>> from fedbolic.data import Digits, Partitioned, Shards
        >>> data = Partitioned(Digits(), Shards(num_clients=2, shards_per_client=5)).load(Rng(0))
        >>> print(client_list(data).splitlines()[0])
        client  training  validation  test  training examples by class
    """
    heads = ["client", "training", "validation", "test"]
    first = data.clients[:FIRST_CLIENTS]
    counted = all(isinstance(client.train, LabelledSplit) for client in first)
    lines = [[*heads, *(["training examples by class"] if counted else [])]]
    for client in first:
        sizes = map(len, (client.train, client.validation, client.test))
        classes = [_classes(client, data.meta.num_classes)] if counted else []
        lines.append([str(client.id), *map(str, sizes), *classes])
    text = "\n".join(_aligned(lines))
    if rest := data.sizes[FIRST_CLIENTS:]:
        text += f"\nand {len(rest)} more clients with {min(rest)} to {max(rest)} training examples"
    return text


def _classes(client: Client, num_classes: int) -> str:
    labels = client.train.all()["y"].cpu().to(torch.int64)
    counts = torch.bincount(labels, minlength=num_classes).tolist()
    if len(counts) <= LISTED:
        return " ".join(map(str, counts))
    return f"{sum(map(bool, counts))} of {len(counts)} classes"


def _aligned(lines: list[list[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for *cells, last in lines:
        padded = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=False)]
        yield "  ".join([*padded, last])
