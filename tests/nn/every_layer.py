"""Every layer in float32 with its inputs, and a learnt curvature where it has one."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from fedbolic.manifolds import Curvature, Lorentz
from fedbolic.nn import (
    CosineContrast,
    DistanceContrast,
    Dropout,
    EntailmentContrast,
    FermiDirac,
    HypLoRALinear,
    LogitScale,
    LoRALinear,
    MarginLoss,
    RankingLoss,
)
from tests.nn.cases import CASES, points


@dataclass(frozen=True)
class Layer:
    """A layer in float32 and its inputs.

    Args:
        make: Builds the layer; the same numbers in every call.
        inputs: Tensors that it is called with.
    """

    make: Callable[[], nn.Module]
    inputs: tuple[torch.Tensor, ...]

    @property
    def floats(self) -> bool:
        """True if the layer is called with floating tensors."""
        return bool(self.inputs) and all(x.is_floating_point() for x in self.inputs)

    def trained(self, layer: nn.Module, *inputs: torch.Tensor) -> list[torch.Tensor | None]:
        """Gradients of all parameters after a backward pass."""
        out = layer(*(inputs or self.inputs))
        if out.requires_grad:
            out.square().sum().backward()
        return [value.grad for value in layer.parameters()]


class OfSpace(nn.Module):
    """A loss that takes a space first, called with points alone."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss, self.curvature = loss, Curvature(0.7)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.loss(Lorentz(self.curvature.c), *inputs)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layers() -> dict[str, Layer]:
    """Every layer by name, with a learnt curvature where it has one; the first case of each."""
    found: dict[str, Layer] = {}

    def add(name: str, make: Callable[[], nn.Module], *inputs: torch.Tensor) -> None:
        def seeded() -> nn.Module:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return make().float().eval()

        found.setdefault(name, Layer(seeded, inputs))

    for case in CASES.values():
        x = case.inputs(0.7)
        inputs = x.float() if x.is_floating_point() else x
        make = lambda case=case: case.make(Curvature(0.7))  # noqa: E731
        add(type(make()).__name__, make, inputs)
    x, y = (points(Lorentz, 0.7, normal(2, 5, 4, seed=i) / 2).float() for i in range(2))
    gaps = normal(2, 5).abs()
    add("Dropout", lambda: Dropout(0.5), gaps)
    add("FermiDirac", lambda: FermiDirac(learnable=True), gaps)
    for loss in (MarginLoss, RankingLoss):
        add(loss.__name__, loss, gaps[:, 0], gaps)
    for loss in (DistanceContrast, EntailmentContrast):
        add(loss.__name__, lambda loss=loss: OfSpace(loss()), x, y)
    add("CosineContrast", CosineContrast, x, y)
    add("LogitScale", LogitScale)
    for kind in (LoRALinear, HypLoRALinear):
        add(kind.__name__, lambda kind=kind: kind(nn.Linear(4, 3), rank=2), normal(5, 4))
    return found
