"""Bases of all hyperbolic layers, with input checks and rounding."""

import functools
from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.core import check
from fedbolic.formulas.numerics import HALVES, narrow
from fedbolic.manifolds import Curvature, Lorentz, Poincare
from fedbolic.manifolds.curvature import Recorded, value_of
from fedbolic.nn.functional.clamped import look

Space = TypeVar("Space", bound=Lorentz | Poincare)


class HyperbolicModule(Recorded, Generic[Space]):
    """Base of layers in a space whose curvature may be learnt and shared with other layers.

    The layer takes the space apart: it keeps its curvature, a number or a ``Curvature``, and
    ``manifold`` is a fresh record with the value of now. So an optimiser step on a shared
    ``Curvature`` affects every layer that holds it, and ``deepcopy`` of a network keeps the
    sharing. A number is a fixed curvature, neither a parameter nor a buffer; a ``state_dict`` of
    another curvature is refused.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``, where ``c`` is minus the sectional curvature, a
            number or a ``Curvature`` with one value.

    Raises:
        ValueError: If ``manifold`` is another space, or its curvature has more than one value.
    """

    models: ClassVar[tuple[type[Lorentz] | type[Poincare], ...]] = (Lorentz, Poincare)
    """Models for which the layer is defined."""

    def __init__(self, manifold: Space) -> None:
        super().__init__()
        self.model: type[Space] = type(manifold)
        self.curvature = checked(manifold, self.models)
        self._warned = False

    @property
    def c(self) -> Tensor | float:
        """Minus the current sectional curvature."""
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
            f"the state dict is of a layer with {theirs}, but {type(self).__name__} has {own}: its "
            "parameters would give other points here, so build the layer with the curvature of the "
            "state dict"
        )

    @property
    def input_c(self) -> Tensor | float:
        """Minus the current sectional curvature of the inputs, by default that of the layer."""
        return self.c

    @property
    def manifold(self) -> Space:
        """Space of the layer at its current curvature."""
        return self.model(self.c)

    def check(
        self,
        x: Tensor,
        num_features: int | None = None,
        weight: Tensor | None = None,
        *,
        name: str = "x",
    ) -> None:
        """Check the shape and dtype of inputs; warn once if points lie outside the ball.

        Args:
            x: Inputs of the layer.
            num_features: Required dimensions of the space, without time; ``None`` for any.
            weight: Parameter to multiply with ``x``, whose dtype must match.
            name: Name of ``x`` in messages.

        Raises:
            ValueError: If ``x`` has the wrong number of coordinates or the wrong dtype.
        """
        timed = self.model is Lorentz
        least = 1 + timed if num_features is None else num_features + timed
        width = x.shape[-1] if x.ndim else 0
        if width != least and (num_features is not None or width < least):
            first = f"time first, then {least - 1}" if timed else "of the ball"
            number = f"{least} or more" if num_features is None else f"{least}"
            raise ValueError(
                f"{name} must have {number} coordinates ({first}) along its last axis, "
                f"got shape {tuple(x.shape)}: {remedy(x, least, timed)}"
            )
        if not x.is_floating_point():
            raise ValueError(f"{name} must be floating, got {x.dtype}: use {name}.float()")
        if weight is not None and not _multiply(x, weight):
            raise ValueError(
                f"{name} must be {weight.dtype} as the layer is, got {x.dtype}: "
                f"use {name}.to({weight.dtype}) or layer.to({x.dtype})"
            )
        if not timed and x.numel():
            self._warned = look(x, self.input_c, warned=self._warned, layer=self)

    def rounded(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """Round points to the promoted dtype of a layer's inputs: half only if all are half.

        Args:
            x: Points of the layer's space, in float32 or float64.
            *inputs: Inputs and parameters of the layer.
        """
        dtype = functools.reduce(torch.promote_types, (y.dtype for y in inputs))
        if dtype in HALVES:  # clamp first, so that rounded points still lie on the space
            return narrow(self.manifold.within(x, dtype), dtype)
        return x.to(dtype)

    def describe(self, **settings: object) -> str:
        """Space and settings for ``print``; a learnt curvature, a module, prints itself."""
        learnt = isinstance(self.curvature, Curvature)
        space = self.model.__name__ if learnt else f"{self.model.__name__}(c={self.curvature})"
        return ", ".join((space, *(f"{name}={value}" for name, value in settings.items())))

    @override
    def extra_repr(self) -> str:
        return self.describe()


class OutputRows(HyperbolicModule[Space], ABC):
    """Base of layers with one row of weights, and maybe a bias, per output.

    Args:
        manifold: Space of the inputs.
        in_features: Dimensions of the input space.
        out_features: Number of outputs.
        bias: Whether to learn a bias.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Raises:
        ValueError: If a number is below 1 or the space is refused.
    """

    outputs: ClassVar[str] = "out_features"
    """Name of the number of outputs, in errors and in ``print``."""

    weighs_time: ClassVar[bool] = False
    """True if rows have a coefficient of the time coordinate, on the hyperboloid."""

    def __init__(
        self,
        manifold: Space,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold)
        check.at_least(1, **{"in_features": in_features, self.outputs: out_features})
        self.in_features, self.out_features = in_features, out_features
        columns = in_features + (self.weighs_time and self.model is Lorentz)
        weight = torch.empty(out_features, columns, device=device, dtype=dtype)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(weight.new_empty(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Re-initialise the parameters."""
        with torch.no_grad():
            self.begin()
            if self.bias is not None:
                self.bias.zero_()

    @abstractmethod
    def begin(self) -> None:
        """Draw new values of ``weight``."""

    @override
    def extra_repr(self) -> str:
        outputs = {self.outputs: self.out_features}
        return self.describe(in_features=self.in_features, **outputs, bias=self.bias is not None)


class Head(OutputRows[Lorentz | Poincare], ABC):
    """Base of layers that give one logit per class; arguments are those of ``OutputRows``."""

    outputs = "num_classes"

    def __init__(
        self,
        manifold: Lorentz | Poincare,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold, in_features, num_classes, bias=bias, device=device, dtype=dtype)


def checked(
    manifold: Lorentz | Poincare,
    models: tuple[type[Lorentz] | type[Poincare], ...] = (Lorentz, Poincare),
) -> Curvature | float:
    """The curvature of a layer's space after a check.

    Raises:
        ValueError: If the space has another model, or its curvature has more than one value.
    """
    if type(manifold) not in models:
        names = [model.__name__ for model in models]
        raise ValueError(
            f"manifold must be {' or '.join(names)}, such as {names[0]}(c=1.0), got {manifold!r}"
        )
    c = manifold.curvature
    shape = tuple(getattr(c, "shape", ()))  # a number has none
    if shape:
        raise ValueError(
            f"curvature must have one value in a layer, got values of shape {shape}: for one per "
            "sample or client use vmap"
        )
    return c if isinstance(c, Curvature) else float(c)


def wide(x: Tensor) -> Tensor:
    """``x`` in the dtype of pointwise computations: half types become float32."""
    return x.float() if x.dtype in HALVES else x


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in another dtype, clamped to the range of a half type."""
    return narrow(x, dtype) if dtype in HALVES else x.to(dtype)


def remedy(x: Tensor, ambient: int, timed: bool) -> str:
    """Advice for the error about a last axis that is not ``ambient`` long."""
    if timed and x.ndim and x.shape[-1] == ambient - 1:
        return "ToManifold(Lorentz()) makes points of vectors"
    if ambient in x.shape:
        return f"movedim({x.shape.index(ambient)}, -1) puts the coordinates last"
    return "give the layer the number of dimensions without time, and inputs all coordinates"


def _multiply(x: Tensor, weight: Tensor) -> bool:
    """True if torch multiplies two dtypes: equal ones, under autocast any up to float32."""
    dtypes, small = {x.dtype, weight.dtype}, {torch.float32, *HALVES}
    return len(dtypes) == 1 or (torch.is_autocast_enabled(x.device.type) and dtypes <= small)
