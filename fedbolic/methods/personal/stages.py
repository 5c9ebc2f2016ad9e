"""Local steps in two stages, each of which trains a part of the parameters."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbolic.core.types import Params, Tree
from fedbolic.nn.network.model import Model


class StagedSteps:
    """Base next to ``ClassifierMethod`` of methods that train the head first, then the rest."""

    stage: ClassVar[tuple[str, str]] = "head.", "head_share"
    """Prefix of what the first steps train, and field that holds their share of all steps."""

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]  # of the other base
        share = self._share
        if not 0 < share < 1:
            raise ValueError(f"{self.stage[1]} must lie in (0, 1), got {share}")

    @property
    def _share(self) -> float:
        return getattr(self, self.stage[1])

    def draw(self, num_steps: int, batch_size: int, generator: torch.Generator) -> Params:
        """No random numbers, but for every step whether it is one of the first stage."""
        return {"is_first_stage": torch.arange(num_steps) < round(self._share * num_steps)}

    def in_training(self, parameters: Params, batch: Params) -> Params:
        """Parameters of which those that a step does not train are detached."""
        prefix, is_first = self.stage[0], batch["is_first_stage"]
        return {
            name: torch.where(is_first == name.startswith(prefix), value, value.detach())
            for name, value in parameters.items()
        }

    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        """Losses of the other base, of which a step trains its stage alone."""
        other: Any = super()
        return other.loss(model, self.in_training(parameters, batch), buffers, batch, context)
