"""Local training of many clients at once: their values are stacked along a leading axis."""

from collections.abc import Sequence
from typing import Any, TypeAlias

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

Advanced: TypeAlias = tuple[Tree, float, Tensor]
"""``local`` of a client after its last step, the sum of its losses, and its clamped counts."""


def advance(method: GradientMethod, tasks: Sequence[ClientTask]) -> list[Advanced]:
    """Run all local steps of several clients together.

    Args:
        method: Method whose steps are taken.
        tasks: Tasks of equal form, one per client.

    Returns:
        For each client ``local`` after its last step, the sum of its examples' losses, and the
        counts of a :class:`~fedbolic.nn.clamped.Counter`, 0 if no layer has a ball.
    """
    # Clients with the most steps come first, so the active clients are always a leading slice:
    # a client that has taken its last step is cut off the end and never copied again.
    order = sorted(range(len(tasks)), key=lambda i: -len(tasks[i].plan.lengths))
    tasks = [tasks[i] for i in order]
    loader = BatchLoader(tasks, method.local.repeats)
    context, dims = joined([task.context for task in tasks])
    state = _stack([task.local for task in tasks])
    state = {
        "local": state,
        "loss": torch.zeros(len(tasks), device=loader.device),
        "clamped": torch.zeros(len(tasks), 2, dtype=torch.int64, device=loader.device),
    }
    ended: list[Tree] = []
    losses: list[Tensor] = []
    counts: list[Tensor] = []
    for step, num_active in enumerate([*loader.num_active, 0]):
        if num_active < len(state["loss"]):
            ended = _unstack(at_rows(state["local"], slice(num_active, None))) + ended
            losses = [state["loss"][num_active:], *losses]
            counts = [state["clamped"][num_active:], *counts]
            state, context = (
                at_rows(state, slice(num_active)),
                at_rows(context, slice(num_active), dims),
            )
        moved, rows = [], []
        for row, batch, batch_dims in loader.batches(step):
            own, given = at_rows(state, row), at_rows(context, row, dims)
            moved.append(joint_step(method, tasks[0].model, own, batch, given, (batch_dims, dims)))
            rows.append(row)
        if len(moved) == 1:
            state = moved[0]
        elif moved:
            back = torch.cat(rows).argsort()
            state = tree.map(lambda *x, back=back: torch.cat(x)[back], *moved)
    results = zip(ended, *host_numbers(torch.cat(losses), torch.cat(counts)), strict=True)
    of_client = dict(zip(order, results, strict=True))
    return [of_client[i] for i in range(len(tasks))]


def host_numbers(losses: Tensor, counts: Tensor) -> tuple[list[float], list[Tensor]]:
    """Losses and clamped counts of all clients on the CPU, by a single transfer.

    Args:
        losses: Sum of the losses of each client.
        counts: Counts of each client, below 2 ** 53.
    """
    numbers = torch.cat((losses.unsqueeze(1).double(), counts.double()), dim=1).cpu()
    return numbers[:, 0].tolist(), list(numbers[:, 1:].long())


def bucket_tasks(tasks: Sequence[ClientTask]) -> list[list[ClientTask]]:
    """Split tasks of equal form so that jagged values of different size need little padding."""
    found = [of_task for task in tasks for of_task in jagged_sizes(task.context) or ()]
    if not found:
        return [list(tasks)]
    return [
        [tasks[i] for i in sorted(some.tolist())]
        for _, some in buckets(torch.tensor(found), MOST_PADDED)
    ]


def joint_step(
    method: GradientMethod, model: Model, state: Tree, batch: Params, context: Tree, dims: tuple
) -> Tree:
    """One step of all clients: a joint forward pass, one backward pass, and the optimiser step.

    Args:
        method: Method whose step is taken.
        model: Common architecture of the clients.
        state: Stacked values that change: ``local``, ``loss`` and ``clamped``.
        batch: Stacked batch of :meth:`GradientMethod.loss`.
        context: Context of the clients.
        dims: Client axes of the batch and of the context.
    """
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
    """The tree of every client, as views of the stacked tensors."""
    rows = tree.map(lambda x: iter(x.unbind()), stacked)
    num_clients = len(next(iter(tree.tensors(stacked).values())))
    return [tree.map(next, rows) for _ in range(num_clients)]


def own_storage(x: Tree) -> Tree:
    """The same values; a row of a larger storage is copied, so as not to keep that alive."""

    def own(value: Tensor) -> Tensor:
        return value if value.untyped_storage().nbytes() == value.nbytes else value.clone()

    return tree.map_tensors(own, x)


def joined(contexts: Sequence[Tree]) -> tuple[Tree, Tree]:
    """One tree from trees of equal form, and each leaf's client axis, ``None`` if it is shared.

    Args:
        contexts: One tree per client.
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


def at_rows(stacked: Tree, rows: Tensor | slice, dims: Tree | None = None) -> Tree:
    """Select the rows of some clients; shared leaves are kept unchanged."""
    if dims is None:
        return tree.map_tensors(lambda x: x[rows], stacked)
    return tree.map(lambda x, dim: x if dim is None else x[rows], stacked, dims)
