"""Losses of a batch, and their gradients by autograd."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import Variable

from fedbolic.core.types import Params, Tree
from fedbolic.nn.functional.clamped import Counter
from fedbolic.nn.network.model import Model

BatchLoss = Callable[[Model, Params, Params, Params, Tree], tuple[Tensor, Params]]
"""The ``loss`` of a gradient method."""


def check_losses(losses: Tensor, mask: Tensor) -> None:
    """Refuse losses that are not one number per example of a batch.

    Raises:
        ValueError: If the shape of ``losses`` is not that of ``mask``.
    """
    if losses.shape != mask.shape:
        raise ValueError(
            f"the loss must return one number per example, of shape {tuple(mask.shape)}, "
            f"got {tuple(losses.shape)}"
        )


def counted_loss(
    loss: BatchLoss, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
) -> tuple[Tensor, Params]:
    """Result of ``loss``, with counts of clamped points among the buffers.

    Raises:
        ValueError: If there is not one loss per example.
    """
    with Counter(batch["mask"]) as counter:
        losses, buffers = loss(model, parameters, buffers, batch, context)
    check_losses(losses, batch["mask"])
    return losses, {**buffers, **counter.total()}


def differentiate(
    loss: BatchLoss, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
) -> tuple[Tensor, Params, Params]:
    """Losses of a batch, gradients of their mean by parameter name, and the buffers after it."""
    losses, buffers = counted_loss(loss, model, parameters, buffers, batch, context)
    shares = torch.full_like(losses, 1 / len(losses))
    # the engine of torch.autograd.grad, which takes as long to examine a small network as this
    found = Variable._execution_engine.run_backward(
        *((losses,), (shares,), False, False, tuple(parameters.values())),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    named = zip(parameters.items(), found, strict=True)
    gradients = {name: torch.zeros_like(x) if g is None else g for (name, x), g in named}
    return losses.detach(), gradients, buffers


class Leaves:
    """Leaves of autograd that share the values of parameters, each for as many steps as it can."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Tensor, Tensor]] = {}

    def of(self, parameters: Params) -> Params:
        """Leaves of these parameters, by name."""
        kept = self._kept
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            kept = {}  # autocast keeps what it has cast of a leaf, also after the leaf has changed
        self._kept, leaves = {}, {}
        for name, value in parameters.items():
            held, leaf = kept.get(name, (None, value))
            if held is not value or leaf.data_ptr() != value.data_ptr():  # of another storage
                leaf = value if value.requires_grad else value.detach().requires_grad_()
            self._kept[name], leaves[name] = (value, leaf), leaf
        return leaves
