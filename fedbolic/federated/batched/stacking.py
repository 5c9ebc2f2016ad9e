"""Local training of many clients at once: their values are stacked along a leading axis."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedbolic.core import tree
from fedbolic.core.types import Params, Tree
from fedbolic.federated.batched.batch_loader import BatchLoader
from fedbolic.federated.batched.buckets import MOST_PADDED, buckets
from fedbolic.federated.batched.client_task import ClientTask
from fedbolic.federated.batched.joint import joint_losses, joint_steps
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.gradients import check_losses
from fedbolic.federated.contract.jagged import Jagged, jagged_sizes
from fedbolic.nn.functional.clamped import COUNTS
from fedbolic.nn.network.model import Model

T = TypeVar("T")


class Ended(NamedTuple):
    """Values of several clients after their last steps, with a leading axis of clients.

    Args:
        local: ``local`` of the clients.
        losses: Sum of the losses of each client's examples.
        clamped: Counts of a :class:`~fedbolic.nn.functional.clamped.Counter`, 0 if no layer has a
            ball.
    """

    local: Tree
    losses: Tensor
    clamped: Tensor

    @classmethod
    def joined(cls, parts: Sequence["Ended"], order: Sequence[int]) -> "Ended":
        """Join the values of all clients, and sort them.

        Args:
            parts: Values of some clients each.
            order: For each row of ``parts`` its place in the result.
        """
        if len(parts) == 1 and list(order) == sorted(order):
            return parts[0]
        whole = tree.map(lambda *x: torch.cat(x), *[part._asdict() for part in parts])
        if list(order) != sorted(order):
            places = torch.tensor(order).argsort().to(parts[0].losses.device)
            whole = at_rows(whole, places)
        return cls(**whole)


def advance(method: GradientMethod, tasks: Sequence[ClientTask]) -> Ended:
    """Run all local steps of several clients together.

    Args:
        method: Method whose steps are taken.
        tasks: Tasks of equal form, one per client.

    Returns:
        Values of all clients after their last steps, in the order of the tasks.
    """
    # Clients with the most steps come first, so the active clients are always a leading slice:
    # a client that has taken its last step is cut off the end and never copied again.
    order = sorted(range(len(tasks)), key=lambda i: -len(tasks[i].plan.lengths))
    tasks = [tasks[i] for i in order]
    loader = BatchLoader(tasks, method.local.repeats)
    context, dims = joined([task.context for task in tasks])
    state = {
        "local": stack_trees([task.local for task in tasks]),
        "loss": torch.zeros(len(tasks), device=loader.device),
        "clamped": torch.zeros(len(tasks), 2, dtype=torch.int64, device=loader.device),
    }
    ended: list[Ended] = []
    for step, num_active in enumerate([*loader.num_active, 0]):
        if num_active < len(state["loss"]):
            last = at_rows(state, slice(num_active, None))
            ended = [Ended(last["local"], last["loss"], last["clamped"]), *ended]
            state, context = (
                at_rows(state, slice(num_active)),
                at_rows(context, slice(num_active), dims),
            )
        # a step is several calls where batches of very different length would need much padding
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
    return Ended.joined(ended, order)


def bucket_tasks(tasks: Sequence[ClientTask]) -> list[list[ClientTask]]:
    """Split tasks of equal form so that jagged values of different size need little padding."""
    return bucketed(tasks, [task.context for task in tasks])


def bucketed(values: Sequence[T], contexts: Sequence[Tree]) -> list[list[T]]:
    """Split values by client so that jagged leaves of different size need little padding.

    Args:
        values: One value per client.
        contexts: Contexts of the clients, of equal form.
    """
    found = [of_client for context in contexts for of_client in jagged_sizes(context) or ()]
    if not found:
        return [list(values)]
    return [
        [values[i] for i in sorted(some.tolist())]
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
    losses, buffers = joint_losses(method, *given, axes=dims)
    clamped = state["clamped"] + buffers.pop(COUNTS, 0)
    mask = batch["mask"]
    check_losses(losses, mask)
    sums = losses.masked_fill(~mask, 0.0).sum(dim=1)  # torch.where takes a launch more each way
    means = sums / mask.sum(dim=1)
    values = list(parameters.values())
    # a client's mean depends on its own parameters alone, so the gradient of the sum has the
    # gradient of every client in that client's row
    gradients = torch.autograd.grad(means.sum(), values, materialize_grads=True)
    with torch.no_grad():
        local = {**local, "buffers": tree.map(torch.Tensor.detach, buffers)}
        named = dict(zip(parameters, gradients, strict=True))
        named = method.local.clip(named, num_axes=1)
        local = joint_steps(method, local, named, context, axes=dims[1])
        return {"local": local, "loss": state["loss"] + sums.detach(), "clamped": clamped}


def stack_trees(trees: Sequence[Tree]) -> Tree:
    """Trees along a new axis of clients; values that all clients received are sent only once.

    Args:
        trees: One tree of tensors per client.
    """

    def stacked(*leaves: Tensor) -> Tensor:
        first = leaves[0]
        if all(leaf is first for leaf in leaves):
            return first.expand(len(leaves), *first.shape).clone()
        return torch.stack(leaves)

    return tree.map(stacked, *trees)


def unstacked(stacked: Tree, num_clients: int) -> list[Tree]:
    """The tree of every client, with views of the stacked tensors.

    Args:
        stacked: Tree of tensors with a leading axis of clients, of jagged leaves with one part per
            client, and of other values that are common to all.
        num_clients: Number of clients.
    """

    def rows(x: Any) -> Iterator[Any]:
        if isinstance(x, Tensor):
            return iter(x.unbind())
        return iter(x.parts) if isinstance(x, Jagged) else itertools.repeat(x)

    of_clients = tree.map(rows, stacked)
    return [tree.map(next, of_clients) for _ in range(num_clients)]


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


def of_one_client(own: Tree) -> tuple[Tree, Tree]:
    """A client's own context as :func:`joined` would give it among those of several clients."""
    dims = tree.map(lambda x: 0 if isinstance(x, Tensor | Jagged) else None, own)
    return tree.map_tensors(lambda x: x.unsqueeze(0), own), dims


def at_row(stacked: Tree, row: int, dims: Tree) -> Tree:
    """Values of one client, without an axis of clients; shared leaves are kept unchanged.

    Args:
        stacked: Joint context of several clients.
        row: Place of the client.
        dims: Client axes, leaf by leaf.
    """

    def own(x: Any, dim: int | None) -> Any:
        if dim is None:
            return x
        return x[row : row + 1] if isinstance(x, Jagged) else x[row]

    return tree.map(own, stacked, dims)


def at_rows(stacked: Tree, rows: Tensor | slice, dims: Tree | None = None) -> Tree:
    """Select the rows of some clients; shared leaves are kept unchanged."""
    if dims is None:
        return tree.map_tensors(lambda x: x[rows], stacked)
    return tree.map(lambda x, dim: x if dim is None else x[rows], stacked, dims)
