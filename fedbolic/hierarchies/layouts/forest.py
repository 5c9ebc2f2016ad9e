"""A hierarchy as a forest whose nodes arrive in batches, for layouts that go level by level."""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbolic.data.hierarchies.direct_pairs import direct_pairs
from fedbolic.data.hierarchies.hierarchy import Hierarchy

MOST_PATHS = 64
"""Most paths to a root, on average over nodes, that are laid out as separate places."""


@dataclass(frozen=True, eq=False)
class Forest:
    """Nodes with at most one parent each.

    Args:
        parents: Parent of every node, -1 at the roots.
        batches: Batch in which every node arrives; never below that of its parent.
    """

    parents: NDArray[np.int64]
    batches: NDArray[np.int64]

    @functools.cached_property
    def levels(self) -> list[NDArray[np.int64]]:
        """Nodes by their depth, in ascending order."""
        order = self.parents.argsort(kind="stable")
        counts = np.bincount(self.parents + 1, minlength=len(self.parents) + 1)
        starts = counts.cumsum() - counts
        found, level = [], order[: counts[0]]
        while len(level):
            found.append(np.sort(level))
            sizes = counts[level + 1]
            # positions in ``order`` of the children of all nodes of the level
            shifts = np.repeat(starts[level + 1] - (sizes.cumsum() - sizes), sizes)
            level = order[shifts + np.arange(len(shifts))]
        return found

    @functools.cached_property
    def depths(self) -> NDArray[np.int64]:
        """Number of nodes above every node."""
        depths = np.zeros(len(self.parents), dtype=np.int64)
        for depth, level in enumerate(self.levels):
            depths[level] = depth
        return depths

    @functools.cached_property
    def hosted(self) -> NDArray[np.bool_]:
        """True for nodes that arrive later than their parent, and for roots."""
        parents = self.parents
        return (parents < 0) | (self.batches != self.batches[parents])

    @functools.cached_property
    def inner(self) -> NDArray[np.bool_]:
        """True for nodes with children in their batch."""
        inner = np.zeros(len(self.parents), dtype=bool)
        inner[self.parents[~self.hosted]] = True
        return inner

    @functools.cached_property
    def leaves(self) -> NDArray[np.float64]:
        """Leaves at and below every node in its batch."""
        leaves = (~self.inner).astype(float)
        for level in reversed(self.levels):
            own = level[~self.hosted[level]]
            np.add.at(leaves, self.parents[own], leaves[own])
        return leaves

    @functools.cached_property
    def ranks(self) -> NDArray[np.int64]:
        """Number of earlier batches in which siblings of every node arrived."""
        order = np.lexsort((self.batches, self.parents))
        parents, batches = self.parents[order], self.batches[order]
        first = np.r_[True, parents[1:] != parents[:-1]]
        steps = (np.r_[False, batches[1:] != batches[:-1]] & ~first).cumsum()
        ranks = np.empty_like(order)
        ranks[order] = steps - np.repeat(steps[first], run_lengths(first))
        return ranks


def unrolled(hierarchy: Hierarchy) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every path from a node up to a root as a row: the row of the path above, and the node.

    Args:
        hierarchy: Direct edges or a closure, of which the direct edges are taken.

    Raises:
        ValueError: If there are more than :data:`MOST_PATHS` paths a node.
    """
    n = len(hierarchy)
    child, parent = direct_pairs(hierarchy).cpu().numpy().T
    order = parent.argsort(kind="stable")
    below, counts = child[order], np.bincount(parent, minlength=n)
    starts = counts.cumsum() - counts
    level = np.setdiff1d(np.arange(n), child)
    parents, nodes, total = [np.full(len(level), -1)], [level], len(level)
    while len(level):
        sizes = counts[level]
        parents.append(np.repeat(np.arange(total - len(level), total), sizes))
        shifts = np.repeat(starts[level] - (sizes.cumsum() - sizes), sizes)
        level = below[shifts + np.arange(len(shifts))]
        nodes.append(level)
        total += len(level)
        if total > MOST_PATHS * n:
            raise ValueError(
                f"there are more than {MOST_PATHS} paths a node to the roots: place every node "
                "once, under its primary parent"
            )
    return np.concatenate(parents), np.concatenate(nodes)


def run_lengths(first: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Lengths of runs from a mask of their first members."""
    return np.diff(np.r_[first.nonzero()[0], len(first)])
