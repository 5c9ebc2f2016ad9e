"""Feature scaling before the hash, by public bounds or by z-scores over all parties."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Real
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.aggregator import Sum
from fedbolic.federated.aggregators.update import (
    MOST_WEIGHT,
    AggregatedUpdate,
    Update,
    find_outside,
)
from fedbolic.federated.contract.engine import RunStoppedError
from fedbolic.federated.contract.method import Phase
from fedbolic.federated.contract.traits import Traits

MOMENT_BITS = 30
"""Fixed-point bits of a feature relative to its bound in the moments; squares fit 64 bits."""


@dataclass(frozen=True, eq=False)
class _Affine:
    """Affine map ``(x - center) / spread`` of each feature.

    Args:
        center: Value of each feature that maps to 0.
        spread: Difference of each feature that maps to 1, above 0.
    """

    center: Float64[Tensor, " d"]
    spread: Float64[Tensor, " d"]

    def __call__(self, x: Real[Tensor, "n d"]) -> Float64[Tensor, "n d"]:
        """Scaled features in double precision, bitwise equal on every device.

        Args:
            x: Examples.
        """
        return (x.double() - self.center.to(x.device)) / self.spread.to(x.device)


class Scaling(ABC):
    """Base class of feature scalings, which are the same at every party."""

    @abstractmethod
    def check_width(self, num_inputs: int) -> None:
        """Check that the bounds match the number of features.

        Args:
            num_inputs: Number of features.

        Raises:
            ValueError: If there are bounds for a different number of features.
        """

    @abstractmethod
    def affine(self, message: Tree, num_inputs: int) -> _Affine:
        """Affine map of the features.

        Args:
            message: Message from the server.
            num_inputs: Number of features.
        """


@dataclass(frozen=True)
class PublicBounds(Scaling):
    """Scaling that maps public bounds ``low`` and ``high`` to -1 and 1.

    Bounds must follow from the meaning of the features (0 and 255 for pixels, a human age), never
    from records; then they have no privacy cost. Values beyond the bounds are not clamped.

    Args:
        low: Lower bound of each feature, or one number for all.
        high: Upper bound of each feature, or one number for all, above ``low``.

    Raises:
        ValueError: If a bound is not finite, or ``high`` is not above ``low``.

    Example:
        >>> PublicBounds(0.0, 255.0).affine({}, 2)(torch.tensor([[0, 255]])).tolist()
        [[-1.0, 1.0]]
    """

    low: float | tuple[float, ...]
    high: float | tuple[float, ...]

    def __post_init__(self) -> None:
        low, high = (torch.tensor(of, dtype=torch.float64) for of in (self.low, self.high))
        if low.ndim and high.ndim and len(low) != len(high):
            raise ValueError(
                f"low has {len(low)} features and high has {len(high)}: give equally many"
            )
        if not ((high - low).isfinite() & (high > low)).all():
            raise ValueError(
                f"high must be above low, and both finite, got {self.low} and {self.high}"
            )

    @override
    def check_width(self, num_inputs: int) -> None:
        for bounds in (self.low, self.high):
            _each(bounds, num_inputs)

    @override
    def affine(self, message: Tree, num_inputs: int) -> _Affine:
        low, high = (_each(of, num_inputs) for of in (self.low, self.high))
        return _Affine(low / 2 + high / 2, high / 2 - low / 2)


@dataclass(frozen=True)
class ZScores(Scaling):
    """Scaling to mean 0 and standard deviation 1 over the examples of all parties.

    It needs one more exchange before the counts. The sums are exact integers, so the scaling is
    bitwise equal to the centralized one. A constant feature is only centred. No mechanism here
    makes these sums private: with ``privacy``, use :class:`PublicBounds`.

    Args:
        bound: Public bound, above 0, on the absolute value of all features, or of each. In the
            moments, features are rounded to multiples of ``2 ** -30`` of it, and clamped to it.

    Raises:
        ValueError: If a bound is not positive and finite.
    """

    bound: float | tuple[float, ...]

    def __post_init__(self) -> None:
        bounds = self.bound if isinstance(self.bound, tuple) else (self.bound,)
        for bound in bounds:
            check.positive(bound=bound)

    @override
    def check_width(self, num_inputs: int) -> None:
        _each(self.bound, num_inputs)

    @override
    def affine(self, message: Tree, num_inputs: int) -> _Affine:
        return _Affine(message["center"], message["spread"])


def _each(value: float | tuple[float, ...], num_inputs: int) -> Float64[Tensor, " d"]:
    """One number for each feature."""
    found = torch.tensor(value, dtype=torch.float64)
    if found.ndim and len(found) != num_inputs:
        raise ValueError(f"there are bounds of {len(found)} features, but inputs have {num_inputs}")
    return found.expand(num_inputs)


@dataclass(frozen=True)
class Moments(Phase):
    """Exchange of each party's number of examples and sums of their features and squares.

    Args:
        scaling: Scaling with the public bounds.
        num_inputs: Number of features.
    """

    scaling: ZScores
    num_inputs: int

    aggregator = Sum()

    traits = Traits(evaluates=False)

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        return {"exchange": "moments", "num_inputs": self.num_inputs}

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        x = client.train.all()["x"].flatten(1).double()
        if not x.isfinite().all():
            raise ValueError("features must be finite, got NaN or infinity")
        units = _each(self.scaling.bound, self.num_inputs).to(x.device) / 2.0**MOMENT_BITS
        top = 2**MOMENT_BITS
        whole = (x / units).round().clamp(-top, top).long()
        squares = whole**2  # sent in two halves: the sum of 2 ** 31 of either fits into 62 bits
        sums = {
            "count": torch.tensor(len(x)),
            "sum": whole.sum(dim=0),
            "high": (squares >> MOMENT_BITS).sum(dim=0),
            "low": (squares & (top - 1)).sum(dim=0),
        }
        return Update(sums, weight=float(client.size)), client_state

    @override
    def template(self, message: Tree) -> Tree:
        features = torch.zeros(self.num_inputs, dtype=torch.int64)
        count = torch.zeros((), dtype=torch.int64)
        return {"count": count, "sum": features, "high": features, "low": features}

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        if (fault := find_outside(payload, "count", 0, MOST_WEIGHT)) is not None:
            return fault
        most = int(payload["count"]) << MOMENT_BITS
        faults = (find_outside(payload, name, low, most) for name, low in
                  (("sum", -most), ("high", 0), ("low", 0)))  # fmt: skip
        return next(filter(None, faults), None)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        count = int(total.payload["count"])
        if count < 1:
            raise RunStoppedError("no party has an example: there is no mean to scale by")
        units = _each(self.scaling.bound, self.num_inputs) / 2.0**MOMENT_BITS
        sums = (total.payload[name].tolist() for name in ("sum", "high", "low"))
        center, spread = [], []
        for first, high, low, unit in zip(*sums, units.tolist(), strict=True):
            second = (high << MOMENT_BITS) + low
            # exact in integers up to the square root
            deviation = math.sqrt(max(count * second - first**2, 0)) / count * unit
            center.append(first / count * unit)
            spread.append(deviation or 1.0)
        scale = {"center": center, "spread": spread}
        tensors = {name: torch.tensor(of, dtype=torch.float64) for name, of in scale.items()}
        return {**server_state, "exchange": "counts", **tensors}
