"""Gradient steps that are those of another method."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Client, Split
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.local_training import LocalTraining
from fedbolic.federated.contract.wrapping_method import WrappingMethod
from fedbolic.nn.network.model import Model


@dataclass(frozen=True)
class DelegatedSteps(WrappingMethod, GradientMethod):  # type: ignore[misc]  # rounds is a property
    """Base of methods that take the local steps of another method and differ around them.

    Args:
        method: Method whose local steps are taken.
    """

    method: GradientMethod

    @property
    def local(self) -> LocalTraining:  # type: ignore[override]  # a field of other methods
        """Local training of the other method."""
        return self.method.local

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return self.method.init(meta, rng)

    @override
    def admit(self, server_state: Tree, sizes: Sequence[int]) -> Tree:
        return self.method.admit(server_state, sizes)

    @override
    def model(self, meta: Meta) -> Model:
        return self.method.model(meta)

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        return self.method.start(message, client, client_state)

    @override
    def examples(self, client: Client) -> Split:
        return self.method.examples(client)

    @override
    def draw(self, num_steps: int, batch_size: int, generator: torch.Generator) -> Params:
        return self.method.draw(num_steps, batch_size, generator)

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        return self.method.loss(model, parameters, buffers, batch, context)

    @override
    def stacked_loss(
        self,
        model: Model,
        parameters: Params,
        buffers: Params,
        batch: Params,
        context: Tree,
        *,
        axes: tuple[Tree, Tree],
    ) -> tuple[Tensor, Params]:
        return self.method.stacked_loss(model, parameters, buffers, batch, context, axes=axes)

    @override
    def stacked_step(self, local: Tree, gradients: Params, context: Tree, *, axes: Tree) -> Tree:
        return self.method.stacked_step(local, gradients, context, axes=axes)

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        return self.method.step(local, gradients, context)

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        return self.method.predict(model, local, batch, context)
