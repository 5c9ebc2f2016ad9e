"""All distances between two sets of points by the formula of ``dist``."""

from typing import Any

from torch import Tensor

from fedbolic.formulas.analytic import gap_length
from fedbolic.formulas.ball_formulas import ball_gap, ball_read
from fedbolic.formulas.lorentz_formulas import hyperboloid_gap, hyperboloid_read
from fedbolic.formulas.registrar import with_kernel


def hyperboloid_pairs(x: Tensor, y: Tensor, c: Tensor | float) -> Tensor:
    """Distances of shape ``(..., n, m)``; ``c`` has the shape ``(..., 1, 1)`` or is a number."""
    known = *hyperboloid_read(x[..., 1:], c, x.dtype), *hyperboloid_read(y[..., 1:], c, y.dtype)
    return _of_hyperboloid(*known, c)


def ball_pairs(x: Tensor, y: Tensor, c: Tensor | float) -> Tensor:
    """Distances of shape ``(..., n, m)``; ``c`` has the shape ``(..., 1, 1)`` or is a number."""
    return _of_ball(*ball_read(x, c, x.dtype), *ball_read(y, c, y.dtype), c)


# the kernel's gradients by the points include those by time coordinates, which follow from these
@with_kernel("pairs.pair_dist", axes=2, implied=(1, 3), hyperboloid=True)
def _of_hyperboloid(x: Tensor, a: Tensor, y: Tensor, b: Tensor, c: Tensor | float) -> Tensor:
    (x, a, y, b), c = _crossed(x, a, y, b), _of_pair(c)
    return gap_length(hyperboloid_gap(x, a, y, b, c), c).squeeze(-1)


@with_kernel("pairs.pair_dist", axes=2, hyperboloid=False)
def _of_ball(x: Tensor, a: Tensor, y: Tensor, b: Tensor, c: Tensor | float) -> Tensor:
    return gap_length(ball_gap(*_crossed(x, a, y, b)), _of_pair(c)).squeeze(-1)


def _crossed(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Each point and number of the first set with each of the second."""
    x, a, y, b = tensors
    return x.unsqueeze(-2), a.unsqueeze(-2), y.unsqueeze(-3), b.unsqueeze(-3)


def _of_pair(c: Any) -> Any:
    return c.unsqueeze(-1) if isinstance(c, Tensor) else c
