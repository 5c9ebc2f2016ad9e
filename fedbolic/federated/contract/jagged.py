"""Values whose size differs between clients, such as graphs, batched without stacking."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedbolic.core.types import Tree


class JaggedBlock(ABC):
    """Joint value of the parts of several clients, in tensors that serve other parts, too.

    A captured step reads it at fixed addresses.
    """

    @classmethod
    @abstractmethod
    def kind(cls, parts: tuple[Any, ...]) -> Hashable:
        """All that blocks must have in common to serve the same parts, in few values."""

    @classmethod
    @abstractmethod
    def with_room(cls, parts: tuple[Any, ...], num_clients: int, like: Any) -> "JaggedBlock":
        """Block of some parts, and of empty ones up to a number of clients.

        Args:
            parts: One part per client.
            num_clients: Number of clients, at least that of the parts.
            like: Smaller block of this class, which had no room for the parts; ``None`` for the
                first one.
        """

    @abstractmethod
    def fits(self, parts: tuple[Any, ...]) -> bool:
        """True if there is room for these parts, of the same kind and of no more clients."""

    @abstractmethod
    def load(self, parts: tuple[Any, ...]) -> None:
        """Copy the values of other parts into the tensors."""

    @abstractmethod
    def mapped(self, function: Callable[[Tensor], Tensor]) -> "JaggedBlock":
        """Copy of the block with a function of every tensor that a step may read, in order."""


@dataclass(frozen=True)
class Jagged:
    """A leaf of client contexts that cannot be stacked, with one part per client.

    The leaf of a single client has one part. A ``loss`` or ``step`` that reads such a leaf needs a
    joint form (:func:`~fedbolic.federated.batched.joint.joint`), which receives the parts of all
    clients in one leaf.

    Args:
        parts: One value per client.
        sizes: Amount of work of each part; clients whose sizes differ much are batched separately.
            0 for a part that no step reads, such as a seed for the end of the round.
        block: Class of a joint value for captured steps; their joint form, or that of a single
            client, then receives a leaf with this block as its only part. ``None`` to capture steps
            for these parts alone.

    Example:
        >>> some = Jagged.joined([Jagged(("a",), (3,)), Jagged(("b",), (4,))])
        >>> some[1:].parts
        ('b',)
    """

    parts: tuple[Any, ...]
    sizes: tuple[int, ...]
    block: type[JaggedBlock] | None = None

    @classmethod
    def joined(cls, leaves: Sequence["Jagged"]) -> "Jagged":
        """Concatenate the parts of several leaves, in order."""
        return cls(
            tuple(part for leaf in leaves for part in leaf.parts),
            tuple(size for leaf in leaves for size in leaf.sizes),
            leaves[0].block,
        )

    def __getitem__(self, rows: Tensor | slice) -> "Jagged":
        """Select the parts of some clients."""
        places = list(range(len(self.parts)))
        chosen = places[rows] if isinstance(rows, slice) else rows.tolist()
        parts, sizes = (tuple(of[i] for i in chosen) for of in (self.parts, self.sizes))
        return replace(self, parts=parts, sizes=sizes)


def jagged_sizes(context: Tree) -> tuple[int, ...] | None:
    """The sizes of the first jagged leaf of a context; ``None`` if it has no such leaf."""
    for value in context.values():
        found = jagged_sizes(value) if isinstance(value, dict) else getattr(value, "sizes", None)
        if found is not None:
            return found
    return None
