"""Hierarchies as pairs of a descendant and an ancestor, and their transitive closure."""

import functools
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int64
from numpy.typing import NDArray
from torch import Tensor

from fedbolic.core.pair_keys import contains_pair, pair_keys

MOST_PAIRS = 2**24
"""Maximum number of pairs of a closure, which may grow with the square of the given pairs."""


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """A directed acyclic graph of named nodes, as pairs of a descendant and an ancestor.

    A node may have several parents, and none. The pairs may be the direct edges from children to
    parents, all pairs of descendants and ancestors (:meth:`closure`), or the part of them that one
    client holds. Nodes are numbered from 0 in the order of ``names``; pairs keep their order.

    Args:
        names: Names of the nodes, at least one, all different.
        pairs: One pair of node numbers per row, the descendant first. Pairs of a node with itself
            and repeated pairs are refused, not dropped.

    Raises:
        ValueError: If there are no names or a name is repeated; if ``pairs`` has another shape or
            dtype, a pair names a node that does not exist, relates a node to itself, or is
            repeated; if pairs form a cycle, the nodes of which are listed.

    Example:
        >>> edges = torch.tensor([[0, 1], [1, 2]])
        >>> cats = Hierarchy(("lion", "cat", "mammal"), edges).closure()
        >>> len(cats), cats.pairs.tolist(), cats.depths.tolist()
        (3, [[0, 1], [0, 2], [1, 2]], [2, 1, 0])
    """

    names: tuple[str, ...]
    pairs: Int64[Tensor, "num_pairs 2"]

    def __post_init__(self) -> None:
        if not self.names:
            raise ValueError("a hierarchy needs at least one node, got no names")
        name, times = Counter(self.names).most_common(1)[0]
        if times > 1:
            raise ValueError(f"names must be different, but {name!r} comes {times} times")
        if self.pairs.dtype != torch.int64 or self.pairs.ndim != 2 or self.pairs.shape[1] != 2:
            raise ValueError(
                "pairs must be an int64 tensor of shape (num_pairs, 2), got "
                f"{self.pairs.dtype} of shape {tuple(self.pairs.shape)}"
            )
        strangers = self.pairs[(self.pairs < 0) | (self.pairs >= len(self))]
        if len(strangers):
            raise ValueError(
                f"a pair names node {int(strangers[0])}, but nodes are 0 .. {len(self) - 1}"
            )
        loops = self.pairs[self.pairs[:, 0] == self.pairs[:, 1]]
        if len(loops):
            raise ValueError(
                f"a pair relates {self.names[int(loops[0, 0])]!r} to itself: leave such pairs out"
            )
        different, times = self.pairs.unique(dim=0, return_counts=True)
        twice = different[times > 1].tolist()
        if twice:
            u, v = twice[0]
            raise ValueError(
                f"the pair {self.names[u]!r}, {self.names[v]!r} is repeated: drop repetitions with "
                "pairs.unique(dim=0)"
            )
        _ = self.depths  # refuses cycles
        _ = self._nodes, self.keys  # torch.compile cannot trace the first use of cached properties

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self.names)

    @property
    def num_pairs(self) -> int:
        """The number of pairs."""
        return len(self.pairs)

    @functools.cached_property
    def depths(self) -> Int64[Tensor, " n"]:
        """Number of pairs on the longest chain from every node up to a root; 0 at the roots.

        Direct edges and their closure have the same depths.
        """
        descendant, ancestor = self.pairs.cpu().numpy().T
        depths = _longest_chains(descendant, ancestor, len(self))
        if (depths < 0).any():
            stuck = (depths[descendant] < 0) & (depths[ancestor] < 0)
            cycle = _cycle(dict(self.pairs[torch.from_numpy(stuck)].tolist()))
            members = " -> ".join(self.names[node] for node in cycle)
            shown = members if len(members) < 400 else f"{members[:400]} ..."
            raise ValueError(
                f"a hierarchy has no cycles, but pairs form {shown}: leave one of them out"
            )
        return torch.from_numpy(depths).to(self.pairs.device)

    @functools.cached_property
    def primary_parents(self) -> Int64[Tensor, " n"]:
        """The deepest ancestor of every node, the first of several; -1 for a root.

        Direct edges and their closure have the same primary parents.

        Example:
            >>> diamond = torch.tensor([[0, 1], [0, 2], [1, 3], [2, 3]])
            >>> Hierarchy(("a", "b", "c", "top"), diamond).primary_parents
            tensor([ 1,  3,  3, -1])
        """
        u, v = self.pairs.cpu().numpy().T
        depths = self.depths.cpu().numpy()
        order = np.lexsort((-v, depths[v]))  # the last one that is written stays
        parents = np.full(len(self), -1)
        parents[u[order]] = v[order]
        return torch.from_numpy(parents).to(self.pairs.device)

    @functools.cached_property
    def offsets(self) -> Int64[Tensor, " starts"]:
        """Start of the list of every node in :attr:`ancestors`, and the end of the last list."""
        counts = torch.bincount(self.pairs[:, 0], minlength=len(self))
        return torch.cat((counts.new_zeros(1), counts.cumsum(0)))

    @functools.cached_property
    def ancestors(self) -> Int64[Tensor, " num_pairs"]:
        """Concatenated lists of the ancestors of every node, every list in ascending order.

        The list of node ``u`` is ``ancestors[offsets[u] : offsets[u + 1]]``.
        """
        return self.keys % len(self)

    @functools.cached_property
    def keys(self) -> Int64[Tensor, " num_pairs"]:
        """The pairs as the sorted keys that ``NegativeSampler`` takes."""
        return pair_keys(self.pairs, num_nodes=len(self))

    @functools.cached_property
    def _nodes(self) -> Int64[Tensor, " n"]:
        return torch.arange(len(self), device=self.pairs.device)

    def contains(self, u: Int64[Tensor, "..."], v: Int64[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """True where ``(u, v)`` is a pair, that is, where ``v`` is an ancestor of ``u``.

        Each test is a binary search among the pairs.

        Args:
            u: Nodes; broadcast with ``v``, and on the device of the pairs.
            v: Nodes.

        Raises:
            IndexError: If a node does not exist (CPU only; CUDA reports its own error later).
        """
        # looked up, because the key of a node out of range can be the key of another pair
        u, v = self._nodes[u], self._nodes[v]
        return contains_pair(self.keys, u, v, num_nodes=len(self))

    def related(self, u: Int64[Tensor, "..."], v: Int64[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """True where ``u`` and ``v`` are the same node or a pair in either order.

        The negatives of a ranking of ancestors are the nodes outside :meth:`contains`, which are
        more: there a descendant is ranked against the ancestors, so it is a negative.

        Args:
            u: Nodes; broadcast with ``v``, and on the device of the pairs.
            v: Nodes.

        Raises:
            IndexError: If a node does not exist (CPU only; CUDA reports its own error later).

        Example:
            >>> siblings = Hierarchy(("a", "b", "root"), torch.tensor([[0, 2], [1, 2]]))
            >>> siblings.related(torch.tensor([[0], [2]]), torch.arange(3))
            tensor([[ True, False,  True],
                    [ True,  True,  True]])
        """
        return (u == v) | self.contains(u, v) | self.contains(v, u)

    def closure(self) -> "Hierarchy":
        """The hierarchy of all pairs that follow from these, in ascending order.

        A pair follows if a chain of pairs leads from the descendant up to the ancestor.

        Raises:
            ValueError: If these are more than :data:`MOST_PAIRS`.
        """
        size = 0
        lists = np.split(self.ancestors.cpu().numpy(), self.offsets[1:-1].cpu().numpy())
        for node in self.depths.argsort().tolist():  # the lists of a node's ancestors are complete
            above = lists[node]
            lists[node] = np.unique(np.concatenate((above, *(lists[p] for p in above.tolist()))))
            size += len(lists[node])
            if size > MOST_PAIRS:
                raise ValueError(
                    f"more than {MOST_PAIRS} pairs follow from these {self.num_pairs}, in chains "
                    f"of up to {int(self.depths.max()) + 1} nodes: leave some nodes out"
                )
        descendants = np.repeat(np.arange(len(self)), [len(above) for above in lists])
        pairs = torch.from_numpy(np.stack((descendants, np.concatenate(lists)), axis=1))
        return Hierarchy(self.names, pairs.to(self.pairs.device))

    def to(self, device: torch.device | str) -> "Hierarchy":
        """The same hierarchy on ``device``; ``self`` if it is there."""
        pairs = self.pairs.to(device)
        return self if pairs is self.pairs else Hierarchy(self.names, pairs)


def _longest_chains(descendant: NDArray, ancestor: NDArray, num_nodes: int) -> NDArray:
    """Length of the longest chain above every node; -1 at and below cycles."""
    order = ancestor.argsort(kind="stable")
    below, counts = descendant[order], np.bincount(ancestor, minlength=num_nodes)
    starts = counts.cumsum() - counts
    waiting = np.bincount(descendant, minlength=num_nodes)
    depths = np.full(num_nodes, -1)
    level, depth = (waiting == 0).nonzero()[0], 0
    while len(level):
        depths[level] = depth
        sizes = counts[level]
        # positions in ``below`` of the lists of all nodes of the level, one list after another
        shifts = np.repeat(starts[level] - (sizes.cumsum() - sizes), sizes)
        reached, times = np.unique(below[shifts + np.arange(len(shifts))], return_counts=True)
        waiting[reached] -= times
        level, depth = reached[waiting[reached] == 0], depth + 1
    return depths


def _cycle(parent: dict[int, int]) -> list[int]:
    """A cycle of a map in which every parent has a parent, its first node repeated at the end."""
    node, path = next(iter(parent)), dict[int, int]()
    while node not in path:
        path[node] = len(path)
        node = parent[node]
    return [*list(path)[path[node] :], node]
