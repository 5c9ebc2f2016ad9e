"""What a client does in a round of gradient steps, as it stands before the first of them."""

import functools
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbolic.data.client import Client, Split
from fedbolic.federated.ragged import Ragged
from fedbolic.federated.stepped import Plan, Stepped
from fedbolic.nn.model import Model
from fedbolic.rng import Rng
from fedbolic.types import Tree


@dataclass(frozen=True, eq=False)
class Task:
    """The round of one client before its first step."""

    client: Client
    model: Model
    local: Tree
    context: Tree
    plan: Plan
    examples: Split

    @classmethod
    def begin(
        cls, method: Stepped, message: Tree, client: Client, memory: Tree, rng: Rng
    ) -> "Task":
        """The task of a client with what it received and kept, and its own stream."""
        begun = method.begin(message, client, memory, rng)
        return cls(client, *begun, method.examples(client))

    @functools.cached_property
    def form(self) -> Hashable:
        """What tasks that are done together have in common: names, shapes, dtypes, numbers."""
        draws = {n: (draw.dtype, draw.shape[1:]) for n, draw in self.plan.draws.items()}
        examples = self.examples.at(torch.arange(0))
        return id(self.model), *map(form_of, (self.local, self.context, draws, examples))


def form_of(x: Any) -> Hashable:
    """What a tree looks like: of a tensor all but its values, everything else as it is."""
    if isinstance(x, Tensor):
        return x.dtype, x.device, x.shape
    if isinstance(x, Ragged):
        return Ragged
    return tuple((name, form_of(value)) for name, value in x.items()) if isinstance(x, dict) else x
