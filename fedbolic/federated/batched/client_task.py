"""Inputs of one client's gradient steps in one round."""

import functools
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client, Split
from fedbolic.federated.contract.gradient_method import BatchPlan, GradientMethod
from fedbolic.federated.contract.jagged import Jagged, jagged_sizes
from fedbolic.nn.network.model import Model


@dataclass(frozen=True, eq=False)
class ClientTask:
    """Inputs of one client's gradient steps in one round.

    Args:
        client: The client with its data.
        model: Architecture that is trained.
        local: Parameters, buffers and optimiser state before the first step.
        context: Values that stay fixed during the round.
        plan: Batches and random draws of the round.
        examples: Examples that the batches index.
    """

    client: Client
    model: Model
    local: Tree
    context: Tree
    plan: BatchPlan
    examples: Split

    @classmethod
    def begin(
        cls, method: GradientMethod, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> "ClientTask":
        """Build the task from a client's message, its state and its random stream."""
        begun = method.begin(message, client, client_state, rng)
        return cls(client, *begun, method.examples(client))

    @functools.cached_property
    def form(self) -> Hashable:
        """Hashable form; only tasks of equal form can be stacked."""
        axes = 2 if jagged_sizes(self.context) else 1  # those of steps, and of examples
        draws = {n: (draw.dtype, draw.shape[axes:]) for n, draw in self.plan.draws.items()}
        examples = {n: (x.dtype, x.device, x.shape[1:]) for n, x in self.examples.all().items()}
        return id(self.model), *map(tree_form, (self.local, self.context, draws, examples))


def tree_form(x: Any) -> Hashable:
    """Hashable form of a tree: dtype, device and shape of tensors, other leaves by value."""
    if type(x) is dict:  # first, because an engine asks for every client
        return tuple([(name, tree_form(value)) for name, value in x.items()])
    if isinstance(x, Tensor):
        return x.dtype, x.device, x.shape
    return Jagged if isinstance(x, Jagged) else x
