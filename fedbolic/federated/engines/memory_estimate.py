"""Estimated memory of clients that advance together."""

from collections.abc import Hashable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedbolic import tree
from fedbolic.data.client import Client
from fedbolic.federated.engines.client_task import ClientTask
from fedbolic.federated.gradient_method import GradientMethod

_VALUES = 5.0
"""Times the size of ``local``: as it began and as it ends, stacked, its gradients, the next one."""

_ACTIVATIONS = 1.5
"""Times what is kept for the backward pass: the largest gradients of it come on top."""


_HOLES = 1.25
"""Times what is asked for: an allocator leaves gaps between small tensors and large ones."""

LIBRARIES = 64.0
"""Megabytes that the first backward pass of a convolution takes for good, however few clients."""


_MEASURED: WeakKeyDictionary[Client, dict[Hashable, float]] = WeakKeyDictionary()
"""Bytes per example at each client, as long as somebody holds it: the same in every round."""


class MemoryEstimate:
    """Estimates the memory of clients that advance together.

    Args:
        method: Whose steps are made.
    """

    def __init__(self, method: GradientMethod) -> None:
        self.method, self._method_name = method, repr(method)
        self._values: dict[Hashable, float] = {}
        self._activations: dict[Hashable, float] = {}

    def megabytes(self, task: ClientTask) -> float:
        """Of one client: its values, its examples and what its longest batch leaves behind."""
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
        """Bytes that the forward pass of a first batch leaves behind for the backward pass."""
        batch = next(self.method.batches(task.client, task.plan))
        parameters = {n: x.detach().requires_grad_() for n, x in task.local["parameters"].items()}
        kept: dict[int, int] = {}

        def keep(x: Tensor) -> Tensor:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x.detach()  # a result would hold what computes it, which holds the result

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            given = task.local["buffers"], batch, task.context
            losses, _ = self.method.loss(task.model, parameters, *given)  # keeps what it kept alive
        for value in (*parameters.values(), losses):
            kept.pop(value.untyped_storage().data_ptr(), None)
        return _ACTIVATIONS * sum(kept.values()) / len(batch["mask"])
