"""Arithmetic on nested dicts of tensors, numbers and strings.

Functions return new trees and do not modify their arguments, except for functions whose name ends
in an underscore, as in torch. Tensors that need no change are passed on without a copy.
"""

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import Parameter

from fedbolic.core.types import Tree

DEEPEST = 64
"""Maximum depth of a tree."""

TENSORS: tuple[type[Tensor], ...] = (Tensor, Parameter)
"""Tensor types that can be loaded without running foreign code."""

MOST_PARTS = 100_000
"""Maximum number of branches and leaves, since a tree may repeat one branch exponentially often."""

LARGEST = 2**1024
"""Bound on the absolute value of integers, which every float satisfies, too."""

MOST_REPEATED = 2**20
"""Maximum size of a tensor that repeats its storage; such a one could have any size."""


def leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Iterate over all leaves with their paths, joined by ``/``, in the order of the tree.

    Example:
        >>> list(leaves({"a": {"b": 1}, "c": 2}))
        [('a/b', 1), ('c', 2)]
    """
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def values(tree: Tree) -> list[Any]:
    """All leaves without their paths, in the order of the tree."""
    found = []
    for value in tree.values():
        if isinstance(value, dict):
            found += values(value)
        else:
            found.append(value)
    return found


def find_tree_fault(x: object) -> str | None:
    """The reason why an object is not a tree that can be saved and sent; ``None`` if it is one.

    Names must not contain ``/``, so that paths are unique. Numbers must be of Python's own types,
    because those of other packages cannot be loaded without running their code.

    Args:
        x: Any object, possibly from an untrusted party.

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
    return None if isinstance(x, dict) else f"it is not a dict but {type(x).__name__}"


def _find_leaf_fault(leaf: object) -> str | None:
    if isinstance(leaf, Tensor) and type(leaf) in TENSORS:
        return _find_tensor_fault(leaf)
    if type(leaf) in (bool, float):
        return None
    if type(leaf) is int and abs(leaf) < LARGEST:
        return None
    if is_text(leaf):
        return None
    kind = type(leaf)
    return (
        f"a tree holds tensors, Python's numbers below 2 ** 1024 and strings, got {leaf!r:.80} of "
        f"{kind.__module__}.{kind.__qualname__}"
    )


def _find_tensor_fault(x: Tensor) -> str | None:
    """The reason why a tensor is not an array of numbers in memory; ``None`` if it is one."""
    if x.is_nested or x.is_quantized or x.layout != torch.strided:
        kind = "nested" if x.is_nested else "quantised" if x.is_quantized else x.layout
        return f"its tensors must be dense, got one that is {kind}"
    if x.numel() and not x.data_ptr():
        return "its tensors must hold numbers, got one on meta or one whose storage was freed"
    held = x.untyped_storage().nbytes()
    if held < x.nbytes and x.numel() > MOST_REPEATED:
        return f"it has a tensor of {x.nbytes} bytes with a storage of {held}"
    return None


def kind(tree: Tree) -> dict[str, Any]:
    """Names and types of a tree without a fault, for :func:`is_of_kind`."""
    return {n: kind(x) if isinstance(x, dict) else _leaf_kind(x) for n, x in tree.items()}


def is_of_kind(x: object, known: object) -> bool:
    """True if an object is a tree of a known kind, and therefore without a fault.

    It spares :func:`find_tree_fault`, :func:`signature` and :func:`num_bytes`, whose results are
    those of the known tree. A tree with strings is of no known kind.

    Args:
        x: Any object, possibly from an untrusted party.
        known: Result of :func:`kind`.

    Example:
        >>> known = kind({"a": torch.zeros(2)})
        >>> is_of_kind({"a": torch.ones(2)}, known), is_of_kind({"a": torch.ones(3)}, known)
        (True, False)
    """
    if type(known) is not dict:
        return known is not None and _leaf_kind(x) == known
    if type(x) is not dict or len(x) != len(known):
        return False
    for name, value in x.items():
        if type(name) is not str or name not in known or not is_of_kind(value, known[name]):
            return False
    return True


def _leaf_kind(leaf: Any) -> object:
    """Value on which faults, form and size of a leaf depend; ``None`` if they depend on more."""
    if type(leaf) not in TENSORS:
        if type(leaf) is int:
            return leaf
        return type(leaf) if type(leaf) in (bool, float) else None
    if leaf.requires_grad or leaf.is_nested or leaf.layout != torch.strided:
        return None
    size = leaf.numel()
    if (size and not leaf.data_ptr()) or size > MOST_REPEATED > leaf.untyped_storage().nbytes():
        return None
    return leaf.dtype, leaf.shape, leaf.device


def is_text(value: object) -> bool:
    """True for a string that can be encoded; a lone surrogate, for example, cannot."""
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
    """Apply ``function`` to corresponding leaves.

    Args:
        function: Function of one leaf of every tree.
        tree: First tree, which determines the order of names.
        *others: Trees with the same names.

    Raises:
        ValueError: If the names of the trees differ.

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
    """Apply ``function`` to all tensors; numbers and strings are kept."""
    mapped = {}
    for name, value in tree.items():
        if isinstance(value, Tensor):
            mapped[name] = function(value)
        else:
            mapped[name] = map_tensors(function, value) if isinstance(value, dict) else value
    return mapped


def part(x: Tree, prefix: str) -> Tree:
    """Select the entries whose names begin with ``prefix``, and remove the prefix.

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
    of_x, of_y = paired(x, y)
    if any(is_functorch_wrapped_tensor(leaf) for leaf in (*of_x, *of_y)):
        return map(lambda a, b: a.sub_(b), x, y)  # a list of tensors has no batching rule
    if of_x:
        torch._foreach_sub_(of_x, of_y)  # pyright: ignore[reportPrivateImportUsage]
    return x


def add_(x: Tree, y: Tree) -> Tree:
    """The leafwise sum, written into the tensors of ``x``."""
    of_x, of_y = paired(x, y)
    if of_x:
        torch._foreach_add_(of_x, of_y)  # pyright: ignore[reportPrivateImportUsage]
    return x


def paired(x: Tree, y: Tree) -> tuple[list[Any], list[Any]]:
    """The leaves of two trees of the same names, in the order of the first.

    Raises:
        ValueError: If the names of the trees differ.

    Example:
        >>> paired({"a": 1, "b": {"c": 2}}, {"b": {"c": 4}, "a": 3})
        ([1, 2], [3, 4])
    """
    if _same_branches(x, y):
        return values(x), values(y)
    of_x, of_y = dict(leaves(x)), dict(leaves(y))
    if of_x.keys() != of_y.keys():
        raise ValueError(f"trees differ: one has {sorted(of_x)}, another {sorted(of_y)}")
    return [*of_x.values()], [of_y[path] for path in of_x]


def _same_branches(x: Tree, y: Tree) -> bool:
    """True if two trees have the same names in the same order, empty branches included."""
    if [*x] != [*y]:
        return False
    for value, other in zip(x.values(), y.values(), strict=True):
        branch = isinstance(value, dict)
        if branch != isinstance(other, dict) or (branch and not _same_branches(value, other)):
            return False
    return True


def scale(x: Tree, factor: float | Tensor) -> Tree:
    """Every leaf times the number ``factor``."""
    return map(lambda a: a * factor, x)


def scale_(x: Tree, factor: float | Tensor) -> Tree:
    """Every tensor times the number ``factor``, written into the tensors of ``x``."""
    leaves_of_x = list(tensors(x).values())
    if any(is_functorch_wrapped_tensor(leaf) for leaf in leaves_of_x):
        return map_tensors(lambda a: a.mul_(factor), x)
    if leaves_of_x:
        torch._foreach_mul_(leaves_of_x, factor)  # pyright: ignore[reportPrivateImportUsage]
    return x


def zeros_like(x: Tree) -> Tree:
    """The tree with every tensor replaced by zeros, by one launch on an accelerator."""
    if any(is_functorch_wrapped_tensor(leaf) for leaf in tensors(x).values()):
        return map_tensors(torch.zeros_like, x)  # a list of tensors has no batching rule
    zeros = map_tensors(torch.empty_like, x)
    if of_all := list(tensors(zeros).values()):
        torch._foreach_zero_(of_all)  # pyright: ignore[reportPrivateImportUsage]
    return zeros


def clone(x: Tree) -> Tree:
    """A tree of the same values that shares no storage with ``x`` and no gradient history."""
    with torch.no_grad():
        return map_tensors(torch.clone, x)


def to(x: Tree, device: torch.device | str, dtype: torch.dtype | None = None) -> Tree:
    """Move a tree to ``device``; floating tensors get ``dtype`` if that is a floating type."""
    dtype = dtype if dtype and dtype.is_floating_point else None
    return map_tensors(lambda a: a.to(device, dtype if a.is_floating_point() else None), x)


def is_finite(x: Tree) -> bool:
    """True if no leaf contains NaN or an infinity."""
    numbers = all(math.isfinite(leaf) for leaf in values(x) if isinstance(leaf, float))
    of_device: dict[torch.device, list[Tensor]] = {}
    for leaf in values(x):
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            of_device.setdefault(leaf.device, []).append(leaf)
    return numbers and all(_all_finite(of) for of in of_device.values())


def _all_finite(tensors: list[Tensor]) -> bool:
    """True if no tensor of a device contains NaN or an infinity; the host waits once for it.

    A finite norm, computed in one pass, implies finite numbers, but its squares may overflow.
    """
    return bool(rough_norm(tensors).isfinite()) or all(bool(x.isfinite().all()) for x in tensors)


def rough_norm(tensors: list[Tensor]) -> Tensor:
    """The Euclidean norm in the precision of the tensors; infinite if a square overflows.

    Args:
        tensors: Floating or complex tensors of one device, at least one.
    """
    norms = torch._foreach_norm(tensors)  # pyright: ignore[reportPrivateImportUsage]
    return torch.linalg.vector_norm(torch.stack(list(norms)))


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
    """Size of a tree on the wire in bytes: tensors uncompressed, numbers 8 bytes, strings UTF-8."""
    total = 0
    for leaf in values(x):
        if isinstance(leaf, Tensor):
            total += leaf.numel() * leaf.element_size()
        else:
            total += len(leaf.encode()) if isinstance(leaf, str) else 8
    return total


def signature(x: Tree) -> dict[str, str]:
    """The types of a tree's leaves by path: ``dtype[shape]`` for tensors, else the type's name.

    Example:
        >>> signature({"a": torch.zeros(2, 3), "n": 1})
        {'a': 'float32[2, 3]', 'n': 'int'}
    """
    return {
        path: _form(leaf.dtype, leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__
        for path, leaf in leaves(x)
    }


@functools.lru_cache(maxsize=4096)  # the payloads of all clients have the same forms
def _form(dtype: torch.dtype, shape: torch.Size) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
