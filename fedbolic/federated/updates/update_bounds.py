"""Bounds that the numbers of every honest update keep, whatever its data."""

import math

import torch
from torch import Tensor

from fedbolic.core import tree
from fedbolic.core.types import Tree

LONGEST_PART = 1e6
"""Longest part of a payload, in units of 1 plus the Euclidean norm of the message."""

OUTLYING = 1e3
"""The same for a client that is suspected once the server's state is not finite."""

MOST_WEIGHT = 1e9
"""Maximum weight of an update, usually a number of examples."""


def norm_of(x: Tree) -> float:
    """Euclidean norm of all floating numbers of a tree, in float64, on the host."""
    numbers = [leaf for _, leaf in tree.leaves(x) if isinstance(leaf, float)]
    return math.hypot(float(tree.norm(x)), *numbers)


def rough_norm_of(x: Tree) -> float:
    """The same in the precision of the tensors, by one pass; NaN or infinite if it overflows."""
    numbers = [leaf for _, leaf in tree.leaves(x) if isinstance(leaf, float)]
    of_device: dict[torch.device, list[Tensor]] = {}
    for leaf in tree.tensors(x).values():
        if leaf.is_floating_point() or leaf.is_complex():
            of_device.setdefault(leaf.device, []).append(leaf)
    return math.hypot(*numbers, *(float(tree.rough_norm(of)) for of in of_device.values()))


def find_long_part(message: Tree, payload: Tree, *, longest: float = LONGEST_PART) -> str | None:
    r"""The part of a payload that is too long for its message, in words; ``None`` if none is.

    .. math:: \|\Delta_k\| \le L \, (1 + \|m\|)

    and likewise for every other part but ``buffers``, the bound of which is squared: they hold
    variances of inputs that nobody has scaled.

    Args:
        message: Message to the client.
        payload: Payload of its update, a tree.
        longest: Bound L, in units of 1 plus the norm of the message.

    Example:
        >>> message = {"parameters": {"w": torch.tensor([3.0, 4.0])}}
        >>> find_long_part(message, {"delta": {"w": torch.tensor([5.9e6, 0.0])}})
        >>> find_long_part(message, {"delta": {"w": torch.tensor([6.1e6, 0.0])}})
        'its delta has the norm 6.1e+06, and the largest allowed is 6e+06'
    """
    bound = longest * (1 + norm_of(message))
    for name, part in payload.items():
        most = bound**2 if name == "buffers" else bound
        if not (norm := norm_of({name: part})) <= most:
            return f"its {name} has the norm {norm:.3g}, and the largest allowed is {most:.3g}"
    return None


def find_outside(payload: Tree, name: str, low: int | float, high: int | float) -> str | None:
    """Words on a part of a payload that has numbers outside of a range; ``None`` if all are inside.

    Args:
        payload: Payload of an update.
        name: Name of a tensor in it.
        low: Least number that is allowed.
        high: Largest number that is allowed.

    Example:
        >>> find_outside({"votes": torch.tensor([0, 2])}, "votes", 0, 1)
        'its votes must lie in 0 .. 1, got 0 .. 2'
    """
    values = payload[name]
    if not values.numel():
        return None
    least, most = (x.item() for x in values.aminmax())
    if low <= least and most <= high:
        return None
    return f"its {name} must lie in {low:g} .. {high:g}, got {least:g} .. {most:g}"
