"""Inputs of ball layers that lie outside the ball: a warning to people, a count in training."""

import contextlib
import warnings
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

COUNTS = "clamped."
"""The name of the counts of a step among the buffers after it: points outside, and all points.

No buffer ends in a dot.
"""

LEAST = 1e-3
"""How far beyond 1 ``c |x|^2`` is no rounding of a point at the boundary, in full precision."""


class Counter:
    """Counts the points of a batch that are clamped, and all points, on their device.

    Args:
        mask: The examples of the batch that count.
    """

    def __init__(self, mask: Bool[Tensor, " n"]) -> None:
        self.mask = mask
        self.counts: list[Tensor] = []

    def add(self, outside: Bool[Tensor, "*batch"]) -> None:
        """Count the points of one layer.

        Args:
            outside: True for points outside the ball. If the first axis is not that of the
                examples, all count.
        """
        n = len(self.mask)
        if outside.ndim and outside.shape[0] == n and n:
            of_example = outside.reshape(n, -1)
            clamped = (of_example & self.mask.unsqueeze(1)).sum()
            every = self.mask.sum() * of_example.shape[1]
        else:
            clamped = outside.sum()
            every = torch.full_like(clamped, outside.numel())
        self.counts.append(torch.stack((clamped, every)))

    def total(self) -> dict[str, Tensor]:
        """Both sums over all layers under :data:`COUNTS`; nothing if no layer has a ball."""
        return {COUNTS: torch.stack(self.counts).sum(0)} if self.counts else {}


_COUNTER: ContextVar[Counter | None] = ContextVar("counter", default=None)


@contextlib.contextmanager
def counting(mask: Bool[Tensor, " n"]) -> Iterator[Counter]:
    """A counter of all ball layers that are called within the block.

    Args:
        mask: The examples of the batch that count.
    """
    counter = Counter(mask)
    token = _COUNTER.set(counter)
    try:
        yield counter
    finally:
        _COUNTER.reset(token)


def look(
    x: Float[Tensor, "*batch ambient"], c: Tensor | float, *, warned: bool, layer: nn.Module
) -> bool:
    """Count the points outside the ball, or warn of them.

    Args:
        x: What a layer of the ball takes for points.
        c: Minus the sectional curvature.
        warned: True if the layer has warned before.
        layer: For its name.

    Returns:
        True if the layer has warned now or before. Only eager tensors of the CPU can tell without
        waiting for a device; not those of ``vmap`` or of a compiler.
    """
    if torch.compiler.is_compiling():
        return warned
    counter, seen = _COUNTER.get(), not warned and _is_eager(x)
    if counter is None and not seen:
        return warned
    with torch.no_grad():
        size = torch.linalg.vector_norm(
            x, dim=-1, dtype=torch.promote_types(x.dtype, torch.float32)
        )
        outside = c * size.square() > 1 + max(LEAST, 4 * torch.finfo(x.dtype).eps)
        if counter is not None:
            counter.add(outside)
        if not (seen and bool(outside.any())):
            return warned
        warnings.warn(
            f"{type(layer).__name__}({layer.extra_repr()}) got {int(outside.sum())} of "
            f"{outside.numel()} points outside the ball (c |x|^2 above 1), and clamps them to its "
            "boundary: features are no points, so map them by manifold.expmap0, or scale them",
            stacklevel=4,
        )
    return True


def _is_eager(x: Tensor) -> bool:
    kinds = (Tensor, nn.Parameter)
    plain = type(x) in kinds and x.device.type == "cpu" and not is_functorch_wrapped_tensor(x)
    return plain and torch._C._get_tracing_state() is None
