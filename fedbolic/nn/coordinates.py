"""Points by their space coordinates on the sheet, or by their tangents at the origin."""

import torch
from jaxtyping import Float
from torch import Tensor

from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.manifolds.numerics import BALL_MARGIN, SHEET_RADIUS, SMALL, root, shrink, square
from fedbolic.nn.space import wide


def sheet_point(space: Lorentz, s: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n+1"]:
    """The points with the space coordinates ``s``: their time coordinates follow.

    Only the time coordinate is bounded, by the largest float, since every pass over ``s`` is seen
    in the time of a layer: see ``draw_in``.
    """
    return torch.cat(((1 / space.c + square(s)).sqrt(), s), -1)


def draw_in(space: Lorentz, s: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """``s`` itself, or a share of it that a point of the sheet may have, 41 radii out in float32.

    Derivatives are those at a fixed share.
    """
    limit = SHEET_RADIUS[s.dtype]
    with torch.no_grad():
        share = (limit / (space.c * square(s)).clamp(min=limit)).sqrt()
    return s * share


def on_sheet(
    space: Poincare, x: Float[Tensor, "*batch n"]
) -> tuple[Float[Tensor, "*batch 1"], Float[Tensor, "*batch n"]]:
    """Points of the ball on the sheet: time in radii (so that it is 1 in flat space), and space."""
    s = wide(x)
    t = space.c * square(s)
    limit = 1 - BALL_MARGIN * torch.finfo(x.dtype).eps
    gap = 1 - t.clamp(max=limit)
    return (2 - gap) / gap, 2 * shrink(t * SMALL / limit) / gap * s


def ball_point(space: Poincare, s: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """The points of the ball whose images on the sheet have the space coordinates ``s``."""
    t = space.c * square(s)
    limit = 1 - BALL_MARGIN * torch.finfo(s.dtype).eps
    return s / torch.maximum(1 + (1 + t).sqrt(), root(t / limit))


def space_part(
    space: Lorentz | Poincare, x: Float[Tensor, "*batch ambient"]
) -> Float[Tensor, "*batch n"]:
    """Space coordinates of points on the sheet, in float32 or float64: the ball's, too."""
    return wide(x[..., 1:]) if isinstance(space, Lorentz) else on_sheet(space, x)[1]


def with_space_part(
    space: Lorentz | Poincare, s: Float[Tensor, "*batch n"]
) -> Float[Tensor, "*batch ambient"]:
    """The points with those space coordinates on the sheet: undoes ``space_part``."""
    if isinstance(space, Lorentz):
        return sheet_point(space, draw_in(space, s))
    return ball_point(space, s)


def from_tangent(
    space: Lorentz | Poincare, v: Float[Tensor, "*batch n"]
) -> Float[Tensor, "*batch ambient"]:
    """The points at the distances ``|v|`` from the origin, in the directions of ``v``.

    They are the same points in both models: the ball's ``expmap0`` goes twice as far.
    """
    return space.expmap0(space.lift(v) if isinstance(space, Lorentz) else v / 2)


def to_tangent(
    space: Lorentz | Poincare, x: Float[Tensor, "*batch ambient"]
) -> Float[Tensor, "*batch n"]:
    """Directions from the origin, as long as the distances: undoes ``from_tangent``."""
    return space.logmap0(x)[..., 1:] if isinstance(space, Lorentz) else 2 * space.logmap0(x)
