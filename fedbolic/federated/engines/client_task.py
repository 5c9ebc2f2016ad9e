"""One client's round of gradient steps, before the first step."""

import functools
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbolic.data.client import Client, Split
from fedbolic.federated.engines.jagged import Jagged
from fedbolic.federated.gradient_method import BatchPlan, GradientMethod
from fedbolic.nn.model import Model
from fedbolic.rng import Rng
from fedbolic.types import Tree


@dataclass(frozen=True, eq=False)
class ClientTask:
    """The round of one client before its first step."""

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
        """The task of a client with what it received and kept, and its own stream."""
        begun = method.begin(message, client, client_state, rng)
        return cls(client, *begun, method.examples(client))

    @functools.cached_property
    def form(self) -> Hashable:
        """Form that tasks of one batch share: names, shapes, dtypes, numbers."""
        draws = {n: (draw.dtype, draw.shape[1:]) for n, draw in self.plan.draws.items()}
        examples = self.examples.at(torch.arange(0))
        return id(self.model), *map(tree_form, (self.local, self.context, draws, examples))


def tree_form(x: Any) -> Hashable:
    """Form of a tree: dtype, device and shape of tensors, and all other leaves as they are."""
    if isinstance(x, Tensor):
        return x.dtype, x.device, x.shape
    if isinstance(x, Jagged):
        return Jagged
    return (
        tuple((name, tree_form(value)) for name, value in x.items()) if isinstance(x, dict) else x
    )
