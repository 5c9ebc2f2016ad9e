"""Layouts of known trees in hyperbolic space, without training."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from fedbolic.core import check
from fedbolic.data.hierarchies.hierarchy import Hierarchy
from fedbolic.hierarchies.layouts.cells import boxes, sectors
from fedbolic.hierarchies.layouts.forest import Forest, unrolled
from fedbolic.hierarchies.layouts.gaps import GapRule, gaps
from fedbolic.manifolds import Places

SLOPES = {"closure": 2.0, "both": 1.7, "parents": 1.4}
"""Radius by the logarithm of the size of a cell; with 2 all ancestors come first."""

RULES = {
    "closure": GapRule(spread=0.0, margin=1.5),
    "both": GapRule(spread=2.0, margin=1.1, order=1.0),
    "parents": GapRule(spread=2.0, margin=1.0, order=1.0, bonus=0.3),
}


@dataclass(frozen=True)
class TreeLayout:
    """Places for the nodes of a hierarchy, near their ancestors, by a rule instead of training.

    Ways:

    - ``gaps``: in the plane, every node next to its descendants and far from all others.
      It holds ancestors and direct parents at once, by the bits of an angle.
    - ``sectors``: in the plane, every node in the middle of a sector that its children divide by
      their leaves. It needs the fewest bits.
    - ``boxes``: in the half-space of ``dim`` dimensions, every node above a box that its children
      divide as in a treemap, shrunk a level so that the farthest node lies at ``radius``. With
      several dimensions it fits into a ball in float32.

    A node with several parents stands under its primary parent, the deepest, of several the one
    that is numbered lowest; direct edges and their closure are laid out alike. Layouts are
    deterministic.

    Args:
        way: Geometry of the layout.
        objective: Nodes that come first by distance: all ancestors (``closure``), direct parents
            (``parents``), or parents first and then the other ancestors (``both``).
        dim: Dimensions of the space, at least 2; 2 unless ``way`` is ``boxes``.
        bits: Bits of an angle of ``gaps``, 32 or 64.
        room: Part that is kept for later nodes, in [0, 1), at every node.
        radius: Radius within which ``boxes`` keep all nodes of a balanced tree, above 0; the
            default is within the reach of float32.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Sarkar (2011), doi:10.1007/978-3-642-25878-7_34, embeds trees in the plane by cones;
        Sala, De Sa, Gu and Ré (2018), arXiv:1804.03329, count the bits; Johnson and Shneiderman
        (1991), doi:10.1109/VISUAL.1991.175815, for treemaps. The gaps are ours.

    Example:
        >>> names = ("lion", "tiger", "cat", "dog", "mammal")
        >>> edges = torch.tensor([[0, 2], [1, 2], [2, 4], [3, 4]])
        >>> places = TreeLayout().place(Hierarchy(names, edges))
        >>> lion = places[torch.tensor([0])].cdist(places)[0]
        >>> [names[node] for node in lion.argsort()[:3]]
        ['lion', 'cat', 'mammal']
    """

    way: Literal["sectors", "gaps", "boxes"] = "gaps"
    objective: Literal["closure", "parents", "both"] = "both"
    dim: int = 2
    bits: Literal[32, 64] = 64
    room: float = 0.0
    radius: float = 15.5

    def __post_init__(self) -> None:
        check.one_of(("sectors", "gaps", "boxes"), way=self.way)
        check.one_of(("closure", "parents", "both"), objective=self.objective)
        check.at_least(2, dim=self.dim)
        if self.dim > 2 and self.way != "boxes":
            raise ValueError(
                f"{self.way} lie in the plane, not in {self.dim} dimensions: use boxes"
            )
        if self.bits not in (32, 64):
            raise ValueError(f"bits must be 32 or 64, got {self.bits}")
        check.rate(below_one=True, room=self.room)
        check.positive(radius=self.radius)

    def place(self, hierarchy: Hierarchy, batches: Int64[Tensor, " n"] | None = None) -> Places:
        """Places of all nodes, a row each.

        Nodes of a batch have the same places whatever comes in later batches: to add nodes to a
        hierarchy that is laid out, give its nodes batch 0 and the new ones batch 1.

        Args:
            hierarchy: Direct edges or a closure.
            batches: Batch of every node, at least 0 and never below that of its primary parent;
                ``None`` for one batch.

        Raises:
            ValueError: If the batches are no number a node, a node comes before its parent, there
                are later batches but no ``room``, or the coordinates cannot tell all nodes apart.
        """
        parents = hierarchy.primary_parents.cpu().numpy()
        arrivals = np.zeros_like(parents) if batches is None else batches.cpu().numpy()
        self._check(hierarchy, parents, arrivals)
        return self._place(Forest(parents, arrivals))

    def place_copies(self, hierarchy: Hierarchy) -> tuple[Places, Int64[Tensor, " rows"]]:
        """Places of all nodes with one place for every path to a root, and the node of each row.

        The distance between two nodes is the smallest between their places. With every parent a
        node is near all of its ancestors, which one place under a primary parent is not.

        Args:
            hierarchy: Direct edges or a closure.

        Raises:
            ValueError: If there are more than 64 places a node, or the coordinates cannot tell them
                apart.
        """
        parents, nodes = unrolled(hierarchy)
        places = self._place(Forest(parents, np.zeros_like(parents)))
        return places, torch.from_numpy(nodes)

    def _place(self, forest: Forest) -> Places:
        slope = SLOPES[self.objective]
        if self.way == "sectors":
            places = sectors(forest, slope=slope, room=self.room)
        elif self.way == "boxes":
            places = boxes(forest, dim=self.dim, slope=slope, room=self.room, radius=self.radius)
        else:
            places = gaps(forest, RULES[self.objective], bits=self.bits, room=self.room)
        return self._check_distinct(places)

    def _check(self, hierarchy: Hierarchy, parents: np.ndarray, batches: np.ndarray) -> None:
        if batches.shape != parents.shape or batches.min() < 0:
            raise ValueError(
                f"batches must be one number of at least 0 for each of {len(parents)} nodes, got "
                f"the shape {batches.shape}"
            )
        early = ((parents >= 0) & (batches < batches[parents])).nonzero()[0]
        if len(early):
            child, parent = (hierarchy.names[i] for i in (early[0], parents[early[0]]))
            raise ValueError(
                f"{child!r} is in an earlier batch than its parent {parent!r}: add a node after "
                "its parent, or lay the tree out anew"
            )
        if not self.room and batches.min() < batches.max():
            raise ValueError("later batches need room: set it above 0, such as 0.1")

    def _check_distinct(self, places: Places) -> Places:
        """The places, after a check that no two are the same."""
        columns = [
            column.numpy().T if column.ndim == 2 else column.numpy()[None]
            for column in places.tensors().values()
        ]
        keys = np.concatenate([key.view(f"i{key.itemsize}").astype(np.int64) for key in columns])
        order = np.lexsort(keys)
        ordered = keys[:, order]
        same = (ordered[:, 1:] == ordered[:, :-1]).all(0)
        if same.any():
            raise ValueError(
                f"{int(same.sum())} nodes of {len(order)} share a place, as coordinates have too "
                "few bits for this tree: use gaps with 64 bits, less room, or another layout"
            )
        return places
