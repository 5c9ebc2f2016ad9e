"""Learnable curvature, and the extra state of modules."""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

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


class Curvature(Recorded):
    r"""Learnable curvature :math:`c`, stored as an unconstrained raw number.

    .. math:: c = l + \log(1 + e^r), \qquad \text{or} \quad c = l + (h - l) / (1 + e^{-r})

    for an infinite and a finite upper bound :math:`h`, with the lower bound :math:`l`. The value
    read is the value set: ``Curvature(1.0).c`` is 1, with a relative error of at most 2e-6 for 1e-9
    to 1e3 in float32. Read ``c`` in ``forward`` (``Lorentz(self.curvature.c)``): a record made
    earlier would hold an outdated value and graph. Average ``c`` over clients, not the raw number,
    and convert the mean with ``raw_of``. The ``state_dict`` also holds the bounds, and one with
    other bounds is refused.

    Args:
        c: Initial value, between the bounds; a tensor gives one curvature per element, for example
            one per client.
        bounds: Open interval of values; the lower bound is 0 or more, the upper may be infinite.
        learnable: Whether the raw number requires a gradient.

    Raises:
        ValueError: If the bounds are not an interval in [0, inf] or ``c`` is not inside.

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
        wide = torch.as_tensor(c).double()
        if not bool(((wide > low) & (wide < high)).all()):
            raise ValueError(f"c must lie inside {bounds}, got {c}: widen the bounds")
        dtype = c.dtype if isinstance(c, Tensor) else torch.get_default_dtype()
        self.raw = nn.Parameter(self.raw_of(torch.as_tensor(c, dtype=dtype)), learnable)

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
        return self.c_of(self.raw)

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
            beside = best
            for _ in range(3):
                beside = torch.nextafter(beside, torch.full_like(beside, end))
                closer = (self.c_of(beside) - c).abs() < (self.c_of(best) - c).abs()
                best = torch.where(closer, beside, best)
        return best.detach()

    def extra_repr(self) -> str:
        """The bounds, for ``print``."""
        return f"bounds={self.bounds}"
