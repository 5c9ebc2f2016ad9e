"""Conversions between points, space coordinates on the hyperboloid and tangents at the origin."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from fedbolic.formulas.ball_formulas import ball_clamp
from fedbolic.formulas.fused import Formula, fused
from fedbolic.formulas.numerics import (
    BALL_MARGIN,
    HYPERBOLOID_RADIUS,
    dot,
    square,
)
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.space import wide


class _HyperboloidPoint(Formula):
    """``hyperboloid_point`` in two passes over the data, with one pass for the derivative."""

    closed = True

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        s, c = inputs
        size = torch.linalg.vector_norm(s, dim=-1, keepdim=True).clamp(max=_largest(s))
        return (torch.cat(((size * size + 1 / c).sqrt(), s), -1),)

    @override
    @staticmethod
    def first(parts: tuple) -> Tensor:
        return parts[0][..., 1:]

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor | None) -> tuple:
        (s, c), time = inputs, parts[0][..., :1]
        (gradient,) = grad_outputs
        if gradient is None:
            return None, None
        share = gradient[..., :1] / time
        by_s = torch.addcmul(gradient[..., 1:], s, share * (time < _largest(s)))
        return by_s, share / (-2 * c * c) if isinstance(c, Tensor) else None


_hyperboloid_point = fused(_HyperboloidPoint)


def _largest(s: Tensor) -> float:
    """Largest time coordinate; its square does not overflow."""
    return (torch.finfo(s.dtype).max / 2) ** 0.5


def hyperboloid_point(space: Lorentz, s: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n+1"]:
    """Points with the space coordinates ``s``; the time coordinates are computed from these.

    Only the time coordinate is bounded, so that its square does not overflow: a further pass over
    ``s`` would slow a layer down measurably. ``clamp_norm`` bounds ``s`` as well.
    """
    if torch.compiler.is_compiling():
        return torch.cat(((1 / space.c + square(s)).sqrt(), s), -1)
    return _hyperboloid_point(s, space.c)


def clamp_norm(space: Lorentz, s: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """Space coordinates clamped to the largest norm of a point, 41 radii out in float32.

    The scale factor counts as a constant in derivatives.
    """
    limit = HYPERBOLOID_RADIUS[s.dtype]
    with torch.no_grad():
        share = (limit / (space.c * square(s)).clamp(min=limit)).sqrt()
    return s * share


def on_hyperboloid(
    space: Poincare, x: Float[Tensor, "*batch n"]
) -> tuple[Float[Tensor, "*batch 1"], Float[Tensor, "*batch n"]]:
    """Time coordinates in radii (1 in flat space) and space coordinates of points of the ball.

    Points outside the ball are clamped to the nearest point inside, and the scale factor counts as
    a constant in derivatives.
    """
    return _to_hyperboloid(wide(x), space.c, x.dtype)


class _ToHyperboloid(Formula):
    outputs = 2

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        factor, gap = ball_clamp(*inputs)
        scale = 2 / gap
        return scale - 1, inputs[0] * (factor * scale), factor, scale

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (s, c, _), (_, _, factor, scale), (by_time, by_s) = inputs, parts, grad_outputs
        factor = factor.detach()
        by_scale = torch.addcmul(by_time, factor, dot(by_s, s))
        slope = by_scale * scale * scale * (factor == 1)
        made = torch.addcmul(factor * scale * by_s, s, c * slope)
        return made, slope * dot(s, s) / 2 if isinstance(c, Tensor) else None


_to_hyperboloid = fused(_ToHyperboloid)


def ball_point(space: Poincare, s: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """Points of the ball whose images on the hyperboloid have the space coordinates ``s``."""
    t = space.c * square(s)
    inner = 1 + (1 + t).sqrt()
    limit = 1 - BALL_MARGIN * torch.finfo(s.dtype).eps
    with torch.no_grad():  # 1, except where rounding would leave the ball
        share = (limit * inner.square() / t.clamp(min=torch.finfo(s.dtype).tiny)).clamp(max=1)
    return s * (share.sqrt() / inner)


def space_part(
    space: Lorentz | Poincare, x: Float[Tensor, "*batch ambient"]
) -> Float[Tensor, "*batch n"]:
    """Space coordinates of the points' images on the hyperboloid, in float32 or float64."""
    return wide(x[..., 1:]) if isinstance(space, Lorentz) else on_hyperboloid(space, x)[1]


def with_space_part(
    space: Lorentz | Poincare, s: Float[Tensor, "*batch n"]
) -> Float[Tensor, "*batch ambient"]:
    """Points whose images on the hyperboloid have the space coordinates ``s``.

    The inverse of ``space_part``.
    """
    if isinstance(space, Lorentz):
        return hyperboloid_point(space, clamp_norm(space, s))
    return ball_point(space, s)


def from_tangent(
    space: Lorentz | Poincare, v: Float[Tensor, "*batch n"]
) -> Float[Tensor, "*batch ambient"]:
    """Points at the distance ``|v|`` from the origin in the direction of ``v``.

    Both models give the same points: ``v`` is halved in the ball, where ``expmap0(v)`` lies at the
    distance ``2 |v|``.
    """
    return space.expmap0(space.lift(v) if isinstance(space, Lorentz) else v / 2)


def to_tangent(
    space: Lorentz | Poincare, x: Float[Tensor, "*batch ambient"]
) -> Float[Tensor, "*batch n"]:
    """Tangents at the origin with the distances to ``x`` as lengths: inverts ``from_tangent``."""
    return space.logmap0(x)[..., 1:] if isinstance(space, Lorentz) else 2 * space.logmap0(x)
