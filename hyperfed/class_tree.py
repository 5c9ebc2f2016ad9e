"""Class prototypes at the leaves of a tree of the classes, in the Poincare ball."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float64
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.data.hierarchies.hierarchy import Hierarchy
from fedbolic.data.hierarchies.hierarchy_files import HierarchySet
from fedbolic.manifolds import Places, Poincare
from hyperfed.prototypes import check_slope


class Arrangement(ABC):
    """Rule that places one prototype for each class in the ball."""

    @abstractmethod
    def prototypes(
        self, num_classes: int, dim: int, slope: float
    ) -> Float64[Tensor, "classes dim"]:
        """Prototypes, one a row, none of them at the origin.

        Args:
            num_classes: Number of classes, at least 2.
            dim: Dimension of the ball, at least 1.
            slope: Largest distance of a prototype from the origin over the ball's radius.

        Raises:
            ValueError: If there are no such prototypes.
        """


@runtime_checkable
class Layout(Protocol):
    """Places for the nodes of a hierarchy, as ``fedbolic.hierarchies.TreeLayout`` gives them."""

    def place(self, hierarchy: Hierarchy) -> Places:
        """Places of all nodes, a row each."""
        ...


@dataclass(frozen=True)
class ClassTree(Arrangement):
    """Prototypes at the leaves of a tree of the classes, so that siblings are neighbours.

    Class ``i`` is leaf ``i`` in the order of the nodes: that of the labels in
    :class:`~fedbolic.data.CIFAR100Superclasses` and :func:`~fedbolic.data.taxonomy`, and that of
    the names in a file, as the folders of an ``ImageFolder`` are numbered. The centroid of the
    leaves is moved to the origin, and their tangents there are scaled until the longest has the
    radius of the slope; at another scale distances are no longer quite those of the layout.

    Args:
        tree: The hierarchy of the classes, such as ``HierarchyFile`` for a file of parents.
        layout: Places of its nodes in as many dimensions as features have: ``Cones``, or
            ``TreeLayout`` of :mod:`fedbolic.hierarchies`.

    Raises:
        ValueError: When placed, if the tree has another number of leaves than there are classes,
            or the layout has another dimension than the features.

    Example:
        >>> from fedbolic.data import BalancedTree
        >>> from fedbolic.hierarchies import TreeLayout
        >>> tree = ClassTree(BalancedTree(branching=2, depth=2), TreeLayout(way="sectors"))
        >>> points = tree.prototypes(4, 2, 0.9)
        >>> Poincare().cdist(points, points)[0].argsort()[:2]  # its sibling is next
        tensor([0, 1])
    """

    tree: HierarchySet
    layout: Layout

    @override
    def prototypes(
        self, num_classes: int, dim: int, slope: float
    ) -> Float64[Tensor, "classes dim"]:
        check_slope(slope)
        check.at_least(2, num_classes=num_classes)
        tree, ball = self.tree.read(None, download=False), Poincare()
        num_children = torch.bincount(tree.primary_parents + 1, minlength=len(tree) + 1)[1:]
        leaves = (num_children == 0).nonzero().squeeze(-1)
        if len(leaves) != num_classes:
            raise ValueError(
                f"the tree of the classes has {len(leaves)} leaves, but there are {num_classes} "
                "classes: every class must be a leaf"
            )
        places = self.layout.place(tree)[leaves]
        if places.dim != dim:
            raise ValueError(
                f"the layout has {places.dim} dimensions, but features have {dim}: they must be "
                "the same"
            )
        points = places.to_poincare()
        tangents = ball.logmap0(ball.mobius_add(-ball.centroid(points), points))
        return ball.expmap0(tangents * (math.atanh(slope) / tangents.norm(dim=1).max()))
