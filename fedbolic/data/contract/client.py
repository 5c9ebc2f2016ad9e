"""Clients of a federation and their data."""

import dataclasses
import functools
import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, overload
from weakref import WeakValueDictionary

import torch
from jaxtyping import Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.core.types import Meta

HOLDOUT = -1
"""Id of the server's own test set, which is evaluated as a client without client state."""


class Split(ABC):
    """Training, validation or test examples of one client, accessed by position."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of labelled examples."""

    @abstractmethod
    def at(self, index: Tensor) -> dict[str, Tensor]:
        """The examples at the positions ``index``, as named tensors with a common first axis."""

    def all(self) -> dict[str, Tensor]:
        """All examples, possibly the split's own tensors: do not modify them in place."""
        return self.at(torch.arange(len(self)))

    @property
    def no_examples(self) -> dict[str, Tensor]:
        """An empty batch."""
        return self.at(torch.arange(0))

    @property
    def no_inputs(self) -> Tensor:
        """An empty batch of inputs; its device and dtype are those in which a model works."""
        return self.no_examples["x"]

    @property
    def numbering(self) -> str:
        """Digest of what numbers in the examples stand for, such as nodes; by default empty.

        A second digest after a colon is of what else all clients know. Clients with other digests
        cannot train together, so a deployment refuses them.
        """
        return ""

    def part(self, index: Tensor) -> "Split":
        """A new split with the examples at the positions ``index``."""
        return Examples(self.at(index))

    @abstractmethod
    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Split":
        """The same split on ``device``, with floating-point tensors converted to ``dtype``."""


KnownSplit = TypeVar("KnownSplit", bound=Split)


class LabelledSplit(Split):
    """Examples with features ``x`` and a label ``y``, from which a classifier can learn."""


@dataclass(frozen=True, eq=False)
class Examples(LabelledSplit):
    """Named tensors with a common first axis, such as inputs ``x`` and labels ``y``.

    Raises:
        ValueError: If the first axes differ in length.

    Example:
        >>> split = Examples({"x": torch.arange(6.0).reshape(3, 2), "y": torch.tensor([0, 1, 0])})
        >>> len(split), split.at(torch.tensor([2]))["x"]
        (3, tensor([[4., 5.]]))
    """

    tensors: dict[str, Tensor]

    def __post_init__(self) -> None:
        lengths = {name: len(tensor) for name, tensor in self.tensors.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"examples need first axes of one length, got {lengths}")

    @override
    def __len__(self) -> int:
        return next(iter(self.tensors.values())).shape[0]

    @override
    def at(self, index: Tensor) -> dict[str, Tensor]:
        return {
            name: tensor.index_select(0, index.to(tensor.device))
            for name, tensor in self.tensors.items()
        }

    @override
    def all(self) -> dict[str, Tensor]:
        return self.tensors

    @property
    @override
    def no_examples(self) -> dict[str, Tensor]:
        return {name: tensor[:0] for name, tensor in self.tensors.items()}

    def cut(self, parts: Sequence[Tensor]) -> list["Examples"]:
        """Splits with the examples at each of several indices, contiguous in one storage.

        With this layout, clients can train together without copying all of their examples.

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
    """One participant of the federation and its private data.

    Args:
        id: Number of the client, from 0; :data:`HOLDOUT` for the server's own test set.
        train: Training examples.
        validation: Examples for model selection; may be empty.
        test: Test examples; may be empty.
        meta: Facts about the federation that every party knows.
        class_names: Names of the classes of a node's own data; empty elsewhere.
    """

    id: int
    train: Split
    validation: Split
    test: Split
    meta: Meta
    class_names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The number of labelled training examples, N_k."""
        return len(self.train)

    @functools.cached_property
    def no_inputs(self) -> Tensor:
        """An empty batch of inputs, with the device and dtype of this client's data."""
        return self.train.no_inputs

    def split_of(self, kind: type[KnownSplit], name: str = "train") -> KnownSplit:
        """Examples of the kind from which a method learns.

        Args:
            kind: The kind.
            name: ``train``, ``validation`` or ``test``.

        Raises:
            ValueError: If the examples are of another kind.
        """
        found = getattr(self, name)
        if not isinstance(found, kind):
            raise ValueError(
                f"the method learns from {kind.__name__}, and a client holds {type(found).__name__}"
            )
        return found

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Client":
        """The same client with its data on ``device``."""
        splits = (split.to(device, dtype) for split in (self.train, self.validation, self.test))
        return Client(self.id, *splits, meta=self.meta, class_names=self.class_names)


HELD = 1024
"""Number of clients that a :class:`ClientSlices` keeps alive; most federations are smaller."""


class ClientSlices(Sequence[Client]):
    """Clients created on access, with the examples of all of them contiguous in one storage.

    A :class:`Client` takes some kilobytes of Python objects; until it is accessed, three numbers
    stand for it here. Accessing a client that is still alive returns the same object, and the most
    recently created clients are kept alive.

    Args:
        splits: Training, validation and test examples of all clients, client 0 first.
        lengths: Number of examples by split (row) and client (column).
        meta: Facts about the federation that every party knows.

    Raises:
        ValueError: If the lengths of a split do not add up to its number of examples.

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
            raise ValueError(f"lengths of clients must add up to those of the splits, {found}")
        self.splits, self.lengths, self.meta = splits, lengths, meta
        self._ends = lengths.cumsum(dim=1)
        self._made: WeakValueDictionary[int, Client] = WeakValueDictionary()
        self._last_made: deque[Client] = deque(maxlen=HELD)

    @classmethod
    def dealt(
        cls, examples: Examples, parts: Iterable[Sequence[Tensor]], meta: Meta
    ) -> "ClientSlices":
        """Distribute examples among clients by index.

        Args:
            examples: Examples of all clients.
            parts: Indices of the training, validation and test examples of every client.
            meta: Facts about the federation that every party knows.
        """
        remaining, blocks, lengths = iter(parts), [], []
        # in blocks, because an index tensor per client takes much memory for many clients
        while block := list(itertools.islice(remaining, HELD)):
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
    """The clients of a federation and the server's test set.

    Args:
        clients: Clients in the order of their ids 0, 1, ...
        meta: Facts about the federation that every party knows beforehand.
        holdout: The server's own test set, as a client whose other splits are empty; or ``None``.
        reported_sizes: :attr:`sizes` reported by clients on other machines; ``None`` if all data
            are in this process.
        class_names: Name of every class, by label; empty if the classes have no names.

    Raises:
        ValueError: If the ids are not 0, 1, ... in order.
    """

    clients: Sequence[Client]
    meta: Meta
    holdout: Client | None = None
    reported_sizes: tuple[int, ...] | None = None
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.clients, ClientSlices):
            return  # creates its clients with these ids
        ids = [client.id for client in self.clients]
        if ids != list(range(len(ids))):
            raise ValueError(f"client ids must be 0, 1, ... in order, got {ids[:10]}")

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of labelled training examples of every client, by id."""
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
        return dataclasses.replace(self, clients=clients, holdout=holdout)

    def without_clients(self) -> "FederatedData":
        """The federation without its clients: only the test set of the server is left."""
        return dataclasses.replace(self, clients=(), reported_sizes=None)
