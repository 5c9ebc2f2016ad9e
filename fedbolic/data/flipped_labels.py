"""Federated data with flipped training labels at some clients."""

import dataclasses
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.data.contract.client import Client, Examples, FederatedData
from fedbolic.data.contract.source import Source


@dataclass(frozen=True)
class FlippedLabels(Source):
    r"""A source in which chosen clients train on flipped labels, :math:`y \mapsto C - 1 - y`.

    An attack on the data, for experiments: these clients follow the protocol. Only the labels of
    training examples are flipped, so scores on validation and test examples remain honest.

    Args:
        source: Source of the honest data.
        clients: Ids of the clients whose labels are flipped; empty for none.

    Raises:
        ValueError: If an id is negative or repeated, or (from ``load``) there is no such client or
            its training examples have no class labels.

    References:
        Fang et al. (2020), label flipping attack, arXiv:1911.11815.

    Example:
        >>> from fedbolic.data import IID, Partitioned
        >>> source = Partitioned(partition=IID(5))
        >>> honest, data = (s.load(Rng(0)) for s in (source, FlippedLabels(source, (2,))))
        >>> honest.clients[2].train.all()["y"][:4], data.clients[2].train.all()["y"][:4]
        (tensor([1, 5, 6, 0]), tensor([8, 4, 3, 9]))
    """

    source: Source
    clients: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(set(self.clients)) < len(self.clients) or min(self.clients, default=0) < 0:
            raise ValueError(f"clients must be different ids from 0 on, got {list(self.clients)}")

    @override
    def load(self, rng: Rng) -> FederatedData:
        data = self.source.load(rng)
        if unknown := [i for i in self.clients if i >= len(data.clients)]:
            raise ValueError(
                f"clients {unknown} have no labels, as the ids are 0 .. {len(data.clients) - 1}"
            )
        if not self.clients:
            return data
        chosen = set(self.clients)
        clients = (_flipped(each) if each.id in chosen else each for each in data.clients)
        return dataclasses.replace(data, clients=tuple(clients))

    @override
    def raw_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.source.raw_shape(shape)

    @override
    def preprocess(self, x: Tensor) -> Tensor:
        return self.source.preprocess(x)


def _flipped(client: Client) -> Client:
    train = client.train
    if not (isinstance(train, Examples) and "y" in train.tensors):
        raise ValueError(
            f"the training examples of client {client.id} have no class labels 'y' to flip"
        )
    labels = client.meta.num_classes - 1 - train.tensors["y"]
    return dataclasses.replace(client, train=Examples({**train.tensors, "y": labels}))
