"""Sets of pairs of nodes as sorted integers, which are searched instead of hashed."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fedbolic.core import check

PADDING_KEY = 2**63 - 1
"""Key of no pair, greater than all others: fills up sets that are stacked to one length."""


def pair_keys(pairs: Int[Tensor, "pairs 2"], *, num_nodes: int) -> Int[Tensor, " keys"]:
    r"""A set of pairs as sorted integers without repetition.

    .. math:: k = u n + v

    for the pair of the nodes :math:`u` and :math:`v` out of :math:`n`.

    Args:
        pairs: Nodes ``u`` and ``v`` of each pair, in ``[0, num_nodes)``.
        num_nodes: Number of nodes, at least 1, and at most 3037000499 so that keys fit in int64.

    Raises:
        ValueError: If ``num_nodes`` or a node is out of range, or ``pairs`` are not two columns of
            integers.

    Example:
        >>> pair_keys(torch.tensor([[2, 0], [0, 1], [2, 0]]), num_nodes=10)
        tensor([ 1, 20])
    """
    check.at_least(1, num_nodes=num_nodes)
    if num_nodes**2 > PADDING_KEY:
        raise ValueError(f"num_nodes must be at most 3037000499, got {num_nodes}")
    integers = not pairs.is_floating_point() and pairs.dtype != torch.bool
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not integers:
        raise ValueError(
            f"pairs must be integers of shape (pairs, 2), got {pairs.dtype} of shape "
            f"{tuple(pairs.shape)}: transpose the edge_index of a graph"
        )
    pairs = pairs.long()
    if pairs.numel() and not 0 <= int(pairs.min()) <= int(pairs.max()) < num_nodes:
        raise ValueError(
            f"pairs must hold nodes in [0, {num_nodes}), got {int(pairs.min())} to "
            f"{int(pairs.max())}"
        )
    return torch.unique(pairs[:, 0] * num_nodes + pairs[:, 1])


def contains_pair(
    keys: Int[Tensor, " keys"],
    u: Int[Tensor, "*#batch"],
    v: Int[Tensor, "*#batch"],
    *,
    num_nodes: int,
) -> Bool[Tensor, "*batch"]:
    """Membership of the pairs ``(u, v)`` in a set, by binary search; works under ``vmap``.

    Args:
        keys: Set of pairs from ``pair_keys``; ``PADDING_KEY`` may follow.
        u: First nodes of the pairs.
        v: Second nodes of the pairs.
        num_nodes: Number of nodes with which the keys were made.

    Example:
        >>> keys = pair_keys(torch.tensor([[2, 0], [0, 1]]), num_nodes=10)
        >>> contains_pair(keys, torch.tensor(2), torch.tensor([0, 1]), num_nodes=10)
        tensor([ True, False])
    """
    wanted = (u.long() * num_nodes + v).contiguous()
    if not keys.numel():
        return torch.zeros_like(wanted, dtype=torch.bool)
    at = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return keys[at] == wanted
