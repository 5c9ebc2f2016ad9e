"""Things of different size, of many clients side by side: graphs, for one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedbolic.types import Tree


@dataclass(frozen=True)
class Jagged:
    """Something of each of some clients that cannot be stacked, as a leaf of their context.

    A client's own has one part. A method whose context has such leaves gives its own
    ``stacked_loss`` and ``stacked_step``, which find all clients' parts in one leaf.

    Args:
        parts: By client.
        jagged_sizes: How much work each is; those whose sizes differ much do not go together.

    Example:
        >>> some = Jagged.joined([Jagged(("a",), (3,)), Jagged(("b",), (4,))])
        >>> some[1:].parts
        ('b',)
    """

    parts: tuple[Any, ...]
    sizes: tuple[int, ...]

    @classmethod
    def joined(cls, leaves: Sequence["Jagged"]) -> "Jagged":
        """The parts of all, in order."""
        return cls(
            tuple(part for leaf in leaves for part in leaf.parts),
            tuple(size for leaf in leaves for size in leaf.sizes),
        )

    def __getitem__(self, rows: Tensor | slice) -> "Jagged":
        """The parts of some clients."""
        places = list(range(len(self.parts)))
        chosen = places[rows] if isinstance(rows, slice) else rows.tolist()
        return Jagged(*(tuple(of[i] for i in chosen) for of in (self.parts, self.sizes)))


def jagged_sizes(context: Tree) -> tuple[int, ...] | None:
    """The sizes of the first ragged leaf of a context; ``None`` if it has no such leaf."""
    for value in context.values():
        found = jagged_sizes(value) if isinstance(value, dict) else getattr(value, "sizes", None)
        if found is not None:
            return found
    return None
