"""Fine-tuning at the clients, scored and then discarded."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.data.client import Client, Split
from fedbolic.federated.aggregators.aggregator import Aggregator, Gather
from fedbolic.federated.evaluation.score import score
from fedbolic.federated.gradient_method import GradientMethod
from fedbolic.federated.local_training import LocalTraining
from fedbolic.federated.update import AggregatedUpdate, Update
from fedbolic.nn.model import Model
from fedbolic.rng import Rng
from fedbolic.types import Meta, Params, Tree


@dataclass(frozen=True)
class FineTuningPhase(GradientMethod):
    """The local training of another method; its result is scored at the client and not sent.

    Args:
        inner: Method with the epochs and step size of the fine-tuning.
    """

    inner: GradientMethod

    @property
    def local(self) -> LocalTraining:  # type: ignore[override]  # a field of other methods
        """Local training of the inner method."""
        return self.inner.local

    @property
    @override
    def aggregator(self) -> Aggregator:
        return Gather()

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return self.inner.init(meta, rng)

    @override
    def admit(self, server_state: Tree, sizes: Sequence[int]) -> Tree:
        return self.inner.admit(server_state, sizes)

    @override
    def model(self, meta: Meta) -> Model:
        return self.inner.model(meta)

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        return self.inner.start(message, client, client_state)

    @override
    def examples(self, client: Client) -> Split:
        return self.inner.examples(client)

    @override
    def draw(self, num_steps: int, batch_size: int, generator: torch.Generator) -> Params:
        return self.inner.draw(num_steps, batch_size, generator)

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        return self.inner.loss(model, parameters, buffers, batch, context)

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
        return self.inner.stacked_loss(model, parameters, buffers, batch, context, axes=axes)

    @override
    def stacked_step(self, local: Tree, gradients: Params, context: Tree, *, axes: Tree) -> Tree:
        return self.inner.stacked_step(local, gradients, context, axes=axes)

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        return self.inner.step(local, gradients, context)

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        return self.inner.predict(model, local, batch, context)

    @override
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        scores = score(self.inner, local, context, client)
        return Update({}, weight=float(client.size), metrics=scores), {}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        return server_state

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        return {}
