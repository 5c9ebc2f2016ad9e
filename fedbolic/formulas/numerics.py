"""Numerically stable functions of the manifolds, and every numerical bound with its reason."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.formulas.fused import Formula, fused

HALVES = (torch.float16, torch.bfloat16)

SERIES_BELOW = {torch.float32: 0.1, torch.float64: 0.01}
"""Largest ``t`` for which a function is computed by its series.

Cancellation in the derivative of ``f(sqrt t) / sqrt t`` causes a relative error of ``eps / t``, and
truncation after eight terms one of ``t**8``. These bounds keep value and derivative accurate to the
rounding of the dtype.
"""

SMALL = 2.0**-40
"""Exact factor of squares before a comparison, so that 1e38 times a ``c`` of 100 is finite."""

BALL_MARGIN = 4
"""Margin between ``c |x|^2`` and 1 in the ball, in units of ``eps``.

Rounding a point changes ``c |x|^2`` by up to one ``eps``, and so does computing it. The ball then
reaches ``log(1 / eps)`` radii from the origin: 15.9 in float32, 36.0 in float64.
"""

HYPERBOLOID_SQUARE = {
    torch.float32: 1.6e37,
    torch.float64: 1e304,
    torch.bfloat16: 1e37,
    torch.float16: 9e8,
}
"""Largest ``|x|^2`` of a point of the hyperboloid; ``4 |x| |y|`` of two is still finite."""

HYPERBOLOID_RADIUS = {
    torch.float32: 1e35,
    torch.float64: 1e300,
    torch.bfloat16: 1e35,
    torch.float16: 9e8,
}
"""Largest ``c |x|^2`` on the hyperboloid, 41 radii out in float32 (346 in float64).

The product of two time coordinates is then finite.
"""

POLAR_TIME = 1.2
"""Time coordinate in radii from which tangents are transported in polar coordinates."""

POLAR_FROM = {torch.float32: 2.0**11, torch.float64: 2.0**26}
"""Time coordinate in radii of the nearer of two points from which angles are taken exactly.

The terms of the usual form round by ``eps`` times this coordinate; the square of that is one more
rounding at this bound, 8.3 radii in float32 and 18.7 in float64.
"""

LONGEST_STEP = {torch.float32: 44.0**2, torch.float64: 346.0**2}
"""Largest ``c |u|^2`` of a step on the hyperboloid; the cosh and sinh of its root are finite."""

TOLERANCE = 8
"""Tolerance of a time coordinate for a point to lie on the hyperboloid, in units of ``eps``."""


def without_casts(device: torch.device) -> AbstractContextManager:
    """Context in which autocast is off: a matrix product in bfloat16 would leave two digits.

    Args:
        device: Device of the tensors; on one without autocast, such as ``meta``, nothing is off.
    """
    kind = device.type
    if torch.compiler.is_compiling():  # torch 2.11 cannot trace the question
        has_casts = kind != "meta"
    else:
        has_casts = torch.amp.is_autocast_available(kind)
    return torch.autocast(kind, enabled=False) if has_casts else nullcontext()


def series_bound(t: Tensor) -> float:
    """Largest ``t`` for which a function is computed by its series, in the dtype of ``t``."""
    return SERIES_BELOW[t.dtype]


def polynomial(coefficients: tuple[float, ...], t: Tensor) -> Tensor:
    """The polynomial in ``t`` with the given coefficients, the constant first."""
    power = torch.full_like(t, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        power = power * t + coefficient
    return power


def root(q: Tensor) -> Tensor:
    """Square root with derivative 0 at 0, so that the gradient of ``dist(x, x)`` is 0."""
    positive = q > 0
    return torch.where(positive, torch.where(positive, q, 1.0).sqrt(), 0.0)


class _Square(Formula):
    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        (x,) = inputs
        return ((x * x).sum(-1, keepdim=True).clamp(max=torch.finfo(x.dtype).max),)

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (x,), (q,), (g,) = inputs, parts, grad_outputs
        return (x * (2 * g * (q < torch.finfo(q.dtype).max)),)


square = fused(_Square)
"""``|x|^2`` over the last axis, which is kept; at most the largest float."""


def dot(x: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
    """``<x, y>`` over the last axis, which is kept; ``out`` is overwritten by the products."""
    return torch.mul(x, y, out=out).sum(-1, keepdim=True)


def times(c: Tensor | float, x: Tensor) -> Tensor:
    """``c x``, or ``x`` itself for the number 1, with which a product changes no bit."""
    return x if not isinstance(c, Tensor) and c == 1 else c * x


@functools.lru_cache(256)
def operand(value: float, dtype: torch.dtype) -> Tensor:
    """A number as a tensor on the CPU, which an operator need not convert."""
    return torch.tensor(value, dtype=dtype, device="cpu")


def unit(a: Tensor) -> Tensor:
    """``a / |a|``, or 0 where ``a`` is 0."""
    length = root(square(a))
    return a * torch.where(length > 0, 1 / torch.where(length > 0, length, 1.0), 0.0)


def scale_down(x: Tensor) -> Tensor:
    """Scale vectors down until their squared norm is finite; the direction is kept."""
    largest = (torch.finfo(x.dtype).max / x.shape[-1]) ** 0.5
    return x * (largest / x.abs().amax(-1, keepdim=True).clamp(min=largest))


def finite(x: Tensor) -> Tensor:
    """Replace infinities by the largest float of the same sign."""
    largest = torch.finfo(x.dtype).max
    return x.clamp(-largest, largest)


def saturate(x: Tensor) -> Tensor:
    """Clamp coordinates so that the squared norm of a vector is finite."""
    largest = (torch.finfo(x.dtype).max / x.shape[-1]) ** 0.5
    return x.clamp(-largest, largest)


def per_point(c: Tensor | float, x: Tensor) -> Tensor | float:
    """The curvature in the dtype of ``x``, with an axis for the coordinates."""
    return c.to(x.dtype).unsqueeze(-1) if isinstance(c, Tensor) else c


def per_matrix(c: Tensor | float, x: Tensor) -> Tensor | float:
    """The curvature of ``cdist`` in the dtype of ``x``, one value per matrix.

    Raises:
        ValueError: If the curvature varies within a matrix of distances.
    """
    if not isinstance(c, Tensor):
        return c
    if c.ndim and (c.ndim < 2 or c.shape[-2:] != (1, 1)):
        raise ValueError(
            f"cdist takes one curvature per matrix, of shape (..., 1, 1), got {tuple(c.shape)}: "
            "for one per pair use mode='broadcast' or dist"
        )
    return c.to(x.dtype)


def crossed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Each point of a first set with each point of a second one, by axes that broadcast."""
    return x.unsqueeze(-2), y.unsqueeze(-3)


class _Bounded(torch.autograd.Function):
    """Conversion to the same or a wider dtype whose backward pass gives finite gradients.

    A derivative may exceed the largest float: 41 radii out in float32, the coordinates of a
    transported tangent change by e^80 per unit. Infinities in the gradient become the largest float
    and NaN becomes 0. ``torch.compile`` does not support functions with a forward derivative;
    compiled code has the ordinary gradient, which is the same where finite.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dtype: torch.dtype) -> Tensor:
        """The same values in ``dtype``."""
        return x.view_as(x) if x.dtype == dtype else x.to(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: Tensor) -> None:
        """Save both dtypes."""
        ctx.narrow, ctx.wide = inputs[0].dtype, inputs[1]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        """The gradient, made finite and rounded to the dtype of the input."""
        gradient = grad_outputs[0].nan_to_num(nan=0.0)
        return (gradient if ctx.narrow == ctx.wide else narrow(gradient, ctx.narrow)), None

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensor:
        """The tangent in the wider dtype."""
        return grad_inputs[0].to(ctx.wide)


def narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` rounded to a half type and clamped to its range."""
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype)


def bounded(x: Any) -> Any:
    """An argument of an operation with half types in float32 and, if required, finite gradients."""
    if not isinstance(x, Tensor):
        return x
    dtype = torch.float32 if x.dtype in HALVES else x.dtype
    if x.requires_grad and not torch.compiler.is_compiling():
        return _Bounded.apply(x, dtype)
    return x.to(dtype)


def _run(operation: Callable, space: Any, tensors: tuple, options: dict, is_point: bool) -> Tensor:
    """Apply an operation to bounded arguments; round to a half type if every tensor has one."""
    if isinstance(space.c, Tensor):
        space = replace(space, c=bounded(space.c))
    result = operation(space, *(bounded(x) for x in tensors), **options)
    if not {x.dtype for x in tensors if isinstance(x, Tensor)} <= set(HALVES):
        return result
    dtype = tensors[0].dtype
    return narrow(space.within(result, dtype) if is_point else result, dtype)


def in_float32(operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorate an operation to compute half types in float32, round once and bound gradients."""

    @functools.wraps(operation)
    def guarded(space: Any, *tensors: Any, **options: Any) -> Tensor:
        return _run(operation, space, tensors, options, False)

    return guarded


def to_point(operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``in_float32`` for operations that return points, which lie on the space after rounding."""

    @functools.wraps(operation)
    def guarded(space: Any, *tensors: Any, **options: Any) -> Tensor:
        return _run(operation, space, tensors, options, True)

    return guarded
