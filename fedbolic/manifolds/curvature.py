"""Learnable curvature, and the extra state of modules."""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedbolic.formulas.numerics import HALVES

_NEAR = 1e-6
"""Relative tolerance of the comparison of recorded numbers, as means in float32 round them."""


class Recorded(nn.Module, ABC):
    """Module whose state dict also records numbers without which its parameters have no meaning.

    The numbers are extra state in the form of a tensor, so tools that handle only tensors can
    average, send and save the state dict. They are not buffers: a federation neither sends nor
    averages them. A state dict without them, such as one built by hand, is loaded without a check.
    """

    @property
    @abstractmethod
    def recorded(self) -> tuple[float, ...]:
        """The recorded numbers."""

    @abstractmethod
    def refusal(self, other: tuple[float, ...]) -> str:
        """Error message for a state dict that records the numbers ``other``."""

    @override
    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.recorded, dtype=torch.float64, device="cpu")

    @override
    def set_extra_state(self, state: Tensor) -> None:
        other, own = tuple(state.flatten().tolist()), self.recorded
        near = (math.isclose(x, y, rel_tol=_NEAR) for x, y in zip(other, own, strict=False))
        if len(other) != len(own) or not all(near):
            raise ValueError(self.refusal(other))

    @override
    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        missing: list[str] = []
        others = local_metadata, strict, missing, unexpected_keys, error_msgs
        super()._load_from_state_dict(state_dict, prefix, *others)
        missing_keys += [key for key in missing if key != f"{prefix}_extra_state"]


def add_axis(module: nn.Module, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
    """Hook that loads a parameter of one element from a number without an axis.

    Earlier versions saved such numbers; FSDP takes no parameter without an axis.
    """
    for name, parameter in module.named_parameters(recurse=False):
        given = state_dict.get(prefix + name)
        if isinstance(given, Tensor) and given.ndim == 0 and parameter.ndim == 1:
            state_dict[prefix + name] = given.unsqueeze(0)


def load_numbers(module: nn.Module) -> None:
    """Let a module load its parameters of one element from numbers without an axis."""
    # torch 2.4 has this hook under its name with an underscore alone, as all later versions do, too
    module._register_load_state_dict_pre_hook(add_axis, with_module=True)


def without_axis(x: Tensor) -> Tensor:
    """The number of a parameter of one element, which may have axes of clients before it.

    A number that has no axis, as in states of earlier versions, is returned as it is.
    """
    return x.squeeze(-1) if x.ndim else x  # under vmap, squeeze refuses a number


class Curvature(Recorded):
    r"""Learnable curvature :math:`c`, stored as an unconstrained raw number.

    .. math:: c = l + \log(1 + e^r), \qquad \text{or} \quad c = l + (h - l) / (1 + e^{-r})

    for an infinite and a finite upper bound :math:`h`, with the lower bound :math:`l`. The value
    read is the value set: ``Curvature(1.0).c`` is 1, with a relative error of at most 2e-6 for 1e-9
    to 1e3 in float32. Read ``c`` in ``forward`` (``Lorentz(self.curvature.c)``): a record made
    earlier would hold an outdated value and graph. Average ``c`` over clients, not the raw number,
    and convert the mean with ``raw_of``. The ``state_dict`` also holds the bounds, and one with
    other bounds is refused. Weight decay would pull the raw number to 0, which is an arbitrary
    curvature: :func:`fedbolic.nn.parameter_groups` gives optimisers groups that exclude it.

    The parameter of a single curvature has one element, as FSDP takes no parameter without an axis;
    ``c`` has no axis, and a ``state_dict`` with a raw number without one is loaded.

    Args:
        c: Initial value, between the bounds; a tensor gives one curvature per element, for example
            one per client. It must have a value, so a tensor may not be on the meta device.
        bounds: Open interval of values; the lower bound is 0 or more, the upper may be infinite.
        learnable: Whether the raw number requires a gradient.

    Raises:
        ValueError: If the bounds are not an interval in [0, inf] or ``c`` is not inside, or has no
            value.

    Example:
        >>> curvature = Curvature(0.5, bounds=(1e-2, 1e2))
        >>> curvature.c
        tensor(0.5000, grad_fn=<AddBackward0>)
    """

    def __init__(
        self,
        c: float | Tensor = 1.0,
        *,
        bounds: tuple[float, float] = (0.0, math.inf),
        learnable: bool = True,
    ) -> None:
        super().__init__()
        low, high = bounds
        if not 0 <= low < high:
            raise ValueError(f"bounds must be 0 <= low < high, got {bounds}")
        self.bounds = (float(low), float(high))
        is_tensor = isinstance(c, Tensor)
        place = c.device if is_tensor else torch.get_default_device()
        if is_tensor and c.is_meta:
            raise ValueError("c must have a value, got a tensor on the meta device: give a number")
        first = c if is_tensor else torch.tensor(c, dtype=torch.get_default_dtype(), device="cpu")
        if not bool(((first.double() > low) & (first.double() < high)).all()):
            raise ValueError(f"c must lie inside {bounds}, got {c}: widen the bounds")
        self.shape = first.shape
        raw = self.raw_of(first)
        self._first = (raw if raw.ndim else raw.unsqueeze(0)).cpu()
        self.raw = nn.Parameter(self._first.to(place, copy=True), learnable)
        load_numbers(self)

    def reset_parameters(self) -> None:
        """Set the initial value again, as after ``to_empty`` of a module on the meta device."""
        with torch.no_grad():
            if self._first.numel() == 1:  # also of a shard, which takes no whole tensor
                self.raw.fill_(self._first.item())
            else:
                self.raw.copy_(self._first)

    @property
    @override
    def recorded(self) -> tuple[float, ...]:
        return self.bounds

    @override
    def refusal(self, other: tuple[float, ...]) -> str:
        return (
            f"the state dict holds a curvature with the bounds {other}, but this one has "
            f"{self.bounds}, where its raw number gives another value: use the same bounds"
        )

    @property
    def c(self) -> Tensor:
        """The curvature, as a manifold takes it: minus the sectional curvature."""
        return self.c_of(self.raw if self.shape else without_axis(self.raw))

    def c_of(self, raw: Tensor) -> Tensor:
        """Convert raw numbers to curvatures."""
        low, high = self.bounds
        if math.isinf(high):
            # the default threshold of 20 would lose digits in float64
            return low + functional.softplus(raw, threshold=40)
        return low + (high - low) * raw.sigmoid()

    def raw_of(self, c: Tensor) -> Tensor:
        """Convert curvatures to raw numbers, the inverse of ``c_of``.

        The raw number is computed in float64 and rounded; of the floats around it, the one whose
        ``c_of`` is nearest to ``c`` is returned.

        Args:
            c: Curvatures inside the bounds; at a bound the raw number is infinite.
        """
        low, high = self.bounds
        above = c.detach().double() - low
        if math.isinf(high):
            raw = above + (-torch.expm1(-above)).log()
        else:
            raw = above.log() - (high - low - above).log()
        best = raw.to(c.dtype)
        for end in (-math.inf, math.inf):
            nearby = best
            for _ in range(3):
                nearby = torch.nextafter(nearby, torch.full_like(nearby, end))
                closer = (self.c_of(nearby) - c).abs() < (self.c_of(best) - c).abs()
                best = torch.where(closer, nearby, best)
        return best.detach()

    def extra_repr(self) -> str:
        """The bounds, for ``print``."""
        return f"bounds={self.bounds}"


class CurvatureField:
    """Field of a frozen dataclass that is set to a curvature and read as its value, anew each time.

    Example:
        >>> from fedbolic.manifolds import Lorentz
        >>> space = Lorentz(c=Curvature(0.5))
        >>> space.c, space.curvature
        (tensor(0.5000, grad_fn=<AddBackward0>), Curvature(bounds=(0.0, inf)))
    """

    def __get__(self, space: object | None, owner: type | None = None) -> Tensor | float:
        if space is None:
            raise AttributeError("the class has no curvature")
        # by another name: torch 2.11 compiles an entry of __dict__ as the attribute, this function
        return value_of(space.__dict__["_c"])

    def __set__(self, space: object, c: Curvature | Tensor | float) -> None:
        space.__dict__["_c"] = c


LEARNABLE_C: Any = CurvatureField()
"""The field ``c`` of every manifold that may be learnt."""


def value_of(curvature: Curvature | Tensor | float) -> Tensor | float:
    """Minus the current sectional curvature, in float32 if its module has a half type."""
    if not isinstance(curvature, Curvature):
        return curvature
    c = curvature.c
    return c.float() if c.dtype in HALVES else c


def checked_curvature(c: Tensor | float, *, flat: bool) -> Tensor | float:
    """The curvature of a space after a check.

    Args:
        c: A number, which is checked, or a floating tensor, whose values are not inspected.
        flat: Whether ``c = 0`` is allowed.

    Raises:
        ValueError: If a number is negative, not finite, or 0 without ``flat``.
    """
    if isinstance(c, Tensor):
        return c
    if not (math.isfinite(c) and (c > 0 or (flat and c == 0))):
        least = "0 or more" if flat else "above 0"
        raise ValueError(
            f"c must be finite and {least}, got {c}: it is minus the sectional curvature"
        )
    return float(c)
