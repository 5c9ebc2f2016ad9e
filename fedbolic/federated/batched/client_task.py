"""Inputs of one client's gradient steps in one round."""

import functools
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client, Split
from fedbolic.federated.contract.gradient_method import BatchPlan, GradientMethod
from fedbolic.federated.contract.jagged import Jagged, jagged_sizes
from fedbolic.nn.network.model import Model


class TreeForm:
    """Hashable form of a dict, hashed once."""

    __slots__ = ("form", "hash")

    def __init__(self, form: Hashable) -> None:
        self.form, self.hash = form, hash(form)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TreeForm):
            return NotImplemented
        return self is other or (self.hash == other.hash and self.form == other.form)


class Forms:
    """Forms of trees; that of tensors that several clients received is computed once."""

    def __init__(self) -> None:
        self._known: dict[tuple, tuple[list, TreeForm]] = {}  # a value that lives keeps its id
        self._same: dict[TreeForm, TreeForm] = {}

    def of(self, x: Tree) -> TreeForm:
        """Hashable form of a tree that does not change any more."""
        values = [self.of(value) if type(value) is dict else value for value in x.values()]
        key = *x, *map(id, values)
        if key not in self._known:
            found = TreeForm((*x, *map(tree_form, values)))
            self._known[key] = values, self._same.setdefault(found, found)
        return self._known[key][1]


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
        forms: Known forms of values that clients have in common.
    """

    client: Client
    model: Model
    local: Tree
    context: Tree
    plan: BatchPlan
    examples: Split
    forms: Forms = field(default_factory=Forms)

    @classmethod
    def begin(
        cls,
        method: GradientMethod,
        message: Tree,
        client: Client,
        client_state: Tree,
        rng: Rng,
        forms: Forms | None = None,
    ) -> "ClientTask":
        """Build the task from a client's message, its state and its random stream."""
        begun = method.begin(message, client, client_state, rng)
        return cls(client, *begun, method.examples(client), forms or Forms())

    @functools.cached_property
    def form(self) -> Hashable:
        """Hashable form; only tasks of equal form can be stacked."""
        draws = self.plan.draws
        if draws:
            axes = 2 if jagged_sizes(self.context) else 1  # those of steps, and of examples
            draws = {n: (draw.dtype, draw.shape[axes:]) for n, draw in draws.items()}
        examples = {n: (x.dtype, x.device, x.shape[1:]) for n, x in self.examples.all().items()}
        known = self.forms.of(self.local), self.forms.of(self.context)
        return id(self.model), *known, tree_form(draws), tree_form(examples)


def tree_form(x: Any) -> Hashable:
    """Hashable form of a tree: dtype, device and shape of tensors, other leaves by value."""
    if type(x) is dict:  # first, because an engine asks for every client
        return tuple([(name, tree_form(value)) for name, value in x.items()])
    if isinstance(x, Tensor):
        return x.dtype, x.device, x.shape
    return Jagged if isinstance(x, Jagged) else x
