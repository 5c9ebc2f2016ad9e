"""Detection of layer inputs outside the ball: a warning per layer, and a count in training."""

import warnings
from contextvars import ContextVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fedbolic.formulas.fused import is_traced

COUNTS = "clamped."
"""Key under which a training step returns its counts among the buffers: clamped points, all points.

The dot at the end avoids a clash, as no buffer name ends in a dot.
"""

LEAST = 1e-3
"""Excess of ``c |x|^2`` over 1, in full precision, that rounding at the boundary cannot explain."""


class Counter:
    """Counter of clamped points and of all points in a batch, kept on their device.

    As a context manager it counts the inputs of all ball layers that are called inside it.

    Args:
        mask: True for the examples of the batch that count.
    """

    def __init__(self, mask: Bool[Tensor, " n"]) -> None:
        self.mask = mask
        self.counts: list[Tensor] = []

    def __enter__(self) -> "Counter":
        self._token = _COUNTER.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _COUNTER.reset(self._token)

    def add(self, outside: Bool[Tensor, "*batch"]) -> None:
        """Count the points of one layer.

        Args:
            outside: True for points outside the ball. Without a first axis of examples, every
                point counts.
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
        """Both sums over all layers under :data:`COUNTS`; empty if no layer uses the ball."""
        return {COUNTS: torch.stack(self.counts).sum(0)} if self.counts else {}


_COUNTER: ContextVar[Counter | None] = ContextVar("counter", default=None)


def look(
    x: Float[Tensor, "*batch ambient"], c: Tensor | float, *, warned: bool, layer: nn.Module
) -> bool:
    """Count the points outside the ball, and warn about them once per layer.

    Only eager CPU tensors are inspected for the warning: other devices would have to synchronise,
    and values inside ``vmap`` or a compiler are unknown.

    Args:
        x: Inputs of a ball layer.
        c: Minus the sectional curvature.
        warned: True if the layer has warned before.
        layer: The layer, named in the warning.

    Returns:
        True if the layer has warned, now or before.
    """
    if torch.compiler.is_compiling():
        return warned
    counter, seen = _COUNTER.get(), not warned and _is_eager(x, c)
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
            f"{outside.numel()} points outside the ball (c |x|^2 above 1) and clamped them to its "
            "boundary: features are not points, so map them with ToManifold(Poincare())",
            stacklevel=4,
        )
    return True


def _is_eager(*given: Tensor | float) -> bool:
    """True for CPU tensors, and numbers, whose values can be read."""
    on_cpu = all(x.device.type == "cpu" for x in given if isinstance(x, Tensor))
    return on_cpu and not is_traced(*given)
