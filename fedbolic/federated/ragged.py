"""Things of different size, of many clients side by side: graphs, for one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedbolic.types import Tree


@dataclass(frozen=True)
class Ragged:
    """Something of each of some clients that cannot be stacked, as a leaf of their context.

    A client's own has one part. A method whose context has such leaves gives its own
    ``stacked_loss`` and ``stacked_step``, which find all clients' parts in one leaf.

    Args:
        parts: By client.
        sizes: How much work each is; those whose sizes differ much do not go together.

    Example:
        >>> some = Ragged.side_by_side([Ragged(("a",), (3,)), Ragged(("b",), (4,))])
        >>> some[1:].parts
        ('b',)
    """

    parts: tuple[Any, ...]
    sizes: tuple[int, ...]

    @classmethod
    def side_by_side(cls, leaves: Sequence["Ragged"]) -> "Ragged":
        """The parts of all, in order."""
        return cls(
            tuple(part for leaf in leaves for part in leaf.parts),
            tuple(size for leaf in leaves for size in leaf.sizes),
        )

    def __getitem__(self, rows: Tensor | slice) -> "Ragged":
        """The parts of some clients."""
        places = list(range(len(self.parts)))
        chosen = places[rows] if isinstance(rows, slice) else rows.tolist()
        return Ragged(*(tuple(of[i] for i in chosen) for of in (self.parts, self.sizes)))


def sizes(context: Tree) -> tuple[int, ...] | None:
    """The sizes of the first ragged leaf of a context; none if it has no such leaf."""
    for value in context.values():
        found = sizes(value) if isinstance(value, dict) else getattr(value, "sizes", None)
        if found is not None:
            return found
    return None
