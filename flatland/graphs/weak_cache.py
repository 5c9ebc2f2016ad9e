"""Values computed from one object or several, kept only as long as all of these objects."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import ReferenceType, ref

K = TypeVar("K")
V = TypeVar("V")


def derived(owner: object, compute: Callable[..., V], *given: Hashable) -> V:
    """Result of ``compute(owner, *given)``, computed once and kept in the object itself.

    Args:
        owner: Object that never changes, such as a graph.
        compute: Function of the object and of further arguments.
        *given: Further arguments.

    Example:
        >>> class Name(str): ...
        >>> derived(Name("ab"), Name.count, "b")
        1
    """
    known, key = vars(owner).setdefault("_derived", {}), (compute, *given)
    if key not in known:
        known[key] = compute(owner, *given)
    return known[key]


class WeakCache(Generic[K, V]):
    """Function of a tuple of objects that remembers its latest results without keeping the objects.

    A result is forgotten as soon as one of its objects is deleted.

    Args:
        compute: Function of a tuple of objects and of further hashable arguments. Its result must
            not refer to the objects.
        size: Largest number of results, at least 1; the oldest is forgotten first.

    Example:
        >>> class Name(str): ...
        >>> joined = WeakCache(lambda names: "".join(names), size=2)
        >>> first, second = Name("a"), Name("b")
        >>> joined((first, second)), len(joined)
        ('ab', 1)
        >>> del second
        >>> len(joined)
        0
    """

    def __init__(self, compute: Callable[..., V], size: int) -> None:
        self._compute, self._size = compute, size
        # replaced and never changed: objects may be deleted at any time and in any thread
        self._known: dict[tuple[tuple[ReferenceType[K], ...], tuple[Hashable, ...]], V] = {}

    def __len__(self) -> int:
        """Number of results that are remembered."""
        return len(self._known)

    def __call__(self, objects: tuple[K, ...], *others: Hashable) -> V:
        """Result for some objects, computed once.

        Args:
            objects: Objects, compared by ``==``.
            *others: Further arguments of the function.
        """
        known, key = self._known, (tuple(map(ref, objects)), others)
        if key in known:
            return known[key]
        value = self._compute(objects, *others)
        watched = tuple(ref(x, self._forget) for x in objects)
        newest = list(self._known.items())[-self._size + 1 :] if self._size > 1 else []
        self._known = {**dict(newest), (watched, others): value}
        return value

    def _forget(self, gone: ReferenceType[K]) -> None:
        """Forget the results of a deleted object."""
        del gone
        self._known = {
            key: value
            for key, value in self._known.items()
            if all(reference() is not None for reference in key[0])
        }
