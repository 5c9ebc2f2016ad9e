"""Scores of many clients from a joint forward pass."""

import dataclasses
import functools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedbolic.core import tree
from fedbolic.core.types import Params, Tree
from fedbolic.data.contract.client import Client, Split
from fedbolic.federated.batched.client_task import tree_form
from fedbolic.federated.batched.joint import joint_form, overrides
from fedbolic.federated.batched.stacking import (
    at_row,
    bucketed,
    joined,
    stack_trees,
    unstacked,
)
from fedbolic.federated.contract.engine import Exchange
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.jagged import Jagged
from fedbolic.federated.scores.score import (
    CHUNK,
    all_on_host,
    stacked_score_values,
    unread_scores,
)

SPLITS = ("validation", "test")

Scores = dict[int, dict[str, float]]
"""Scores by client id and name."""

ClientScores = dict[int, dict[str, float | Tensor]]
"""The same, on an accelerator as tensors without axes."""


class Held(NamedTuple):
    """A client with the model values and context of its predictions.

    Args:
        client: The client.
        local: Values of its model.
        context: Context of its predictions.
    """

    client: Client
    local: Tree
    context: Tree

    def split(self, name: str) -> Split:
        """The client's split of this name."""
        return getattr(self.client, name)

    @property
    def ids(self) -> tuple[int, ...]:
        """Identities of all leaves, in order: clients that received the same values share them."""
        return tuple([id(leaf) for part in self[1:] for _, leaf in tree.leaves(part)])


def is_stackable(method: object) -> bool:
    """True for gradient methods with a joint form of ``evaluate``, or with the inherited one."""
    if not isinstance(method, GradientMethod):
        return False
    return not overrides(method, "evaluate") or joint_form(method, "evaluate") is not None


def held_together(
    method: GradientMethod, exchange: Exchange, *, megabytes: float
) -> Iterator[list[Held]]:
    """Groups of consecutive clients that fit in memory; clients without a model are left out.

    Args:
        method: Method that is scored.
        exchange: Clients to score, with what they received.
        megabytes: Memory limit of a group, above 0, in addition to the values that all share.
    """
    held: list[Held] = []
    taken, known = 0, set[int]()
    for client in exchange.clients:
        message = exchange.messages[client.id]
        found = method.scored(message, client, exchange.state(client))
        if found is None:
            continue
        each = Held(client, *found)
        own = 2 * _own_bytes(each, known) if held else 0  # the tensors and their stacked copy
        if held and (taken + own > megabytes * 2**20 or len(held) == CHUNK):
            yield held
            held, taken, own = [], 0, 0
        known = known if held else {*each.ids}
        held.append(each)
        taken += own
    if held:
        yield held


def stacked_scores(method: GradientMethod, held: Sequence[Held]) -> Scores:
    """The scores of :func:`~fedbolic.federated.scores.score.score` at every client.

    Clients of equal form share a forward pass of at most
    :data:`~fedbolic.federated.scores.score.CHUNK` examples. A client with a larger split, or
    with a model that mixes the examples of a batch, is scored alone.

    Args:
        method: Method whose predictions are scored.
        held: Clients to score.
    """
    found = unread_stacked_scores(method, held)
    return dict(zip(found, all_on_host([*found.values()]), strict=True))


def unread_stacked_scores(
    method: GradientMethod, held: Sequence[Held], *, kept: dict[Hashable, Any] | None = None
) -> ClientScores:
    """The same, on an accelerator as tensors.

    Args:
        method: Method whose predictions are scored.
        held: Clients to score.
        kept: Groups and values on the device that stay for further calls with the same clients;
            ``None`` if there are none. With it, jagged leaves that have a block are read from it.
    """
    form = joint_form(method, "evaluate")
    if form is None:
        return scores_by_vmap(method, held, kept=kept)
    found: ClientScores = {each.client.id: {} for each in held}
    for group in _groups(method, held, kept):
        for some in bucketed(group, [each.context for each in group]):
            clients = [each.client for each in some]
            local = stack_trees([each.local for each in some])
            context, axes = joined([each.context for each in some])
            if kept is not None:
                context = tree.map(functools.partial(_in_block, kept=kept), context)
            scores = form(local, clients, context, axes=axes)
            found |= {client.id: dict(x) for client, x in zip(clients, scores, strict=True)}
    return found


def _in_block(leaf: Any, *, kept: dict[Hashable, Any]) -> Any:
    """A jagged leaf with its block as its only part, if it has one; other leaves as they are."""
    if not isinstance(leaf, Jagged) or leaf.block is None or not any(leaf.sizes):
        return leaf
    key = leaf.block, tuple(map(id, leaf.parts))
    if key not in kept:
        kept[key] = leaf.block.with_room(leaf.parts, len(leaf.parts), None)
    return dataclasses.replace(leaf, parts=(kept[key],), sizes=(1,))


def scores_of_stack(
    method: GradientMethod, local: Tree, clients: Sequence[Client], context: Tree, *, axes: Tree
) -> Sequence[Mapping[str, float | Tensor]]:
    """Scores of models that have been trained together, by client; on an accelerator as tensors.

    Args:
        method: Method whose predictions are scored.
        local: Stacked ``local``.
        clients: The clients, in the order of the stacked values.
        context: Joint context of the clients.
        axes: Client axes of ``context``, leaf by leaf.
    """
    if form := joint_form(method, "evaluate"):
        return form(local, clients, context, axes=axes)
    contexts = [at_row(context, i, axes) for i in range(len(clients))]
    held = map(Held, clients, unstacked(local, len(clients)), contexts)
    return [*scores_by_vmap(method, [*held]).values()]


def is_scored_alone(method: GradientMethod, each: Held) -> bool:
    """True if a client has a large split, or a model that mixes the examples of a batch.

    Args:
        method: Method whose predictions are scored.
        each: The client.
    """
    longest = max(len(each.split(name)) for name in SPLITS)
    return longest > CHUNK or method.model(each.client.meta).mixes_examples


def scores_by_vmap(
    method: GradientMethod,
    held: Sequence[Held],
    *,
    kept: dict[Hashable, Any] | None = None,
) -> ClientScores:
    """Scores by ``vmap`` of the method's predictions, for clients of equal form together.

    Args:
        method: Method whose predictions are scored.
        held: Clients to score.
        kept: As in :func:`unread_stacked_scores`.
    """
    kept = {} if kept is None else kept
    found: ClientScores = {each.client.id: {} for each in held}
    together: list[Held] = []
    for each in held:
        if is_scored_alone(method, each):
            predict = functools.partial(_predicted, method, each)
            found[each.client.id] |= unread_scores(predict, each.client)
        elif any(len(each.split(name)) for name in SPLITS):
            together.append(each)
    groups = _groups(method, together, kept)
    for name in SPLITS:
        for group in groups:
            for some in _chunks([each for each in group if len(each.split(name))], name):
                for each, scores in zip(some, _scores(method, some, name, kept), strict=True):
                    named = {f"{name}/{metric}": value for metric, value in scores.items()}
                    found[each.client.id] |= named
    return found


def _predicted(method: GradientMethod, each: Held, batch: Params) -> Tensor:
    model = method.model(each.client.meta)
    return method.predict(model, each.local, batch, each.context)


def _groups(
    method: GradientMethod, held: Sequence[Held], kept: dict[Hashable, Any] | None
) -> list[list[Held]]:
    """Clients of equal form, which are scored together."""
    if kept and "groups" in kept:
        return kept["groups"]
    groups: dict[Hashable, list[Held]] = {}
    forms: dict[tuple[int, ...], Hashable] = {}
    for each in held:
        if (ids := each.ids) not in forms:
            forms[ids] = tree_form(each.local), tree_form(each.context)
        examples = tree_form(each.client.test.no_examples)
        form = id(method.model(each.client.meta)), forms[ids], examples
        groups.setdefault(form, []).append(each)
    found = [*groups.values()]
    if kept is not None:
        kept["groups"] = found
    return found


def _own_bytes(each: Held, known: set[int]) -> int:
    """Bytes of a client's tensors that are none of the known leaves."""
    leaves = [leaf for part in each[1:] for _, leaf in tree.leaves(part)]
    own = [leaf for leaf in leaves if id(leaf) not in known]
    return sum(x.nbytes for x in own if isinstance(x, Tensor))


def _chunks(group: list[Held], name: str) -> Iterator[list[Held]]:
    """Chunks of clients with splits of similar length, so that little is padded."""
    some: list[Held] = []
    for each in sorted(group, key=lambda each: len(each.split(name))):
        if (len(some) + 1) * len(each.split(name)) > CHUNK:
            yield some
            some = []
        some.append(each)
    if some:
        yield some


def _scores(
    method: GradientMethod,
    held: Sequence[Held],
    name: str,
    kept: dict[Hashable, Any],
) -> list[dict[str, float | Tensor]]:
    """Accuracy, loss and number of examples of every client's split, from one forward pass."""
    model = method.model(held[0].client.meta)
    local, local_axes = joined([each.local for each in held])
    context, context_axes = joined([each.context for each in held])
    splits = [each.split(name) for each in held]
    lengths = tuple(len(split) for split in splits)
    batch = _padded(splits, max(lengths))
    if lengths not in kept:
        kept[lengths] = torch.tensor(lengths, device=batch["y"].device)

    def predicted(local: Tree, context: Tree, batch: Params) -> Tensor:
        return method.predict(model, local, batch, context)

    with torch.no_grad():
        logits = vmap(predicted, in_dims=(local_axes, context_axes, 0))(local, context, batch)
    return stacked_score_values(logits, batch["y"], lengths, counts=kept[lengths])


def _padded(splits: Sequence[Split], length: int) -> Params:
    """The examples of all clients, stacked; a short split is padded with its own first example."""
    positions = torch.arange(length, device=splits[0].no_inputs.device)
    of_client = [split.at(torch.where(positions < len(split), positions, 0)) for split in splits]
    return {name: torch.stack([each[name] for each in of_client]) for name in of_client[0]}
