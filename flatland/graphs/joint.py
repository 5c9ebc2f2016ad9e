"""Joint forms of graph methods: one pass computes all clients, whose graphs form a block."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import cross_entropy

from fedbolic.core.types import Params, Tree
from fedbolic.data import Client
from fedbolic.federated.aggregators.update import StackedUpdates, split_columns
from fedbolic.federated.batched.joint import joint
from fedbolic.federated.scores.score import stacked_score_values
from fedbolic.nn.network.model import Model
from flatland.graphs.blocks import graph_block
from flatland.graphs.graph_method import GraphMethod, forward, logits_at
from flatland.graphs.links import LinkNetwork, link_losses


@joint(GraphMethod.loss)
def graph_losses(
    method: GraphMethod,
    model: Model,
    parameters: Params,
    buffers: Params,
    batch: Params,
    context: Tree,
    *,
    axes: tuple[Tree, Tree],
) -> tuple[Tensor, Params]:
    """Losses of all clients from one pass over the block of their graphs."""
    num_clients = len(batch["y"])
    context = with_client_axis(context, axes[1], num_clients)
    logits, buffers = forward(model, parameters, buffers, context, training=True)
    if isinstance(method.network, LinkNetwork):
        graphs = context["own"]["pairs"].parts
        return link_losses(method.network, logits, batch, graphs), buffers
    if type(method).losses is not GraphMethod.losses:
        named = {name: batch[name] for name in ("node", "y", "mask")}
        return vmap(method.losses)(logits, named), buffers
    # CUDA adds the gradients of an index in a fixed order, and those of gather in any order
    rows = logits[torch.arange(num_clients, device=logits.device)[:, None], batch["node"]]
    losses = cross_entropy(rows.flatten(0, 1), batch["y"].flatten(), reduction="none")
    return losses.view_as(batch["y"]), buffers


@joint(GraphMethod.evaluate, relies_on=(GraphMethod.scores, GraphMethod.predict))
def graph_scores(
    method: GraphMethod, local: Tree, clients: Sequence[Client], context: Tree, *, axes: Tree
) -> list[dict[str, float | Tensor]]:
    """Scores of all clients from one pass over the block of their graphs."""
    found: list[dict[str, float | Tensor]] = [{} for _ in clients]
    context = with_client_axis(context, axes, len(clients))
    model, block = method.model(clients[0].meta), graph_block(context["own"]["graph"].parts)
    with torch.no_grad():
        outputs, _ = forward(model, local["parameters"], local["buffers"], context)
    for name in ("validation", "test"):
        splits = tuple(getattr(client, name) for client in clients)
        if not any(map(len, splits)):
            continue
        places, labels, counts = block.examples(splits)
        logits = vmap(functools.partial(logits_at, method.network))(outputs, places)
        lengths = [len(split) for split in splits]
        scores = stacked_score_values(logits, labels, lengths, counts=counts)
        for of_client, values in zip(found, scores, strict=True):
            of_client |= {f"{name}/{metric}": value for metric, value in values.items()}
    return found


@joint(GraphMethod.finish, relies_on=(GraphMethod.scores,))
def graph_results(
    method: GraphMethod, local: Tree, clients: Sequence[Client], context: Tree, *, axes: Tree
) -> StackedUpdates:
    """Updates and client states of all clients."""
    scores = graph_scores(method, local, clients, context, axes=axes)
    context = with_client_axis(context, axes, len(clients))
    payload, client_states = method.outcome(local, context)
    added, kept = method.additions(local, clients, context)
    payload, client_states = {**payload, **added}, {**client_states, **kept}
    measured = split_columns(method.measurements(local, context), len(clients))
    metrics = [
        {f"local/{name}": value for name, value in found.items()} | of_one
        for found, of_one in zip(scores, measured, strict=True)
    ]
    weights = [method.weight(client) for client in clients]
    return StackedUpdates(payload, client_states, weights, metrics)


def with_client_axis(context: Tree, axes: Tree, num_clients: int) -> Tree:
    """A context whose ``fixed`` values have an axis of clients, even those that all clients share.

    Args:
        context: Joint context of several clients.
        axes: Client axes of ``context``, leaf by leaf.
        num_clients: Number of clients.
    """
    own, axes = context["own"], axes["own"]["fixed"]
    fixed = {
        name: value.expand(num_clients, *value.shape) if axes[name] is None else value
        for name, value in own["fixed"].items()
    }
    return {**context, "own": {**own, "fixed": fixed}}
