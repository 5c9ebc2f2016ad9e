"""Partitions of the pairs of a hierarchy among clients: at random, or by subtree."""

import heapq
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.core.check import at_least
from fedbolic.core.rng import Rng
from fedbolic.data.contract.partition import IID
from fedbolic.data.hierarchies.hierarchy import Hierarchy
from fedbolic.data.hierarchies.hierarchy_split import ABOVE, BELOW, HEAD


class HierarchyPartition(ABC):
    """Assignment of the pairs of a hierarchy to clients."""

    # an annotation, not a property: a dataclass would take the property for the field's default
    num_clients: int

    @abstractmethod
    def split(self, hierarchy: Hierarchy, rng: Rng) -> list[Int64[Tensor, " pairs"]]:
        """Positions of the pairs of every client, ascending.

        A pair may be nobody's, and common ones may be everybody's.

        Args:
            hierarchy: A transitively closed hierarchy.
            rng: Random stream of the split.

        Raises:
            ValueError: If a client would have no pair.
        """

    def tiers(self, hierarchy: Hierarchy) -> Int64[Tensor, " n"] | None:
        """Tier of every node, which is public; ``None``, the default, if no pair is unknown.

        See :class:`~fedbolic.data.HierarchySplit`.

        Args:
            hierarchy: The hierarchy that is split.
        """
        del hierarchy
        return None

    def common(self, hierarchy: Hierarchy) -> Bool[Tensor, " n"] | None:
        """True for the nodes that all clients know; ``None``, the default, if there are none.

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

    A depth-first walk visits all nodes, and is cut into consecutive parts of equally many pairs,
    one for each client: neighbouring branches and, at the cuts, a part of one. A client holds the
    pairs of its nodes with all their ancestors. The split is not random.

    Args:
        num_clients: Number of clients, at least 1.

    Example:
        >>> from fedbolic.data.hierarchies.trees import balanced_tree
        >>> binary = balanced_tree(2, 3)
        >>> [len(pairs) for pairs in Subtrees(2).split(binary, Rng(0))]
        [17, 17]
    """

    num_clients: int = 10

    def __post_init__(self) -> None:
        at_least(1, num_clients=self.num_clients)

    @override
    def split(self, hierarchy: Hierarchy, rng: Rng) -> list[Tensor]:
        _require(hierarchy.num_pairs, self.num_clients)
        u, _ = hierarchy.pairs.T
        client_of = _deal(hierarchy, torch.arange(len(hierarchy)), self.num_clients)
        return _positions(client_of.to(u.device)[u], self.num_clients)


@dataclass(frozen=True)
class SubtreesAndAuthority(HierarchyPartition):
    """Branches whose clients do not know the way up, and an authority that knows only that.

    The branch with the most pairs is split into those below its head, and so on, until none has
    more than a fair share of all pairs. Neighbouring branches go to one client, which holds the
    pairs within them. The authority, the last client, holds the pairs of the heads, and of all
    nodes above them, with the nodes above. Nobody holds the pairs of a node below a head with a
    node above it: they follow from the pairs of two clients. Heads and the nodes above them are
    public; a node above is no negative example for a node below a head.

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
        u, v = hierarchy.pairs.cpu().T
        upper = (heads < 0) | (heads == torch.arange(len(hierarchy)))
        clients = _deal(hierarchy, heads, authority)[u]
        clients[heads[u] != heads[v]] = -1
        clients[upper[u] & (heads[v] < 0)] = authority
        return _positions(clients.to(hierarchy.pairs.device), self.num_clients)

    @override
    def tiers(self, hierarchy: Hierarchy) -> Tensor:
        heads = _heads(hierarchy, self.num_clients - 1)
        is_head = heads == torch.arange(len(hierarchy))
        tiers = torch.where(heads < 0, ABOVE, torch.where(is_head, HEAD, BELOW))
        return tiers.to(hierarchy.pairs.device)

    @override
    def common(self, hierarchy: Hierarchy) -> Tensor:
        return self.tiers(hierarchy) != BELOW


@dataclass(frozen=True)
class CommonLevels(HierarchyPartition):
    """Upper levels that everybody knows, with the subtrees below them dealt at random.

    Nodes of a depth below ``levels`` are common, and every client holds the pairs among them. Every
    other node belongs to one client, which also has the nodes below it by their primary parents,
    and holds the pairs of its nodes with all ancestors. Clients have equally many subtrees, up to
    one.

    Args:
        num_clients: Number of clients, at least 1.
        levels: Number of common levels, at least 1.

    Example:
        >>> from fedbolic.data.hierarchies.trees import balanced_tree
        >>> [len(pairs) for pairs in CommonLevels(2).split(balanced_tree(2, 3), Rng(0))]
        [18, 18]
    """

    num_clients: int = 10
    levels: int = 2

    def __post_init__(self) -> None:
        at_least(1, num_clients=self.num_clients, levels=self.levels)

    @override
    def split(self, hierarchy: Hierarchy, rng: Rng) -> list[Tensor]:
        common = self.common(hierarchy).cpu()
        parents, owners = hierarchy.primary_parents.tolist(), [-1] * len(hierarchy)
        walk = [node for node in _walk(hierarchy) if not common[node]]
        heads = [node for node in walk if common[parents[node]]]
        if len(heads) < self.num_clients:
            raise ValueError(
                f"{self.num_clients} clients cannot share {len(heads)} subtrees below "
                f"{self.levels} levels: use fewer clients or levels"
            )
        dealt = torch.randperm(len(heads), generator=rng.generator()).tolist()
        client_of = {head: i % self.num_clients for head, i in zip(heads, dealt, strict=True)}
        for node in walk:  # a parent comes before its children
            owners[node] = client_of[node] if node in client_of else owners[parents[node]]
        of_pair = torch.tensor(owners)[hierarchy.pairs[:, 0].cpu()].to(hierarchy.pairs.device)
        return [
            ((of_pair == client) | (of_pair < 0)).nonzero().flatten()
            for client in range(self.num_clients)
        ]

    @override
    def common(self, hierarchy: Hierarchy) -> Tensor:
        return hierarchy.depths < self.levels


@dataclass(frozen=True)
class Pooled(HierarchyPartition):
    """One client with all pairs that the clients of another partition hold.

    Args:
        partition: Partition whose clients are pooled.
    """

    partition: HierarchyPartition = field(default_factory=SubtreesAndAuthority)
    num_clients: int = field(default=1, init=False)

    @override
    def split(self, hierarchy: Hierarchy, rng: Rng) -> list[Tensor]:
        return [torch.cat(self.partition.split(hierarchy, rng)).unique()]

    @override
    def tiers(self, hierarchy: Hierarchy) -> Tensor | None:
        return self.partition.tiers(hierarchy)

    @override
    def common(self, hierarchy: Hierarchy) -> Tensor | None:
        return self.partition.common(hierarchy)


def _heads(hierarchy: Hierarchy, num_clients: int) -> Int64[Tensor, " n"]:
    """Head of the branch of every node, itself included; -1 for the nodes above the branches."""
    _require(hierarchy.num_pairs, num_clients)
    children, sizes = _children(hierarchy), _num_ancestors(hierarchy)
    subtree = sizes.clone()
    walk = _walk(hierarchy)
    for node in reversed(walk):
        subtree[node] += subtree[children[node]].sum()
    waiting = [(-int(subtree[root]), root) for root in children[-1]]
    heapq.heapify(waiting)
    while -waiting[0][0] * num_clients > hierarchy.num_pairs or len(waiting) < num_clients:
        _, head = heapq.heappop(waiting)
        for child in children[head]:
            heapq.heappush(waiting, (-int(subtree[child]), child))
        if not waiting:
            raise ValueError(
                f"the hierarchy has no {num_clients} branches: use fewer clients, or RandomPairs"
            )
    heads = torch.full((len(hierarchy),), -1)
    for _, head in waiting:
        heads[head] = head
    parents = {child: node for node, below in children.items() for child in below}
    for node in walk:  # a parent comes before its children
        if heads[node] < 0 and parents[node] >= 0:
            heads[node] = heads[parents[node]]
    return heads


def _num_ancestors(hierarchy: Hierarchy) -> Int64[Tensor, " n"]:
    return hierarchy.offsets.diff().cpu()


def _children(hierarchy: Hierarchy) -> dict[int, list[int]]:
    """Children of every node, and the roots under -1, in the tree of the primary parents."""
    children: dict[int, list[int]] = {node: [] for node in range(-1, len(hierarchy))}
    for node, parent in enumerate(hierarchy.primary_parents.tolist()):
        children[parent].append(node)
    return children


def _walk(hierarchy: Hierarchy) -> list[int]:
    """All nodes in the order of a depth-first walk, parents first."""
    children, walk = _children(hierarchy), []
    stack = children[-1][::-1]
    while stack:
        walk.append(stack.pop())
        stack += children[walk[-1]][::-1]
    return walk


def _deal(hierarchy: Hierarchy, pieces: Tensor, num_clients: int) -> Int64[Tensor, " n"]:
    """The client of every node: consecutive pieces of a walk, with equally many pairs.

    Args:
        hierarchy: The hierarchy.
        pieces: Piece of every node, the number of its first node; -1 for nodes without a client.
        num_clients: Number of clients.
    """
    sizes, dealt = _num_ancestors(hierarchy), pieces >= 0
    of_piece = torch.zeros_like(sizes).scatter_add_(0, pieces.clamp(min=0), sizes * dealt)
    walk = torch.tensor(_walk(hierarchy))
    ends = of_piece[walk].cumsum(0)
    middle = 2 * ends - of_piece[walk]  # twice the middle of a piece, so that all are integers
    client_of = torch.zeros_like(sizes)
    client_of[walk] = (middle * num_clients // (2 * int(ends[-1]))).clamp(max=num_clients - 1)
    return torch.where(dealt, client_of[pieces.clamp(min=0)], -1)


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
