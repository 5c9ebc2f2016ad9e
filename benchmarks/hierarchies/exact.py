"""Rows of the table of hierarchies that need no training: orders and layouts of the known pairs."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedbolic.data import Hierarchy
from fedbolic.hierarchies import TreeLayout
from fedbolic.nn.loss.ranking import RowDistances


def popularity(known: Hierarchy) -> RowDistances:
    """The ancestors of most nodes first, the same for every node."""
    counts = torch.bincount(known.pairs[:, 1], minlength=len(known)).double()
    return lambda nodes: (-counts).expand(len(nodes), -1)


def join(known: Hierarchy) -> RowDistances:
    """Known pairs, and those that follow from them, first; no order among either."""
    every = torch.arange(len(known))
    return lambda nodes: (~known.contains(nodes.unsqueeze(1), every)).double()


def nested_intervals(known: Hierarchy) -> RowDistances:
    """Celko's nested sets: the smallest interval around that of a node first.

    Nodes with other intervals follow, the largest first. Intervals nest along primary parents.
    """
    walk = Walk.of(known)
    first, last = walk.first, walk.first + walk.below
    size = (last - first).double()

    def gaps(nodes: Tensor) -> Tensor:
        u = nodes.unsqueeze(1)
        around = (first <= first[u]) & (last >= last[u])
        return torch.where(around, size, 3 * len(known) - size)

    return gaps


def flat_layout(known: Hierarchy) -> RowDistances:
    """Sectors of a circle: the chord between two nodes less that of half the ancestor's sector.

    The circle is divided among the roots and every sector among the children, by leaves.
    """
    walk = Walk.of(known)
    middle, width = torch.tensor(walk.sectors(), dtype=torch.float64).T * (2 * torch.pi)
    half = 2 * (width / 4).sin()

    def gaps(nodes: Tensor) -> Tensor:
        return 2 * ((middle[nodes].unsqueeze(1) - middle) / 2).sin().abs() - half

    return gaps


def plane_layout(known: Hierarchy) -> RowDistances:
    """Distances of the hyperbolic plane in which the hierarchy is laid out by gaps."""
    places = TreeLayout().place(known)
    return lambda nodes: places[nodes].cdist(places)


@dataclass(frozen=True)
class Walk:
    """The tree of primary parents, and a depth-first walk through it.

    Args:
        children: Children of every node, and the roots as those of -1.
        order: All nodes, parents first.
        first: Position of every node in the walk.
        below: Number of nodes below every node, and the node.
        leaves: Number of leaves below every node, at least 1.
    """

    children: dict[int, list[int]]
    order: list[int]
    first: Int64[Tensor, " n"]
    below: Int64[Tensor, " n"]
    leaves: Float[Tensor, " n"]

    @classmethod
    def of(cls, known: Hierarchy) -> "Walk":
        """The walk of a hierarchy, closed or not.

        Args:
            known: The hierarchy.
        """
        children: dict[int, list[int]] = {node: [] for node in range(-1, len(known))}
        parents = known.primary_parents.tolist()
        for node, parent in enumerate(parents):
            children[parent].append(node)
        order, stack = [], children[-1][::-1]
        while stack:
            order.append(stack.pop())
            stack += children[order[-1]][::-1]
        first, below = torch.empty(len(known), dtype=torch.int64), [1] * len(known)
        first[order] = torch.arange(len(known))
        leaves = [0.0 if children[node] else 1.0 for node in range(len(known))]
        for node in reversed(order):
            if parents[node] >= 0:
                below[parents[node]] += below[node]
                leaves[parents[node]] += leaves[node]
        return cls(children, order, first, torch.tensor(below), torch.tensor(leaves))

    def sectors(self) -> list[tuple[float, float]]:
        """The middle and the width of the sector of every node, as shares of the circle."""
        found, leaves = [(0.5, 1.0)] * len(self.order), self.leaves.tolist()
        for node in (-1, *self.order):
            inside = self.children[node]
            middle, width = (0.5, 1.0) if node < 0 else found[node]
            start, total = middle - width / 2, sum(leaves[child] for child in inside)
            for child in inside:
                own = width * leaves[child] / total
                found[child] = start + own / 2, own
                start += own
        return found


EXACT: dict[str, Callable[[Hierarchy], RowDistances]] = {
    "popularity": popularity,
    "nested intervals": nested_intervals,
    "flat, laid out": flat_layout,
    "join": join,
    "plane, laid out": plane_layout,
}
"""Gaps of the pairs of nodes of a hierarchy that is known."""
