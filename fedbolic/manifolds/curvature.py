"""A curvature that is learnt."""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

_NEAR = 1e-6
"""Numbers that differ by less than this share are the same: means in float32 round them."""


class Recorded(nn.Module, ABC):
    """A module whose state dict also holds numbers that parameters do not tell.

    They are its extra state, a tensor as all of a state dict is, so that it can be averaged, sent
    and saved by tools that know of tensors only. They are no buffer: a federation neither sends nor
    averages them. A state dict without them, as one made by hand, is loaded as it is.
    """

    @property
    @abstractmethod
    def recorded(self) -> tuple[float, ...]:
        """The numbers."""

    @abstractmethod
    def refusal(self, other: tuple[float, ...]) -> str:
        """The words that refuse other numbers than those of this module."""

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
    r"""A learnable :math:`c`, kept as a raw number that may take any value.

    .. math:: c = l + \log(1 + e^r), \qquad \text{or} \quad c = l + (h - l) / (1 + e^{-r})

    for the bounds :math:`l` and, if finite, :math:`h`. What is set is what is read:
    ``Curvature(1.0).c`` is 1, to a share of 2e-6 for 1e-9 to 1e3 in float32. Read ``c`` in
    ``forward`` (``Lorentz(self.curvature.c)``): a record made earlier would hold an old number and
    an old graph. Averages over clients are taken of ``c``, and set again through ``raw_of``. The
    ``state_dict`` also holds the bounds, and is loaded only where they are the same.

    Args:
        c: The first value, between the bounds; a tensor gives one curvature per element, as for
            clients that each have their own.
        bounds: The open interval of values, from 0 or more; the upper may be infinite.
        learnable: Whether the raw number asks for a gradient.

    Raises:
        ValueError: If the bounds are no interval or ``c`` is not inside.

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
            f"the state dict holds a curvature within the bounds {other}, and this one has "
            f"{self.bounds}, where its raw number stands for another: make it with the same bounds"
        )

    @property
    def c(self) -> Tensor:
        """The curvature: what a manifold takes."""
        return self.c_of(self.raw)

    def c_of(self, raw: Tensor) -> Tensor:
        """The curvature that a raw number stands for."""
        low, high = self.bounds
        if math.isinf(high):
            return low + functional.softplus(raw, threshold=40)  # past 20 float64 would lose digits
        return low + (high - low) * raw.sigmoid()

    def raw_of(self, c: Tensor) -> Tensor:
        """The raw number of a curvature between the bounds: undoes ``c_of``.

        Found in float64, then among the floats beside it the one that gives ``c`` best.

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
