"""Base of all hyperbolic layers: a curvature that is read at every call."""

import functools
from typing import Generic, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.manifolds import Curvature, Lorentz, Poincare
from fedbolic.manifolds.curvature import Recorded
from fedbolic.manifolds.numerics import HALVES, narrow
from fedbolic.nn.clamped import look

Space = TypeVar("Space", bound=Lorentz | Poincare)


class HyperbolicModule(Recorded, Generic[Space]):
    """A layer of a space whose curvature may be learnt and shared with other layers.

    ``c`` is read when the layer is called, so a step of an optimiser on a shared ``Curvature`` is
    seen by every layer that has it, and ``deepcopy`` of a network keeps the sharing. A number is a
    fixed curvature: it is no parameter and no buffer, and the ``state_dict`` is loaded only where
    it is the same.

    Args:
        kind: The model that the layer computes in.
        curvature: Minus the sectional curvature, as a number or as a module with one value.

    Raises:
        ValueError: If ``kind`` is no such class, or the curvature is invalid for that model or has
            more than one value.
    """

    def __init__(self, kind: type[Space], curvature: Curvature | float) -> None:
        super().__init__()
        if kind not in (Lorentz, Poincare):
            raise ValueError(f"kind must be Lorentz or Poincare, got {kind!r}")
        self.kind = kind
        self.curvature = checked(kind, curvature)
        self._warned = False

    @property
    def c(self) -> Tensor | float:
        """Minus the sectional curvature, now."""
        return value_of(self.curvature)

    @property
    def curvatures(self) -> dict[str, Curvature | float]:
        """All curvatures of the layer, by name."""
        return {"curvature": self.curvature}

    @property
    @override
    def recorded(self) -> tuple[float, ...]:
        return tuple(c for c in self.curvatures.values() if not isinstance(c, Curvature))

    @override
    def refusal(self, other: tuple[float, ...]) -> str:
        values = ", ".join(map(str, other))
        theirs = f"the fixed curvature {values}" if other else "a learnt curvature"
        own = ", ".join(
            f"{name} {'learnt' if isinstance(c, Curvature) else c}"
            for name, c in self.curvatures.items()
        )
        return (
            f"the state dict is of a layer with {theirs}, and {type(self).__name__} has {own}: its "
            "parameters would mean other points, so make the layer with the state dict's"
        )

    @property
    def input_c(self) -> Tensor | float:
        """Minus the sectional curvature of the inputs, now; by default that of the layer."""
        return self.c

    @property
    def manifold(self) -> Space:
        """The space of the curvature that the layer has now."""
        return self.kind(self.c)

    def check(
        self,
        x: Tensor,
        num_features: int | None = None,
        weight: Tensor | None = None,
        *,
        name: str = "x",
    ) -> None:
        """Refuse what cannot be points, for this layer; points outside the ball are warned of once.

        Args:
            x: What came.
            num_features: Dimensions that the space must have, without time.
            weight: A parameter that is multiplied with ``x``.
            name: What the caller calls ``x``.

        Raises:
            ValueError: Naming what came and the remedy.
        """
        timed = self.kind is Lorentz
        least = 1 + timed if num_features is None else num_features + timed
        width = x.shape[-1] if x.ndim else 0
        if width != least and (num_features is not None or width < least):
            first = f"time first, then {least - 1}" if timed else "of the ball"
            number = f"{least} or more" if num_features is None else f"{least}"
            raise ValueError(
                f"{name} must have {number} coordinates ({first}) along its last axis, "
                f"got shape {tuple(x.shape)}: {remedy(x, least, timed)}"
            )
        check_dtype(x, weight, name=name)
        if not timed and x.numel():
            self._warned = look(x, self.input_c, warned=self._warned, layer=self)

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

    @override
    def extra_repr(self) -> str:
        return self.describe()


def checked(kind: type, curvature: Curvature | float) -> Curvature | float:
    """A curvature that a layer may have.

    Raises:
        ValueError: If it is invalid for that model, or has more than one value.
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


def wide(x: Tensor) -> Tensor:
    """``x`` in the type to compute pointwise in: half types in float32."""
    return x.float() if x.dtype in HALVES else x


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in another type; what lies beyond a half type is its largest number."""
    return narrow(x, dtype) if dtype in HALVES else x.to(dtype)


def remedy(x: Tensor, ambient: int, timed: bool) -> str:
    """Remedy for a last axis that is not ``ambient`` long."""
    if timed and x.ndim and x.shape[-1] == ambient - 1:
        return "expmap0(lift(x)) of the layer's manifold makes points of vectors"
    if ambient in x.shape:
        return f"movedim({x.shape.index(ambient)}, -1) puts the coordinates last"
    return "the layer takes the number of dimensions without time, the input has the coordinates"


def check_dtype(x: Tensor, weight: Tensor | None = None, *, name: str = "x") -> None:
    """Refuse numbers of a type that a layer cannot compute with.

    Args:
        x: What came.
        weight: A parameter that is multiplied with ``x``; under autocast it may be of another type.
        name: What the caller calls ``x``.

    Raises:
        ValueError: Naming the types and the remedy.
    """
    if not x.is_floating_point():
        raise ValueError(f"{name} must be floating, got {x.dtype}: use {name}.float()")
    if weight is None or x.dtype == weight.dtype:
        return
    narrow = (torch.float32, *HALVES)
    if torch.is_autocast_enabled(x.device.type) and {x.dtype, weight.dtype} <= set(narrow):
        return
    raise ValueError(
        f"{name} must be {weight.dtype} as the layer is, got {x.dtype}: "
        f"use {name}.to({weight.dtype}) or layer.to({x.dtype})"
    )
