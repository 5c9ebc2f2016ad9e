"""Names that somebody may have meant who wrote another one."""

import heapq
from collections.abc import Iterable

LEAST_SHARED = 0.5
"""Least fraction of the pairs of letters of a name that a name like it has."""


def near_names(asked: str, names: Iterable[str], count: int = 3) -> list[str]:
    """The names most like one that does not exist: those with most of its pairs of letters.

    Names that contain it come first, and short ones before long ones. Case does not matter.

    Args:
        asked: The name that does not exist.
        names: The names that exist.
        count: Maximum number of names to return.

    Example:
        >>> near_names("macbok", ["iPad", "MacBook Air", "MacBook"])
        ['MacBook', 'MacBook Air']
    """
    text = asked.casefold()
    pieces = {text[i : i + 2] for i in range(max(1, len(text) - 1))}

    def unlike() -> Iterable[tuple[bool, float, int, str]]:
        for name in names:
            folded = name.casefold()
            shared = sum(piece in folded for piece in pieces) / len(pieces)
            if text and shared >= LEAST_SHARED:
                yield text not in folded, -shared, len(name), name

    return [name for *_, name in heapq.nsmallest(count, unlike())]
