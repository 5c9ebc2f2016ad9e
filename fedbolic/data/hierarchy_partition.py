"""Partitions of the pairs of a hierarchy among clients: at random, or by subtree."""

import heapq
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.check import at_least
from fedbolic.data.hierarchy import Hierarchy
from fedbolic.data.partition import IID
from fedbolic.rng import Rng


class HierarchyPartition(ABC):
    """Assignment of every pair of a hierarchy to at most one client."""

    # an annotation, not a property: a dataclass would take the property for the field's default
    num_clients: int

    @abstractmethod
    def split(self, hierarchy: Hierarchy, rng: Rng) -> list[Int64[Tensor, " pairs"]]:
        """Positions of the pairs of every client, ascending; some pairs may be nobody's.

        Args:
            hierarchy: A transitively closed hierarchy.
            rng: Random stream of the split.

        Raises:
            ValueError: If a client would have no pair.
        """

    def candidates(self, hierarchy: Hierarchy) -> Int64[Tensor, " m"] | None:
        """Nodes that may be negative examples; ``None``, the default, for all nodes.

        Args:
            hierarchy: The hierarchy that is split.
        """
        del hierarchy
        return None


@dataclass(frozen=True)
class RandomPairs(HierarchyPartition):
    """Equal shares of the pairs at random: every client knows something of every branch.

    Args:
        num_clients: Number of clients, at least 1.
    """

    num_clients: int = 10

    def __post_init__(self) -> None:
        at_least(1, num_clients=self.num_clients)

    @override
    def split(self, hierarchy: Hierarchy, rng: Rng) -> list[Tensor]:
        _require(hierarchy.num_pairs, self.num_clients)
        return IID(self.num_clients).split(hierarchy.pairs[:, 0], rng)


@dataclass(frozen=True)
class Subtrees(HierarchyPartition):
    """Branches of the hierarchy: a client knows its branches and the paths from there to the roots.

    The branch with the most pairs is split into those below its head, and so on, until no branch
    has more than a fair share of all pairs. Then the branches, and the nodes above them as branches
    of one node, are dealt in descending order of size, each to the client that has the fewest
    pairs. A node with several parents belongs to one branch. The split is not random.

    Args:
        num_clients: Number of clients, at least 1.

    Example:
        >>> from fedbolic.data.trees import balanced_tree
        >>> binary = balanced_tree(2, 3)
        >>> [len(pairs) for pairs in Subtrees(2).split(binary, Rng(0))]
        [17, 17]
    """

    num_clients: int = 10

    def __post_init__(self) -> None:
        at_least(1, num_clients=self.num_clients)

    @override
    def split(self, hierarchy: Hierarchy, rng: Rng) -> list[Tensor]:
        client_of = _deal(hierarchy, _heads(hierarchy, self.num_clients), self.num_clients)
        return _positions(client_of[hierarchy.pairs[:, 0]], self.num_clients)


@dataclass(frozen=True)
class SubtreesAndAuthority(HierarchyPartition):
    """Branches whose clients do not know the way up, and an authority that knows only that.

    The branches are those of :class:`Subtrees` for one client less. A client holds the pairs within
    its branches. The authority, the last client, holds the pairs of their heads, and of all nodes
    above, with the nodes above. Nobody holds the pairs of a node below a head with a node above it:
    they follow from the pairs of two clients. The nodes above the heads are public, and never
    negative examples.

    Args:
        num_clients: Number of clients with the authority, at least 2.
    """

    num_clients: int = 21

    def __post_init__(self) -> None:
        at_least(2, num_clients=self.num_clients)

    @override
    def split(self, hierarchy: Hierarchy, rng: Rng) -> list[Tensor]:
        authority = self.num_clients - 1
        heads = _heads(hierarchy, authority)
        above = heads < 0
        u, v = hierarchy.pairs.T
        is_head = heads == torch.arange(len(hierarchy), device=heads.device)
        clients = _deal(hierarchy, heads, authority)[u]
        up = above[v]
        clients = torch.where(up & (above | is_head)[u], authority, clients)
        unheld = up & ~(above | is_head)[u] | ~up & (heads[u] != heads[v])
        return _positions(torch.where(unheld, -1, clients), self.num_clients)

    @override
    def candidates(self, hierarchy: Hierarchy) -> Tensor:
        return (_heads(hierarchy, self.num_clients - 1) >= 0).nonzero().flatten()


def _heads(hierarchy: Hierarchy, num_clients: int) -> Int64[Tensor, " n"]:
    """Head of the branch of every node, itself included; -1 for the nodes above the branches."""
    _require(hierarchy.num_pairs, num_clients)
    upward = torch.bincount(hierarchy.pairs[:, 0], minlength=len(hierarchy)).cpu()
    members: dict[int, Tensor] = {}
    waiting: list[tuple[int, int]] = []
    heads = torch.full((len(hierarchy),), -1)
    below = _below(hierarchy)

    def add(head: int, nodes: Tensor) -> None:
        members[head] = nodes
        heads[nodes] = head
        heapq.heappush(waiting, (-int(upward[nodes].sum()), head))

    def split(nodes: Tensor) -> None:
        """Branches of a set of nodes that is closed downward, from its uppermost nodes."""
        left = torch.zeros(len(hierarchy), dtype=torch.bool)
        left[nodes] = True
        for node in nodes[hierarchy.depths.cpu()[nodes].argsort(stable=True)].tolist():
            if left[node]:
                branch = torch.cat((torch.tensor([node]), below[node]))
                branch = branch[left[branch]]
                left[branch] = False
                add(node, branch)

    split(torch.arange(len(hierarchy)))
    fair = hierarchy.num_pairs / num_clients
    while -waiting[0][0] > fair or len(members) < num_clients:
        _, head = heapq.heappop(waiting)
        nodes = members.pop(head)
        heads[head] = -1
        if len(nodes) > 1:
            split(nodes[nodes != head])
        if not waiting:
            raise ValueError(
                f"the hierarchy has no {num_clients} branches: use fewer clients, or RandomPairs"
            )
    return heads.to(hierarchy.pairs.device)


def _below(hierarchy: Hierarchy) -> list[Tensor]:
    """The descendants of every node."""
    u, v = hierarchy.pairs.cpu()[hierarchy.pairs[:, 1].cpu().argsort(stable=True)].T
    return list(u.split(torch.bincount(v, minlength=len(hierarchy)).tolist()))


def _deal(hierarchy: Hierarchy, heads: Tensor, num_clients: int) -> Int64[Tensor, " n"]:
    """The client of every node: branches in descending order of size, to the one with the least."""
    nodes = torch.arange(len(hierarchy), device=heads.device)
    pieces = torch.where(heads < 0, nodes, heads)
    sizes = torch.bincount(pieces[hierarchy.pairs[:, 0]], minlength=len(hierarchy))
    loads = [(0, client) for client in range(num_clients)]
    client_of = torch.zeros(len(hierarchy), dtype=torch.int64)
    for piece in sizes.argsort(descending=True, stable=True).tolist():
        load, client = heapq.heappop(loads)
        client_of[piece] = client
        heapq.heappush(loads, (load + int(sizes[piece]), client))
    return client_of.to(heads.device)[pieces]


def _positions(clients: Tensor, num_clients: int) -> list[Tensor]:
    """Positions of the pairs of every client."""
    parts = [(clients == client).nonzero().flatten() for client in range(num_clients)]
    for client, part in enumerate(parts):
        if not len(part):
            raise ValueError(f"client {client} has no pair: use fewer clients")
    return parts


def _require(num_pairs: int, num_clients: int) -> None:
    if num_pairs < num_clients:
        raise ValueError(f"{num_clients} clients cannot share {num_pairs} pairs: use fewer clients")
