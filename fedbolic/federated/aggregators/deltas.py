"""Client deltas as vectors: their inner products, and linear combinations of them."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fedbolic.core import tree
from fedbolic.core.log import logger
from fedbolic.core.types import Tree
from fedbolic.federated.aggregators.aggregator import as_number, cast_like
from fedbolic.federated.aggregators.median import coordinate_median
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update

BLOCK = 2**21
"""Entries of the largest float64 block, 16 MiB: a Gram matrix never needs all deltas at once."""

Centre = Literal["zero", "median"]


def gram_matrix(trees: Sequence[Tree], *, centre: Centre = "zero") -> Float[Tensor, "k k"]:
    """Inner products of trees as flat vectors, accumulated in float64 over blocks of columns.

    Args:
        trees: At least one, all with the same names and shapes.
        centre: Point to subtract from every vector first: ``zero``, or their coordinate-wise lower
            ``median``. Distances from products about the median are free of the cancellation that
            a large common part, or a few far vectors, would cause among the others.
    """
    num_columns = max(1, BLOCK // len(trees))
    flat = [[torch.as_tensor(leaf).reshape(-1) for _, leaf in tree.leaves(x)] for x in trees]
    device = flat[0][0].device if flat[0] else None
    gram = torch.zeros(len(trees), len(trees), dtype=torch.float64, device=device)
    for rows in zip(*flat, strict=True):
        for i in range(0, len(rows[0]), num_columns):
            block = torch.stack([row[i : i + num_columns].double() for row in rows])
            if centre == "median":
                # sorted, because torch.median has no deterministic algorithm on CUDA
                block -= block.sort(dim=0).values[(len(block) - 1) // 2]
            gram.addmm_(block, block.T)
    return ((gram + gram.T) / 2).cpu()


def usable_deltas(
    updates: dict[int, Update], needed_by: str, *, centre: Centre = "zero"
) -> tuple[dict[int, Update], Float[Tensor, "k k"]]:
    """Updates with a finite delta, and the Gram matrix of these deltas.

    A delta that is not finite, or whose square overflows float64, excludes its client, with a
    warning.

    Args:
        updates: Updates by client id.
        needed_by: Name of the aggregator, for error messages.
        centre: As for :func:`gram_matrix`.

    Raises:
        ValueError: If there is no update, no delta, or payloads of several forms.
    """
    if not updates:
        raise ValueError("there is no update to aggregate")
    form = None
    for i, update in updates.items():
        if "delta" not in update.payload:
            names = sorted(update.payload)
            raise ValueError(f"client {i} sent {names}: {needed_by} needs the part 'delta'")
        form = form or tree.signature(update.payload)
        if tree.signature(update.payload) != form:
            raise ValueError(f"client {i} sent a payload of another form than those before")
    gram = gram_matrix([update.payload["delta"] for update in updates.values()], centre=centre)
    finite = gram.diagonal().isfinite()
    if not finite.any():
        raise ValueError("no client sent a finite delta: use a smaller local step size")
    for i, fine in zip(updates, finite.tolist(), strict=True):
        if not fine:
            logger.warning("client %d is left out: its delta is not finite", i)
    kept = {i: u for (i, u), fine in zip(updates.items(), finite.tolist(), strict=True) if fine}
    return kept, gram[finite][:, finite]


def squared_distances(gram: Float[Tensor, "k k"]) -> Float[Tensor, "k k"]:
    """Squared distances between all vectors, from their inner products."""
    squares = gram.diagonal()
    return (squares[:, None] + squares - 2 * gram).clamp_min(0).fill_diagonal_(0)


def distances_to(gram: Float[Tensor, "k k"], weights: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """Distances of all vectors from the combination of them with ``weights``.

    If the weights sum to 1, the inner products may be about any centre.
    """
    products = gram @ weights
    return (gram.diagonal() - 2 * products + weights @ products).clamp_min(0).sqrt()


def combine_leaves(weights: Float[Tensor, " k"], leaves: Sequence[Tensor | float]) -> Tensor:
    """Linear combination of corresponding leaves, in float64; leaves of weight 0 are not read."""
    like = as_number(leaves[0])
    total = torch.zeros(like.shape, dtype=torch.float64, device=like.device)
    for weight, leaf in zip(weights.tolist(), leaves, strict=True):
        if weight:
            total.add_(as_number(leaf).double(), alpha=weight)
    return cast_like(total, like)


def combine_updates(
    updates: dict[int, Update], weights: Float[Tensor, " k"], metrics: dict[str, float]
) -> AggregatedUpdate:
    """Combination of the deltas with ``weights``; every other part is the coordinate-wise median.

    Other parts, such as the statistics of batch norm, have other units than the deltas, so
    distances and weights of deltas do not apply to them.
    """
    payloads = [update.payload for update in updates.values()]
    deltas = [{"delta": payload["delta"]} for payload in payloads]
    others = [{k: v for k, v in payload.items() if k != "delta"} for payload in payloads]
    step = tree.map(lambda *leaves: combine_leaves(weights, leaves), *deltas)
    medians = tree.map(coordinate_median, *others)
    weight = sum(update.weight for update in updates.values())
    return AggregatedUpdate({**step, **medians}, weight, tuple(updates), metrics)
