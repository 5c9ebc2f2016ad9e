"""Arithmetic on nested dicts of tensors, numbers and strings.

Functions take and give new trees and leave their arguments untouched, but for one that ends in an
underscore, as torch's do; tensors that need no change are passed on, not copied.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import Parameter

from fedbolic.types import Tree

DEEPEST = 64
"""A tree has no more levels."""

TENSORS: tuple[type[Tensor], ...] = (Tensor, Parameter)
"""Kinds of tensors that can be loaded again without running the code of others."""

MOST_PARTS = 100_000
"""A tree has no more: one that holds the same branches again and again would hardly end."""

LARGEST = 2**1024
"""An integer is below it in absolute value, as every float is."""


def leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every leaf with its path, parts joined by ``/``, in the tree's own order.

    Example:
        >>> list(leaves({"a": {"b": 1}, "c": 2}))
        [('a/b', 1), ('c', 2)]
    """
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def find_tree_fault(x: object) -> str | None:
    """The reason for which something is no tree that can be saved and sent; ``None`` if it is one.

    Paths must be unique, so no name holds a ``/``. Numbers are Python's own, as those of other
    packages cannot be loaded without running their code.

    Args:
        x: Anything, from anybody.

    Example:
        >>> find_tree_fault({"a": {"b": torch.zeros(2)}}), find_tree_fault({"a/b": 1})
        (None, "a name in a tree is a text without '/', got 'a/b'")
    """
    pending: list[tuple[object, int]] = [(x, 0)]
    left = MOST_PARTS
    while pending:
        value, depth = pending.pop()
        left -= 1
        if left < 0:
            return f"it has more than {MOST_PARTS} parts"
        if not isinstance(value, dict) or type(value) not in (dict, OrderedDict):
            if (fault := _find_leaf_fault(value)) is not None:
                return fault
            continue
        if depth == DEEPEST:
            return f"it is nested more than {DEEPEST} deep"
        for name in value:
            if not is_text(name) or "/" in name:
                return f"a name in a tree is a text without '/', got {name!r:.80}"
        pending += [(branch, depth + 1) for branch in value.values()]
    return None if isinstance(x, dict) else f"it is no dict but {type(x).__name__}"


def _find_leaf_fault(leaf: object) -> str | None:
    if type(leaf) in (*TENSORS, bool, float):
        return None
    if type(leaf) is int and abs(leaf) < LARGEST:
        return None
    if is_text(leaf):
        return None
    kind = type(leaf)
    return (
        f"a tree holds tensors, Python's numbers below 2 ** 1024 and texts, got {leaf!r:.80} of "
        f"{kind.__module__}.{kind.__qualname__}"
    )


def is_text(value: object) -> bool:
    """True for a text that can be encoded: half of a surrogate pair is no character."""
    if type(value) is not str:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def tensors(tree: Tree) -> dict[str, Tensor]:
    """The tensors of a tree by path."""
    return {path: leaf for path, leaf in leaves(tree) if isinstance(leaf, Tensor)}


def map(function: Callable, tree: Tree, *others: Tree) -> Tree:
    """``function`` applied to corresponding leaves.

    Args:
        function: Takes one leaf of every tree.
        tree: The tree whose names are used.
        *others: Trees of the same names.

    Raises:
        ValueError: If the trees do not have the same names.

    Example:
        >>> map(lambda x, y: x + y, {"a": {"b": 1}}, {"a": {"b": 2}})
        {'a': {'b': 3}}
    """
    for other in others:
        if other.keys() != tree.keys():
            raise ValueError(f"trees differ: one has {sorted(tree)}, another {sorted(other)}")
    mapped = {}
    for name, value in tree.items():
        branch, values = isinstance(value, dict), [other[name] for other in others]
        for of_name in values:
            if isinstance(of_name, dict) != branch:
                raise ValueError(f"trees differ: {name!r} is a branch of one and a leaf of another")
        mapped[name] = map(function, value, *values) if branch else function(value, *values)
    return mapped


def map_tensors(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """``function`` applied to the tensors; numbers and strings stay."""
    return map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def part(x: Tree, prefix: str) -> Tree:
    """Entries whose names begin with ``prefix``, by the rest of the name.

    Example:
        >>> part({"body.0": 1, "head": 2}, "body.")
        {'0': 1}
    """
    return {
        name.removeprefix(prefix): value for name, value in x.items() if name.startswith(prefix)
    }


def add(x: Tree, y: Tree) -> Tree:
    """The leafwise sum."""
    return map(lambda a, b: a + b, x, y)


def subtract(x: Tree, y: Tree) -> Tree:
    """The leafwise difference."""
    return map(lambda a, b: a - b, x, y)


def subtract_(x: Tree, y: Tree) -> Tree:
    """The leafwise difference, written into the tensors of ``x``."""
    return map(lambda a, b: a.sub_(b), x, y)


def scale(x: Tree, factor: float) -> Tree:
    """Every leaf times ``factor``."""
    return map(lambda a: a * factor, x)


def zeros_like(x: Tree) -> Tree:
    """The tree with every tensor replaced by zeros."""
    return map_tensors(torch.zeros_like, x)


def clone(x: Tree) -> Tree:
    """A tree of the same values that shares no storage with ``x`` and no gradient history."""
    return map_tensors(lambda a: a.detach().clone(), x)


def to(x: Tree, device: torch.device | str, dtype: torch.dtype | None = None) -> Tree:
    """The tree on ``device``, its floating tensors as ``dtype`` if that is floating, too."""
    dtype = dtype if dtype and dtype.is_floating_point else None
    return map_tensors(lambda a: a.to(device, dtype if a.is_floating_point() else None), x)


def is_finite(x: Tree) -> bool:
    """True if no leaf holds NaN or an infinity."""
    return all(
        _is_finite(leaf) if isinstance(leaf, Tensor) else math.isfinite(leaf)
        for _, leaf in leaves(x)
        if isinstance(leaf, Tensor | float)
    )


def _is_finite(x: Tensor) -> bool:
    # a finite sum has finite terms, and takes one pass; that of finite terms may overflow
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())


def norm(x: Tree) -> Tensor:
    """The Euclidean norm over all floating tensors together, in float64.

    Example:
        >>> norm({"a": torch.tensor([3.0]), "b": {"c": torch.tensor([4.0])}})
        tensor(5., dtype=torch.float64)
    """
    squares = [
        leaf.double().square().sum() for leaf in tensors(x).values() if leaf.is_floating_point()
    ]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros((), dtype=torch.float64)


def num_bytes(x: Tree) -> int:
    """The size of a tree on the wire: tensors as they are, numbers as 8 bytes, strings as UTF-8."""
    total = 0
    for _, leaf in leaves(x):
        if isinstance(leaf, Tensor):
            total += leaf.numel() * leaf.element_size()
        else:
            total += len(leaf.encode()) if isinstance(leaf, str) else 8
    return total


def signature(x: Tree) -> dict[str, str]:
    """Form of a tree by path: ``dtype[shape]`` of a tensor, or the type of another leaf.

    Example:
        >>> signature({"a": torch.zeros(2, 3), "n": 1})
        {'a': 'float32[2, 3]', 'n': 'int'}
    """
    return {
        path: f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
        if isinstance(leaf, Tensor)
        else type(leaf).__name__
        for path, leaf in leaves(x)
    }
