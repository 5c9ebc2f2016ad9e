"""One operation on every tensor of a list, in one kernel launch where possible."""

import itertools
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor


def each(
    op: str, xs: list[Tensor], *others: Any, donate: bool = False, **options: float
) -> list[Tensor]:
    """Apply ``torch.<op>`` to every tensor of a list, in one kernel launch where possible.

    Args:
        op: Name of the operation, such as ``add``.
        xs: The tensors.
        *others: Further arguments: lists as long as ``xs``, or values for all tensors.
        donate: Whether the tensors are overwritten. Under ``vmap`` they never are, as they may lack
            the axis of gradients.
        **options: Keyword arguments of the operation.

    Example:
        >>> each("add", [torch.ones(1), torch.zeros(1)], [torch.ones(1), torch.ones(1)], alpha=2.0)
        [tensor([3.]), tensor([2.])]
    """
    if not xs:
        return []
    lists = [other for other in others if isinstance(other, list)]
    if not any(map(is_functorch_wrapped_tensor, itertools.chain(xs, *lists))):
        results = getattr(torch, f"_foreach_{op}{'_' * donate}")(xs, *others, **options)
        return xs if donate else list(results)
    rows = zip(*(o if isinstance(o, list) else [o] * len(xs) for o in (xs, *others)), strict=True)
    return [getattr(torch, op)(*row, **options) for row in rows]
