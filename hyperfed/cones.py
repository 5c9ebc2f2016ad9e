"""Layout of a tree in the ball, with the neighbours of every node as far apart as possible."""

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import normalize

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.data.hierarchies.hierarchy import Hierarchy
from fedbolic.manifolds import ManifoldPlaces, Poincare
from hyperfed.prototypes import tammes, turned


@dataclass(frozen=True)
class Cones:
    r"""Nodes at one distance from their parents, in the directions of :func:`tammes` around them.

    The root, or the common parent of several roots, is the origin. An edge k levels below it has
    the length :math:`\ell g^k`. From a node, its children and its parent lie as far apart as
    possible, and are turned at random about the parent. A node with several parents hangs from its
    primary parent. Children of the origin alone are the prototypes of the paper.

    Unlike the boxes of ``TreeLayout``, whose leaves lie along a few axes, it uses all dimensions.

    Args:
        dim: Dimensions of the ball, at least 1; a line has room for two neighbours.
        length: Length :math:`\ell` of the first edges, above 0.
        growth: Growth g of the edges with every level, above 0.

    Raises:
        ValueError: If a value is out of range; when a tree is placed, if neighbours do not fit.

    References:
        Sarkar (2011), doi:10.1007/978-3-642-25878-7_34, in the plane; Sala, De Sa, Gu and Ré
        (2018), arXiv:1804.03329, and van Spengler and Mettes (2025), arXiv:2502.17130, in more
        dimensions.

    Example:
        >>> from fedbolic.data import balanced_tree
        >>> places = Cones(3, length=0.5, growth=2.0).place(balanced_tree(2, 2))
        >>> places.dist(places[torch.tensor([1, 0, 0, 1, 1, 2, 2])])  # from the parents
        tensor([0.5000, 0.5000, 0.5000, 1.0000, 1.0000, 1.0000, 1.0000],
               dtype=torch.float64)
    """

    dim: int
    length: float = 0.9
    growth: float = 2.4

    def __post_init__(self) -> None:
        check.at_least(1, dim=self.dim)
        check.positive(length=self.length, growth=self.growth)

    def place(self, hierarchy: Hierarchy) -> ManifoldPlaces:
        """Places of all nodes, a row each.

        Args:
            hierarchy: Direct edges or a closure.

        Raises:
            ValueError: If neighbours do not fit into the dimensions.
        """
        above, ball = hierarchy.primary_parents, Poincare()
        roots, inner = (above < 0).nonzero().squeeze(-1), above[above >= 0].unique().tolist()
        inner.sort(key=lambda node: int(hierarchy.depths[node]))
        families = [(node, (above == node).nonzero().squeeze(-1)) for node in inner]
        several = len(roots) > 1  # the origin, the last row, is then their parent
        families = [(-1, roots)] * several + families
        points = torch.zeros(len(hierarchy) + 1, self.dim, dtype=torch.float64)
        known = {}
        for i, (node, below) in enumerate(families):
            here, count = points[node], len(below) + (i > 0)
            if count not in known:
                known[count] = tammes(max(count, 2), self.dim)
            around = known[count]
            if i:
                around = turned(around, Rng(0).at("node", node).generator())
                there = normalize(ball.mobius_add(-here, points[above[node]]), dim=0)
                mirror = normalize(around[0] - there, dim=0)  # takes the first to the parent
                around = around[1:] - 2 * (around[1:] @ mirror)[:, None] * mirror
            level = 0 if node < 0 else int(hierarchy.depths[node]) + several
            reach = math.tanh(self.length * self.growth**level / 2)
            points[below] = ball.mobius_add(here, reach * around[: len(below)])
        return ManifoldPlaces(ball, points[:-1])
