"""Bases of the layers that have one row of weights per output."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import nn
from typing_extensions import override

from fedbolic.core import check
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.space import HyperbolicModule, Space


class OutputRows(HyperbolicModule[Space], ABC):
    """Base of layers with one row of weights, and maybe a bias, per output.

    Args:
        manifold: Space of the inputs.
        in_features: Dimensions of the input space.
        out_features: Number of outputs.
        time: Whether rows have a coefficient of the time coordinate.
        bias: Whether to learn a bias.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Raises:
        ValueError: If a number is below 1 or the space is refused.
    """

    outputs: ClassVar[str] = "out_features"
    """Name of the number of outputs, in errors and in ``print``."""

    def __init__(
        self,
        manifold: Space,
        in_features: int,
        out_features: int,
        *,
        time: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold)
        check.at_least(1, **{"in_features": in_features, self.outputs: out_features})
        self.in_features, self.out_features = in_features, out_features
        weight = torch.empty(out_features, in_features + time, device=device, dtype=dtype)
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
    """Base of layers that give one logit per class.

    Args:
        manifold: Space of the inputs.
        in_features: Dimensions of the input space.
        num_classes: Number of logits.
        bias: Whether to learn a bias.
        device: Device of the parameters.
        dtype: Data type of the parameters.
    """

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
