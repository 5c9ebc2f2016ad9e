"""Values whose size differs between clients, such as graphs, batched without stacking."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedbolic.core.types import Tree


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

    Example:
        >>> some = Jagged.joined([Jagged(("a",), (3,)), Jagged(("b",), (4,))])
        >>> some[1:].parts
        ('b',)
    """

    parts: tuple[Any, ...]
    sizes: tuple[int, ...]

    @classmethod
    def joined(cls, leaves: Sequence["Jagged"]) -> "Jagged":
        """Concatenate the parts of several leaves, in order."""
        return cls(
            tuple(part for leaf in leaves for part in leaf.parts),
            tuple(size for leaf in leaves for size in leaf.sizes),
        )

    def __getitem__(self, rows: Tensor | slice) -> "Jagged":
        """Select the parts of some clients."""
        places = list(range(len(self.parts)))
        chosen = places[rows] if isinstance(rows, slice) else rows.tolist()
        return Jagged(*(tuple(of[i] for i in chosen) for of in (self.parts, self.sizes)))


def jagged_sizes(context: Tree) -> tuple[int, ...] | None:
    """The sizes of the first jagged leaf of a context; ``None`` if it has no such leaf."""
    for value in context.values():
        found = jagged_sizes(value) if isinstance(value, dict) else getattr(value, "sizes", None)
        if found is not None:
            return found
    return None
