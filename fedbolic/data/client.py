"""Who takes part in a federation, and the data each one holds."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.types import Meta

HOLDOUT = -1
"""The id of the server's own test set, which is evaluated as a client without memory."""


class Split(ABC):
    """A part of a client's data: it knows its number of examples and gives those of an index."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of labelled examples."""

    @abstractmethod
    def at(self, index: Tensor) -> dict[str, Tensor]:
        """The examples at the positions ``index``, as named tensors with one first axis."""

    def all(self) -> dict[str, Tensor]:
        """All examples; the tensors may be the split's own, so they are not to be changed."""
        return self.at(torch.arange(len(self)))

    def part(self, index: Tensor) -> "Split":
        """Some of the examples, as a split of their own."""
        return Examples(self.at(index))

    @abstractmethod
    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Split":
        """The same split on ``device``, its floating tensors as ``dtype``."""


@dataclass(frozen=True, eq=False)
class Examples(Split):
    """Named tensors with one first axis, such as inputs ``x`` and labels ``y``.

    Raises:
        ValueError: If the first axes differ.

    Example:
        >>> split = Examples({"x": torch.arange(6.0).reshape(3, 2), "y": torch.tensor([0, 1, 0])})
        >>> len(split), split.at(torch.tensor([2]))["x"]
        (3, tensor([[4., 5.]]))
    """

    tensors: dict[str, Tensor]

    def __post_init__(self) -> None:
        lengths = {name: len(tensor) for name, tensor in self.tensors.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"examples need one first axis, got lengths {lengths}")

    @override
    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    @override
    def at(self, index: Tensor) -> dict[str, Tensor]:
        return {
            name: tensor.index_select(0, index.to(tensor.device))
            for name, tensor in self.tensors.items()
        }

    @override
    def all(self) -> dict[str, Tensor]:
        return self.tensors

    def cut(self, parts: Sequence[Tensor]) -> list["Examples"]:
        """The examples at each of several indices, laid side by side in one storage.

        Clients whose examples lie so can train together without a copy of all of them.

        Example:
            >>> parts = [torch.tensor([2, 0]), torch.tensor([1, 1])]
            >>> [part.all() for part in Examples({"x": torch.arange(3)}).cut(parts)]
            [{'x': tensor([2, 0])}, {'x': tensor([1, 1])}]
        """
        together = self.at(torch.cat(list(parts)))
        lengths = [len(part) for part in parts]
        cuts = {name: tensor.split(lengths) for name, tensor in together.items()}
        return [Examples({n: c[i] for n, c in cuts.items()}) for i in range(len(lengths))]

    @override
    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Examples":
        return Examples(
            {
                name: tensor.to(device, dtype if tensor.is_floating_point() else None)
                for name, tensor in self.tensors.items()
            }
        )


@dataclass(frozen=True, eq=False)
class Client:
    """One participant and its data, which never leave it.

    Args:
        id: Its number, from 0; :data:`HOLDOUT` for the server's own test set.
        train: What it learns from.
        validation: What choices are made on; may be empty.
        test: What it is judged by; may be empty.
        meta: What every party knows of the federation.
    """

    id: int
    train: Split
    validation: Split
    test: Split
    meta: Meta

    @property
    def size(self) -> int:
        """The number of labelled training examples: N_k."""
        return len(self.train)

    @functools.cached_property
    def no_inputs(self) -> Tensor:
        """An empty batch of inputs: it shows the device and dtype of this client's data."""
        return self.train.at(torch.arange(0))["x"]

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Client":
        """The same client with its data on ``device``."""
        splits = (split.to(device, dtype) for split in (self.train, self.validation, self.test))
        return Client(self.id, *splits, meta=self.meta)


@dataclass(frozen=True, eq=False)
class FederatedData:
    """The clients of a federation and what the server holds.

    Args:
        clients: In the order of their ids 0, 1, ...
        meta: What every party may know beforehand.
        holdout: The server's own test set, as a client whose other splits are empty; or none.
        reported_sizes: :attr:`sizes` of clients whose data are elsewhere; ``None``: they are here.

    Raises:
        ValueError: If ids are not 0, 1, ... in order.
    """

    clients: tuple[Client, ...]
    meta: Meta
    holdout: Client | None = None
    reported_sizes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        ids = [client.id for client in self.clients]
        if ids != list(range(len(ids))):
            raise ValueError(f"client ids must be 0, 1, ... in order, got {ids[:10]}")

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of labelled training examples of every client, by id: the server's record."""
        if self.reported_sizes is not None:
            return self.reported_sizes
        return tuple(client.size for client in self.clients)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "FederatedData":
        """The same federation with all data on ``device``."""
        holdout = None if self.holdout is None else self.holdout.to(device, dtype)
        clients = tuple(client.to(device, dtype) for client in self.clients)
        return FederatedData(clients, self.meta, holdout, self.reported_sizes)
