"""The local work of many clients as one: what they hold lies side by side on a leading axis."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedbolic import tree
from fedbolic.federated.engines.batch_loader import BatchLoader
from fedbolic.federated.engines.buckets import MOST_PADDED, buckets
from fedbolic.federated.engines.client_task import ClientTask
from fedbolic.federated.engines.jagged import Jagged, jagged_sizes
from fedbolic.federated.gradient_method import GradientMethod, check_losses
from fedbolic.nn.clamped import COUNTS
from fedbolic.nn.model import Model
from fedbolic.types import Params, Tree


def advance(
    method: GradientMethod, tasks: Sequence[ClientTask]
) -> list[tuple[Tree, float, Tensor]]:
    """``local`` of every client after its last step, the sum of the losses of its examples, counts.

    The counts are those of a :class:`~fedbolic.nn.clamped.Counter`, 0 where no layer has a ball.

    Those who have the most steps stand first, so that those who still work are always the first
    few: who is done is cut off and not touched again.

    Args:
        method: Whose steps are made.
        tasks: Of one form.
    """
    order = sorted(range(len(tasks)), key=lambda i: -len(tasks[i].plan.lengths))
    tasks = [tasks[i] for i in order]
    feed = BatchLoader(tasks, method.local.repeats)
    context, dims = joined([task.context for task in tasks])
    state = _stack([task.local for task in tasks])
    state = {
        "local": state,
        "loss": torch.zeros(len(tasks), device=feed.device),
        "clamped": torch.zeros(len(tasks), 2, dtype=torch.int64, device=feed.device),
    }
    ended: list[Tree] = []
    losses: list[Tensor] = []
    counts: list[Tensor] = []
    for step, num_active in enumerate([*feed.num_active, 0]):
        if num_active < len(state["loss"]):
            ended = _unstack(_at(state["local"], slice(num_active, None))) + ended
            losses = [state["loss"][num_active:], *losses]
            counts = [state["clamped"][num_active:], *counts]
            state, context = _at(state, slice(num_active)), _at(context, slice(num_active), dims)
        moved, rows = [], []
        for row, batch, batch_dims in feed.batches(step):
            own, given = _at(state, row), _at(context, row, dims)
            moved.append(_step(method, tasks[0].model, own, batch, given, (batch_dims, dims)))
            rows.append(row)
        if len(moved) == 1:
            state = moved[0]
        elif moved:
            back = torch.cat(rows).argsort()
            state = tree.map(lambda *x, back=back: torch.cat(x)[back], *moved)
    results = zip(ended, torch.cat(losses).tolist(), torch.cat(counts).cpu(), strict=True)
    of_client = dict(zip(order, results, strict=True))
    return [of_client[i] for i in range(len(tasks))]


def bucket_tasks(tasks: Sequence[ClientTask]) -> list[list[ClientTask]]:
    """Tasks of one form, parted where what they hold of different size would be padded too much."""
    found = [of_task for task in tasks for of_task in jagged_sizes(task.context) or ()]
    if not found:
        return [list(tasks)]
    return [
        [tasks[i] for i in sorted(some.tolist())]
        for _, some in buckets(torch.tensor(found), MOST_PADDED)
    ]


def _step(
    method: GradientMethod, model: Model, state: Tree, batch: Params, context: Tree, dims: tuple
) -> Tree:
    """One step of all clients: a forward pass of each, one backward pass, a step of each."""
    local = state["local"]
    parameters = {n: value.detach().requires_grad_() for n, value in local["parameters"].items()}

    given = model, parameters, local["buffers"], batch, context
    losses, buffers = method.stacked_loss(*given, axes=dims)
    clamped = state["clamped"] + buffers.pop(COUNTS, 0)
    mask = batch["mask"]
    check_losses(losses, mask)
    sums = torch.where(mask, losses, 0.0).sum(dim=1)
    means = sums / mask.sum(dim=1)
    values = list(parameters.values())
    gradients = torch.autograd.grad(means.sum(), values, materialize_grads=True)
    with torch.no_grad():
        local = {**local, "buffers": tree.map(torch.Tensor.detach, buffers)}
        named = dict(zip(parameters, gradients, strict=True))
        named = method.local.clip(named, num_axes=1)
        local = method.stacked_step(local, named, context, axes=dims[1])
        return {"local": local, "loss": state["loss"] + sums.detach(), "clamped": clamped}


def _stack(trees: Sequence[Tree]) -> Tree:
    return tree.map(lambda *leaves: torch.stack(leaves), *trees)


def _unstack(stacked: Tree) -> list[Tree]:
    """The tree of every client, as rows of what all have in common."""
    rows = tree.map(lambda x: iter(x.unbind()), stacked)
    num_clients = len(next(iter(tree.tensors(stacked).values())))
    return [tree.map(next, rows) for _ in range(num_clients)]


def own_storage(x: Tree) -> Tree:
    """The same values, none of them a row that would keep other clients' alive."""

    def own(value: Tensor) -> Tensor:
        return value if value.untyped_storage().nbytes() == value.nbytes else value.clone()

    return tree.map_tensors(own, x)


def joined(contexts: Sequence[Tree]) -> tuple[Tree, Tree]:
    """Trees of one form as one, and the client axis of each leaf, ``None`` where all hold the same.

    Args:
        contexts: Of every client.
    """

    def same(*leaves: object) -> bool:
        values = isinstance(leaves[0], Tensor | Jagged)
        return not values or all(leaf is leaves[0] for leaf in leaves)

    def joined(*leaves: Any) -> Any:
        if same(*leaves):
            return leaves[0]
        if isinstance(leaves[0], Jagged):
            return Jagged.joined(leaves)
        return torch.stack(leaves)

    dims = tree.map(lambda *leaves: None if same(*leaves) else 0, *contexts)
    return tree.map(joined, *contexts), dims


def _at(stacked: Tree, rows: Tensor | slice, dims: Tree | None = None) -> Tree:
    """The rows of some clients; what all have in common stays."""
    if dims is None:
        return tree.map_tensors(lambda x: x[rows], stacked)
    return tree.map(lambda x, dim: x if dim is None else x[rows], stacked, dims)
