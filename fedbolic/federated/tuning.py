"""Fine-tuning at the clients, scored and then forgotten."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.data.client import Client, Split
from fedbolic.federated.aggregate import Aggregator, Collect
from fedbolic.federated.method import Total, Update
from fedbolic.federated.score import score
from fedbolic.federated.stepped import Schedule, Stepped
from fedbolic.nn.model import Model
from fedbolic.rng import Rng
from fedbolic.types import Meta, Params, Tree


@dataclass(frozen=True)
class Tuned(Stepped):
    """The local training of another method, whose result is scored at the client and not sent.

    Args:
        inner: The method with the epochs and step size of the tuning.
    """

    inner: Stepped

    @property
    def schedule(self) -> Schedule:  # type: ignore[override]  # a field of the others
        """The inner method's."""
        return self.inner.schedule

    @property
    @override
    def aggregator(self) -> Aggregator:
        return Collect()

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return self.inner.init(meta, rng)

    @override
    def admit(self, state: Tree, sizes: Sequence[int]) -> Tree:
        return self.inner.admit(state, sizes)

    @override
    def model(self, meta: Meta) -> Model:
        return self.inner.model(meta)

    @override
    def start(self, message: Tree, client: Client, memory: Tree) -> tuple[Tree, Tree]:
        return self.inner.start(message, client, memory)

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
    def server_update(self, state: Tree, total: Total) -> Tree:
        return state

    @override
    def evaluate(self, message: Tree, client: Client, memory: Tree, rng: Rng) -> dict[str, float]:
        return {}
