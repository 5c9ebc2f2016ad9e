"""Updates and client states of clients that were trained together, from their stacked values."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from fedbolic.core import tree
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.aggregator import Additive
from fedbolic.federated.aggregators.update import (
    RowNumbers,
    StackedPayload,
    StackedRow,
    StackedUpdates,
    StackNumbers,
    Unread,
    Update,
    counts_of,
    on_host,
)
from fedbolic.federated.batched.client_task import ClientTask
from fedbolic.federated.batched.joint import joint_results
from fedbolic.federated.batched.stacking import Ended, joined, own_storage, unstacked
from fedbolic.federated.contract.gradient_method import (
    GradientMethod,
    metrics_of_training,
    without_seeds,
)
from fedbolic.federated.scores.score import with_numbers


def results_of(
    method: GradientMethod, tasks: Sequence[ClientTask], ended: Ended
) -> list[tuple[Update, Tree]]:
    """Update and client state of every client, whose numbers the host reads together.

    The number of operations does not depend on the number of clients, unless the method finishes
    its clients one by one.

    Args:
        method: Method whose steps were taken.
        tasks: Tasks of the clients, in ascending order of id.
        ended: Values after the last step, in the same order.
    """
    clients = [task.client for task in tasks]
    context, axes = joined([task.context for task in tasks])
    local = without_seeds(ended.local)
    found = joint_results(method, local, clients, context, axes=axes)
    if found is not None:
        numbers = _numbers_of(found, tasks, ended)
        return _rows_of(found, clients, numbers, summed=isinstance(method.aggregator, Additive))
    trained = _trained(_counted(tasks), *on_host([ended.losses, ended.clamped]))
    return [
        (dataclasses.replace(update, metrics={**metrics, **update.metrics}), kept)
        for (update, kept), metrics in zip(_one_by_one(method, tasks, local), trained, strict=True)
    ]


def _numbers_of(found: StackedUpdates, tasks: Sequence[ClientTask], ended: Ended) -> StackNumbers:
    """Metrics, counts and norms of all clients."""
    counts = counts_of(found.payload, num_axes=1)
    metrics = found.metrics or [{} for _ in tasks]
    there = [x for of_one in metrics for x in of_one.values() if isinstance(x, Tensor)]
    norms = _norms_of_rows(found, like=ended.losses)
    numbers = [ended.losses, ended.clamped, norms, *counts.values()]
    numbers += [torch.stack(there)] if there else []
    visits = _counted(tasks)  # as numbers: unread results must not hold the tensors of tasks

    def of_rows(values: list[Tensor]) -> list[RowNumbers]:
        losses, clamped, norms, *others = values
        named = with_numbers(metrics, others.pop().tolist() if there else [])
        counted = unstacked(dict(zip(counts, others, strict=True)), len(metrics))
        trained = _trained(visits, losses, clamped)
        return [
            RowNumbers(norm, count, {n: float(x) for n, x in {**training, **own}.items()})
            for norm, count, training, own in zip(
                norms.tolist(), counted, trained, named, strict=True
            )
        ]

    return StackNumbers(Unread(numbers), of_rows)


def _counted(tasks: Sequence[ClientTask]) -> list[tuple[int, int]]:
    """Number of examples of every client, and of its visits to them."""
    return [(task.client.size, task.plan.num_visits) for task in tasks]


def _trained(
    counted: Sequence[tuple[int, int]], losses: Tensor, clamped: Tensor
) -> list[dict[str, float | Tensor]]:
    """Metrics of every client's training."""
    return [
        metrics_of_training(loss, examples=examples, visits=visits, clamped=outside)
        for (examples, visits), loss, outside in zip(
            counted, losses.tolist(), clamped.tolist(), strict=True
        )
    ]


def _one_by_one(
    method: GradientMethod, tasks: Sequence[ClientTask], local: Tree
) -> list[tuple[Update, Tree]]:
    """Results of :meth:`GradientMethod.finish`, which share no storage with each other."""
    found = []
    for task, own in zip(tasks, unstacked(local, len(tasks)), strict=True):
        update, kept = method.finish(own, task.client, task.context)
        payload = own_storage(update.payload)
        found.append((Update(payload, update.weight, update.metrics), own_storage(kept)))
    return found


def _rows_of(
    found: StackedUpdates, clients: Sequence[Client], numbers: StackNumbers, *, summed: bool
) -> list[tuple[Update, Tree]]:
    """Result of every client.

    Client states, and payloads that are not summed, may be kept long after the exchange, so none
    shares storage with those of other clients.
    """
    stack = None
    payloads = unstacked(found.payload, len(clients))
    states = _owned(unstacked(found.client_states, len(clients)))
    if summed:
        stack = StackedPayload(found.payload, tuple(client.id for client in clients))
    else:
        payloads = _owned(payloads)
    rows = [
        StackedRow(stack, *of_one, numbers)
        for of_one in zip(range(len(clients)), payloads, states, strict=True)
    ]
    return [
        (Update(row.payload, weight, numbers.metrics(row.index), row), row.client_state)
        for row, weight in zip(rows, found.weights, strict=True)
    ]


def _owned(trees: Sequence[Tree]) -> list[Tree]:
    """The same values; all rows of larger storage are copied by one operation."""
    pairs: list[tuple[Tensor, Tensor]] = []

    def owned(x: Tensor) -> Tensor:
        if x.untyped_storage().nbytes() == x.nbytes:
            return x
        pairs.append((torch.empty_like(x), x))
        return pairs[-1][0]

    found = [tree.map_tensors(owned, x) for x in trees]
    if pairs:
        to, of = (list(tensors) for tensors in zip(*pairs, strict=True))
        torch._foreach_copy_(to, of)  # pyright: ignore[reportPrivateImportUsage]
    return found


def _norms_of_rows(found: StackedUpdates, *, like: Tensor) -> Tensor:
    """Euclidean norm of all floating numbers of each client; infinite if a square overflows."""
    norms = [torch.zeros_like(like)]
    for part in (found.payload, found.client_states):
        for x in tree.tensors(part).values():
            if x.is_floating_point() or x.is_complex():
                x = torch.linalg.vector_norm(x.flatten(1), dim=1) if x.ndim > 1 else x
                norms.append(x.abs() if x.is_complex() else x)
    return torch.linalg.vector_norm(torch.stack(norms), dim=0)
