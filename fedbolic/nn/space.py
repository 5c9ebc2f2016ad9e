"""What all layers of a hyperbolic space have in common: a curvature that is read at every call."""

from typing import Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedbolic.manifolds import Curvature, Lorentz, Poincare
from fedbolic.manifolds.numerics import HALVES, SHEET_RADIUS, per_point, to_point

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
        if isinstance(curvature, Curvature):
            if curvature.raw.ndim:
                raise ValueError(
                    "curvature must have one value in a layer, got values of shape "
                    f"{tuple(curvature.raw.shape)}: for one per sample or client use vmap"
                )
        else:
            curvature = float(curvature)
            kind(curvature)  # refuses a number that is no curvature
        self.kind = kind
        self.curvature = curvature

    @property
    def c(self) -> Tensor | float:
        """Minus the sectional curvature, now."""
        return self.curvature.c if isinstance(self.curvature, Curvature) else self.curvature

    @property
    def manifold(self) -> Space:
        """The space of the curvature that the layer has now."""
        return self.kind(self.c)

    def ambient(self, num_features: int) -> int:
        """Coordinates of a point of so many dimensions."""
        return num_features + (self.kind is Lorentz)

    def check(self, x: Tensor, num_features: int, weight: Tensor | None = None) -> None:
        """Refuse what cannot be points of ``num_features`` dimensions, for this layer.

        Args:
            x: What came.
            num_features: Dimensions of the space, without time.
            weight: A parameter that is multiplied with ``x``.

        Raises:
            ValueError: Naming what came and the remedy.
        """
        ambient = self.ambient(num_features)
        if x.ndim == 0 or x.shape[-1] != ambient:
            first = f"time first, then {num_features}" if self.kind is Lorentz else "the ball"
            raise ValueError(
                f"x must have {ambient} coordinates ({first}) along its last axis, got shape "
                f"{tuple(x.shape)}: {remedy(x, ambient, self.kind is Lorentz)}"
            )
        check_dtype(x, weight)

    def describe(self, **settings: object) -> str:
        """Settings for ``print``, and the curvature if it is a number (a module prints itself)."""
        if not isinstance(self.curvature, Curvature):
            settings["curvature"] = self.curvature
        return ", ".join(f"{name}={value}" for name, value in settings.items())


@to_point
def sheet_point(space: Lorentz, s: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n+1"]:
    """The points with the space coordinates ``s``: their time coordinates follow.

    Far out they are drawn in as ``projx`` does, in the same direction; there, derivatives are those
    at a fixed share.
    """
    length = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    limit = (SHEET_RADIUS[s.dtype] / per_point(space.c, s)) ** 0.5
    with torch.no_grad():
        share = (limit / length.clamp(min=torch.finfo(s.dtype).tiny)).clamp(max=1)
    return torch.cat(((1 / per_point(space.c, s) + (share * length) ** 2).sqrt(), share * s), -1)


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
