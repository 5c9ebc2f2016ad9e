"""Local training: batches and number of the gradient steps of one client in one round."""

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.core.types import Params


@dataclass(frozen=True)
class LocalTraining:
    """Number and size of the local steps of one round.

    Args:
        epochs: Passes over the training data, at least 1.
        batch_size: Examples per step, at least 1; ``None`` for all examples of the client.
        repeats: Consecutive steps on each batch, at least 1.
        clip_norm: Largest norm of a step's gradient over all parameters, above 0; longer gradients
            are scaled down to it. ``None`` for no bound.

    Raises:
        ValueError: If a count is below 1, or ``clip_norm`` is not positive.
    """

    epochs: int = 5
    batch_size: int | None = 128
    repeats: int = 1
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        check.at_least(1, epochs=self.epochs, repeats=self.repeats)
        if self.batch_size is not None:
            check.at_least(1, batch_size=self.batch_size)
        if self.clip_norm is not None:
            check.positive(clip_norm=self.clip_norm)

    def order(
        self, size: int, rng: Rng
    ) -> tuple[Int[Tensor, "steps batch"], Int[Tensor, " steps"]]:
        """Positions of the examples of every batch of a round, and the length of every batch.

        Each epoch is a new permutation. The last batch of an epoch is short if the batch size does
        not divide ``size``; its row is padded with position 0.
        """
        generator = rng.at("order").generator()
        batch_size = max(1, min(self.batch_size or size, size))
        lengths = _lengths(size, batch_size, self.epochs, self.repeats)
        num_batches = -(-size // batch_size)
        positions = torch.zeros(self.epochs, num_batches * batch_size, dtype=torch.int64)
        for epoch in positions:
            torch.randperm(size, generator=generator, out=epoch[:size])
        positions = positions.reshape(-1, batch_size)
        if self.repeats > 1:
            positions = positions.repeat_interleave(self.repeats, dim=0)
        return positions, lengths

    def clip(self, gradients: Params, *, num_axes: int = 0) -> Params:
        """Gradients whose norm is at most ``clip_norm``.

        Args:
            gradients: By parameter.
            num_axes: Leading axes of clients, each with a gradient and a norm of its own.
        """
        if self.clip_norm is None or not gradients:
            return gradients
        squares = [g.double().square().flatten(num_axes).sum(-1) for g in gradients.values()]
        factor = (self.clip_norm / torch.stack(squares).sum(0).sqrt()).clamp(max=1)

        def scaled(g: Tensor) -> Tensor:
            return g * factor.to(g.dtype).view(factor.shape + (1,) * (g.ndim - num_axes))

        return {name: scaled(g) for name, g in gradients.items()}


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """Batches and random draws of one client's round, fixed before the first step.

    Args:
        positions: Positions of the examples of every step; position 0 pads short batches.
        lengths: Number of valid positions in each row of ``positions``.
        draws: Random numbers, with a leading axis of steps.
    """

    positions: Int[Tensor, "steps batch"]
    lengths: Int[Tensor, " steps"]
    draws: Params

    def cut(self, num_steps: int) -> "BatchPlan":
        """The first steps of the plan.

        Args:
            num_steps: Number of steps to keep, at least 0.
        """
        draws = {name: draw[:num_steps] for name, draw in self.draws.items()}
        return BatchPlan(self.positions[:num_steps], self.lengths[:num_steps], draws)


@functools.lru_cache(maxsize=1024)  # reused by clients of equal size, in every round
def _lengths(size: int, batch_size: int, epochs: int, repeats: int) -> Tensor:
    of_epoch = (size - torch.arange(0, size, batch_size)).clamp(max=batch_size)
    return of_epoch.repeat(epochs).repeat_interleave(repeats)
