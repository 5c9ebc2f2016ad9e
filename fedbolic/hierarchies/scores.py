"""Scores of distances between nodes: mean rank and MAP of ancestors among all nodes."""

import torch
from torch import Tensor

from fedbolic.data import HOLDOUT, Client, HierarchySplit
from fedbolic.nn.loss.ranking import RowDistances, rank_and_map


def pairs_of(client: Client, split: str = "train") -> HierarchySplit:
    """Pairs of a client.

    Args:
        client: The client.
        split: ``train``, ``validation`` or ``test``.

    Raises:
        ValueError: If the client holds other examples.
    """
    found = getattr(client, split)
    if not isinstance(found, HierarchySplit):
        raise ValueError(
            f"a method for hierarchies learns from pairs, got {type(found).__name__}: use the "
            "source fedbolic.data.PartitionedHierarchy"
        )
    return found


def score_distances(distances: RowDistances, client: Client) -> dict[str, float]:
    """Scores of distances between all nodes, on what a client or the server holds.

    ``test/own/...`` are the scores of a client's own pairs among the nodes in them, and
    ``test/...`` those of all pairs among all nodes at the server. ``test/inferred/...`` are those
    of the pairs that no client holds, where pairs that a client holds are not ranked against.

    Args:
        distances: Distances of some nodes to all nodes.
        client: A client, or the server's test set.

    Returns:
        ``map``, ``mean_rank`` and ``examples``, the number of pairs, under these names.
    """
    if client.id != HOLDOUT:
        nodes, pairs = pairs_of(client).hierarchy.pairs.unique(return_inverse=True)
        return _named("test/own", lambda i: distances(nodes[i])[:, nodes], pairs, len(nodes))
    test, num_nodes = pairs_of(client, "test"), client.meta.num_classes
    pairs = test.hierarchy.pairs
    scores = _named("test", distances, pairs, num_nodes)
    if test.held is not None and not bool(test.held.all()):
        known = pairs[test.held]
        scores |= _named("test/inferred", distances, pairs[~test.held], num_nodes, known=known)
    return scores


def _named(
    name: str,
    distances: RowDistances,
    pairs: Tensor,
    num_nodes: int,
    *,
    known: Tensor | None = None,
) -> dict[str, float]:
    if not len(pairs):
        return {}
    with torch.no_grad():
        found = rank_and_map(distances, pairs, num_nodes=num_nodes, known=known)
    return {
        f"{name}/map": found.mean_average_precision,
        f"{name}/mean_rank": found.mean_rank,
        f"{name}/examples": float(len(pairs)),
    }
