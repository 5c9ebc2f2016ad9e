"""Clients of a federation and the data that each one holds."""

import functools
import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload
from weakref import WeakValueDictionary

import torch
from jaxtyping import Int64
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


HELD = 1024
"""Clients that a :class:`ClientSlices` keeps alive: all of a federation of usual size."""


class ClientSlices(Sequence[Client]):
    """Clients whose examples lie one after another in one storage, each made when it is asked for.

    A client takes some kilobytes of Python objects, and here three numbers until somebody needs it.
    It is the same object as long as it is held; those made last are held here.

    Args:
        splits: Training, validation and test examples, of client 0 first.
        lengths: The number of examples of each split (a row) of every client.
        meta: What every party knows of the federation.

    Raises:
        ValueError: If a split has another number of examples than its lengths add up to.

    Example:
        >>> rows = Examples({"x": torch.arange(5.0), "y": torch.zeros(5, dtype=torch.int64)})
        >>> none = Examples(rows.at(torch.arange(0)))
        >>> lengths = torch.tensor([[2, 3], [0, 0], [0, 0]])
        >>> clients = ClientSlices((rows, none, none), lengths, Meta(1, (), 2))
        >>> len(clients), clients[1].train.all()["x"]
        (2, tensor([2., 3., 4.]))
    """

    def __init__(
        self, splits: tuple[Examples, Examples, Examples], lengths: Int64[Tensor, "3 n"], meta: Meta
    ) -> None:
        if (found := [len(split) for split in splits]) != lengths.sum(dim=1).tolist():
            raise ValueError(f"lengths of clients add up to others than those of splits: {found}")
        self.splits, self.lengths, self.meta = splits, lengths, meta
        self._ends = lengths.cumsum(dim=1)
        self._made: WeakValueDictionary[int, Client] = WeakValueDictionary()
        self._last_made: deque[Client] = deque(maxlen=HELD)

    @classmethod
    def dealt(
        cls, examples: Examples, parts: Iterable[Sequence[Tensor]], meta: Meta
    ) -> "ClientSlices":
        """Clients that get the examples at their indices.

        Args:
            examples: Of all.
            parts: For every client its indices of training, validation and test examples.
            meta: What every party knows of the federation.
        """
        remaining, blocks, lengths = iter(parts), [], []
        while block := list(itertools.islice(remaining, HELD)):  # many small tensors take much
            lengths += [[len(index) for index in part] for part in block]
            blocks.append([torch.cat(indices) for indices in zip(*block, strict=True)])
        train, validation, test = (
            Examples(examples.at(torch.cat(indices))) for indices in zip(*blocks, strict=True)
        )
        return cls((train, validation, test), torch.tensor(lengths).T.contiguous(), meta)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return ClientSlices, (self.splits, self.lengths, self.meta)

    @override
    def __len__(self) -> int:
        return self.lengths.shape[1]

    @overload
    def __getitem__(self, index: int) -> Client: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Client, ...]: ...
    @override
    def __getitem__(self, index: int | slice) -> Client | tuple[Client, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(len(self))[index])
        client_id = range(len(self))[index]
        client = self._made.get(client_id)
        if client is None:
            client = self._made[client_id] = self._make(client_id)
            self._last_made.append(client)
        return client

    def _make(self, client_id: int) -> Client:
        ends, lengths = (x[:, client_id].tolist() for x in (self._ends, self.lengths))
        train, validation, test = (
            Examples({name: tensor[end - n : end] for name, tensor in split.tensors.items()})
            for split, end, n in zip(self.splits, ends, lengths, strict=True)
        )
        return Client(client_id, train, validation, test, self.meta)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "ClientSlices":
        """The same clients with their examples on ``device``."""
        train, validation, test = (split.to(device, dtype) for split in self.splits)
        return ClientSlices((train, validation, test), self.lengths, self.meta)


@dataclass(frozen=True, eq=False)
class FederatedData:
    """The clients of a federation and what the server holds.

    Args:
        clients: In the order of their ids 0, 1, ...
        meta: What every party may know beforehand.
        holdout: The server's own test set, as a client whose other splits are empty; or ``None``.
        reported_sizes: :attr:`sizes` of clients whose data are elsewhere; ``None``: they are here.

    Raises:
        ValueError: If ids are not 0, 1, ... in order.
    """

    clients: Sequence[Client]
    meta: Meta
    holdout: Client | None = None
    reported_sizes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.clients, ClientSlices):
            return  # they are made with these ids
        ids = [client.id for client in self.clients]
        if ids != list(range(len(ids))):
            raise ValueError(f"client ids must be 0, 1, ... in order, got {ids[:10]}")

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of labelled training examples of every client, by id: the server's record."""
        if self.reported_sizes is not None:
            return self.reported_sizes
        if isinstance(self.clients, ClientSlices):
            return tuple(self.clients.lengths[0].tolist())
        return tuple(client.size for client in self.clients)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "FederatedData":
        """The same federation with all data on ``device``."""
        holdout = None if self.holdout is None else self.holdout.to(device, dtype)
        clients: Sequence[Client]
        if isinstance(self.clients, ClientSlices):
            clients = self.clients.to(device, dtype)
        else:
            clients = tuple(client.to(device, dtype) for client in self.clients)
        return FederatedData(clients, self.meta, holdout, self.reported_sizes)
