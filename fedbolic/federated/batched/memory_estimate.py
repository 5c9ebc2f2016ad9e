"""Estimated memory of clients that are trained as one batch."""

from collections.abc import Hashable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from fedbolic.core import tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.batched.client_task import ClientTask
from fedbolic.federated.contract.gradient_method import GradientMethod, batches

_VALUES = 5.0
"""Copies of ``local``: initial, final, stacked, its gradients, and the next step's result."""

_ACTIVATIONS = 1.5
"""Factor on the activations kept for the backward pass; their largest gradients come on top."""


_HOLES = 1.25
"""Factor on the total: the allocator leaves gaps between small and large tensors."""

LIBRARIES = 64.0
"""Megabytes that a convolution's first backward pass keeps for good, for any number of clients."""


_MEASURED: WeakKeyDictionary[Client, dict[Hashable, float]] = WeakKeyDictionary()
"""Bytes per example, by method and form, measured at a client once and valid in every round."""


class MemoryEstimate:
    """Estimates the memory of clients that are trained as one batch.

    Args:
        method: Method that trains the clients.
    """

    def __init__(self, method: GradientMethod) -> None:
        self.method, self._method_name = method, repr(method)
        self._values: dict[Hashable, float] = {}
        self._activations: dict[Hashable, float] = {}

    def megabytes(self, task: ClientTask) -> float:
        """Megabytes of one client: its values, its examples and its longest batch's activations."""
        form = task.form
        if form not in self._values:
            own = task.context.get("own", {})
            self._values[form] = _VALUES * tree.num_bytes(task.local) + 2 * tree.num_bytes(own)
        num_bytes = self._values[form] + tree.num_bytes(task.examples.all())
        if len(task.plan.lengths):
            if form not in self._activations:
                known, key = _MEASURED.setdefault(task.client, {}), (self._method_name, form)
                if key not in known:
                    known[key] = self._per_example(task)
                self._activations[form] = known[key]
            num_bytes += self._activations[form] * task.plan.positions.shape[1]
        return _HOLES * num_bytes / 2**20

    def _per_example(self, task: ClientTask) -> float:
        """Bytes per example that the first batch's forward pass keeps for the backward pass."""
        batch = next(batches(self.method, task.client, task.plan))
        parameters = {n: x.detach().requires_grad_() for n, x in task.local["parameters"].items()}
        given = task.local["buffers"], batch, task.context
        losses, _ = self.method.loss(task.model, parameters, *given)
        kept = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in _saved(losses)}
        for value in (*parameters.values(), losses):
            kept.pop(value.untyped_storage().data_ptr(), None)
        return _ACTIVATIONS * sum(x.nbytes() for x in kept.values()) / len(batch["mask"])


def _saved(result: Tensor) -> Iterator[Tensor]:
    """Tensors that the graph of a result keeps: hooks do not see those of a ``Model``."""
    nodes: dict[Any, None] = dict.fromkeys([result.grad_fn] if result.grad_fn else [])
    reached = list(nodes)
    for node in reached:  # grows while it is read
        new = [n for n, _ in node.next_functions if n is not None and n not in nodes]
        nodes |= dict.fromkeys(new)
        reached += dict.fromkeys(new)
        names = [name for name in dir(node) if name.startswith("_saved_")]
        values = [getattr(node, name) for name in names] + [getattr(node, "saved_tensors", ())]
        for value in values:
            several = value if isinstance(value, list | tuple) else [value]
            yield from (x for x in several if isinstance(x, Tensor))
