"""Norms of the gradients of single examples, without these gradients, for linear layers."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from fedbolic.nn.model import Model
from fedbolic.types import Params


class LinearCall(NamedTuple):
    """Call of a linear layer on a batch.

    Args:
        name: Name of the layer in the model.
        inputs: One row for each example.
        outputs: One row for each example.
    """

    name: str
    inputs: Tensor
    outputs: Tensor


def linear_layers(model: Model) -> dict[str, nn.Linear]:
    """Linear layers of a model by name, which hold all of its parameters.

    Args:
        model: The model.

    Raises:
        ValueError: If another layer has parameters.

    Example:
        >>> list(linear_layers(Model(lambda: nn.Sequential(nn.Linear(3, 2), nn.ReLU()))))
        ['0']
    """
    found = {}
    for name, layer in model.layers().items():
        if type(layer).forward is nn.Linear.forward and isinstance(layer, nn.Linear):
            found[name] = layer
        elif list(layer.parameters(recurse=False)):
            raise ValueError(
                f"ghost norms are known here for linear layers, and {name or 'the model'} is "
                f"{type(layer).__name__}: use the gradients of every example"
            )
    return found


@contextlib.contextmanager
def recorded_calls(model: Model) -> Iterator[list[LinearCall]]:
    """Collect the calls of all linear layers while the model is called.

    Args:
        model: The model.

    Raises:
        ValueError: If another layer has parameters.
    """
    calls: list[LinearCall] = []

    def record(name: str) -> Callable[..., None]:
        return lambda layer, inputs, outputs: calls.append(LinearCall(name, inputs[0], outputs))

    with contextlib.ExitStack() as stack:
        for name, layer in linear_layers(model).items():
            stack.callback(layer.register_forward_hook(record(name)).remove)
        yield calls


def ghost_norms(
    calls: Sequence[LinearCall], losses: Tensor, parameters: Params
) -> Float64[Tensor, " batch"]:
    r"""Norm of the gradient of every example's loss, from one backward pass to the layers' outputs.

    .. math:: \|g_i\|^2 = \sum_l \|\delta_{li}\|^2 \left( \|a_{li}\|^2 + 1 \right)

    The gradient of layer l for example i is the outer product of the gradient of its output,
    :math:`\delta_{li}`, with its input, :math:`a_{li}`; the 1 is that of the bias. No gradient of a
    single example is ever in memory.

    Args:
        calls: Calls of all linear layers, by :func:`recorded_calls`.
        losses: Loss of every example, a function of these calls whose graph is kept.
        parameters: Parameters that count.

    Raises:
        ValueError: If a layer was called twice, or not on one row for each example.

    References:
        Goodfellow (2015), Efficient per-example gradient computations, arXiv:1510.01799; Li et al.
        (2022), Sec. 4, arXiv:2110.05679.
    """
    names = [call.name for call in calls]
    shapes = {call.inputs.shape[:-1] for call in calls}
    if len(set(names)) < len(names) or shapes != {losses.shape}:
        raise ValueError(
            "ghost norms are known here for layers that are called once on one row for each "
            "example: use the gradients of every example"
        )
    gradients = torch.autograd.grad(losses.sum(), [c.outputs for c in calls], retain_graph=True)
    squares = losses.new_zeros(losses.shape, dtype=torch.float64)
    for call, gradient in zip(calls, gradients, strict=True):
        factor = torch.zeros_like(squares)
        if f"{call.name}.weight" in parameters:
            factor = factor + call.inputs.detach().double().square().sum(-1)
        if f"{call.name}.bias" in parameters:
            factor = factor + 1
        squares = squares + factor * gradient.double().square().sum(-1)
    return squares.sqrt()
