"""What all layers of a hyperbolic space have in common: a curvature that is read at every call."""

import functools
from typing import Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedbolic.manifolds import Curvature, Lorentz, Poincare
from fedbolic.manifolds.numerics import (
    BALL_MARGIN,
    HALVES,
    SHEET_RADIUS,
    SMALL,
    narrow,
    root,
    shrink,
    square,
)

Space = TypeVar("Space", bound=Lorentz | Poincare)


class Curved(nn.Module, Generic[Space]):
    """A layer of a space whose curvature may be learnt and shared with other layers.

    ``c`` is read when the layer is called, so a step of an optimiser on a shared ``Curvature`` is
    seen by every layer that has it, and ``deepcopy`` of a network keeps the sharing. A number is a
    fixed curvature: it is no parameter and not in the ``state_dict``.

    Args:
        kind: The model that the layer computes in.
        curvature: Minus the sectional curvature, as a number or as a module with one value.

    Raises:
        ValueError: If the curvature is none of that model, or has more than one value.
    """

    def __init__(self, kind: type[Space], curvature: Curvature | float) -> None:
        super().__init__()
        self.kind = kind
        self.curvature = checked(kind, curvature)

    @property
    def c(self) -> Tensor | float:
        """Minus the sectional curvature, now."""
        return value_of(self.curvature)

    @property
    def manifold(self) -> Space:
        """The space of the curvature that the layer has now."""
        return self.kind(self.c)

    def check(
        self, x: Tensor, num_features: int | None = None, weight: Tensor | None = None
    ) -> None:
        """Refuse what cannot be points, for this layer.

        Args:
            x: What came.
            num_features: Dimensions that the space must have, without time.
            weight: A parameter that is multiplied with ``x``.

        Raises:
            ValueError: Naming what came and the remedy.
        """
        timed = self.kind is Lorentz
        least = 1 + timed if num_features is None else num_features + timed
        width = x.shape[-1] if x.ndim else 0
        if width != least and (num_features is not None or width < least):
            first = f"time first, then {least - 1}" if timed else "of the ball"
            raise ValueError(
                f"x must have {least}{' or more' * (num_features is None)} coordinates ({first}) "
                f"along its last axis, got shape {tuple(x.shape)}: {remedy(x, least, timed)}"
            )
        check_dtype(x, weight)

    def rounded(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """Points in the type of what they were computed from: half only if all of that is.

        Args:
            x: Points of the layer's space, in float32 or float64.
            *inputs: The layer's inputs and parameters.
        """
        dtype = functools.reduce(torch.promote_types, (y.dtype for y in inputs))
        if dtype in HALVES:  # rounded, they still lie on the space
            return narrow(self.manifold.within(x, dtype), dtype)
        return x.to(dtype)

    def describe(self, **settings: object) -> str:
        """Settings for ``print``, and the curvature if it is a number (a module prints itself)."""
        if not isinstance(self.curvature, Curvature):
            settings["curvature"] = self.curvature
        return ", ".join(f"{name}={value}" for name, value in settings.items())


def checked(kind: type, curvature: Curvature | float) -> Curvature | float:
    """A curvature that a layer may have.

    Raises:
        ValueError: If it is none of that model, or has more than one value.
    """
    if not isinstance(curvature, Curvature):
        kind(curvature)
        return float(curvature)
    if curvature.raw.ndim:
        raise ValueError(
            f"curvature must have one value in a layer, got values of shape "
            f"{tuple(curvature.raw.shape)}: for one per sample or client use vmap"
        )
    return curvature


def value_of(curvature: Curvature | float) -> Tensor | float:
    """Minus the sectional curvature, now; in float32 if its module has a half type."""
    return wide(curvature.c) if isinstance(curvature, Curvature) else curvature


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


def wide(x: Tensor) -> Tensor:
    """``x`` in the type to compute pointwise in: half types in float32."""
    return x.float() if x.dtype in HALVES else x


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in another type; what lies beyond a half type is its largest number."""
    return narrow(x, dtype) if dtype in HALVES else x.to(dtype)


def remedy(x: Tensor, ambient: int, timed: bool) -> str:
    """What to do about a last axis that is not ``ambient`` long."""
    if timed and x.ndim and x.shape[-1] == ambient - 1:
        return "expmap0(lift(x)) of the layer's manifold makes points of vectors"
    if ambient in x.shape:
        return f"movedim({x.shape.index(ambient)}, -1) puts the coordinates last"
    return "the layer takes the number of dimensions without time, the input has the coordinates"


def check_dtype(x: Tensor, weight: Tensor | None = None) -> None:
    """Refuse numbers of a type that a layer cannot compute with.

    Args:
        x: What came.
        weight: A parameter that is multiplied with ``x``; under autocast it may be of another type.

    Raises:
        ValueError: Naming the types and the remedy.
    """
    if not x.is_floating_point():
        raise ValueError(f"x must be floating, got {x.dtype}: use x.float()")
    if weight is None or x.dtype == weight.dtype:
        return
    narrow = (torch.float32, *HALVES)
    if torch.is_autocast_enabled(x.device.type) and {x.dtype, weight.dtype} <= set(narrow):
        return
    raise ValueError(
        f"x must be {weight.dtype} as the layer is, got {x.dtype}: "
        f"use x.to({weight.dtype}) or layer.to({x.dtype})"
    )
