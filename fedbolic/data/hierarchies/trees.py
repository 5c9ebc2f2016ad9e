"""Hierarchies in which every node has one parent at most: generated trees, taxonomies of labels."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from fedbolic.core.check import at_least
from fedbolic.core.rng import Rng
from fedbolic.data.hierarchies.hierarchy import Hierarchy


def balanced_tree(branching: int, depth: int) -> Hierarchy:
    """Closure of the tree in which every node above the leaves has ``branching`` children.

    Nodes are numbered level by level from the root, 0, and named by their numbers.

    Args:
        branching: Number of children of a node that is no leaf, at least 1.
        depth: Depth of the leaves, at least 0.

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> binary = balanced_tree(2, 8)
        >>> len(binary), binary.num_pairs, int(binary.depths.max())
        (511, 3586, 8)
    """
    at_least(1, branching=branching)
    at_least(0, depth=depth)
    num_nodes = sum(branching**level for level in range(depth + 1))
    return _tree((np.arange(1, num_nodes) - 1) // branching)


def random_tree(num_nodes: int, rng: Rng) -> Hierarchy:
    """Closure of a uniform recursive tree.

    The parent of node ``i > 0`` is uniform among the nodes ``0 .. i - 1``; nodes are named by their
    numbers. Depths grow as the logarithm of ``num_nodes``.

    Args:
        num_nodes: Number of nodes, at least 1.
        rng: Random stream.

    Raises:
        ValueError: If ``num_nodes`` is out of range.

    References:
        Smythe and Mahmoud (1995), A survey of recursive trees.

    Example:
        >>> tree = random_tree(50, Rng(0))
        >>> len(tree), bool((tree.pairs[:, 0] > tree.pairs[:, 1]).all())
        (50, True)
    """
    at_least(1, num_nodes=num_nodes)
    return _tree(rng.numpy().integers(np.arange(1, num_nodes)))


def taxonomy(parents: Mapping[str, str]) -> Hierarchy:
    """Closure of a taxonomy of labels, given by the parent of every label that has one.

    The labels of ``parents`` come first, in their order, then the labels that are parents only. So
    node ``i`` is class ``i`` of a data set if ``parents`` begins with its classes.

    Args:
        parents: Parent of every label, such as the superclass of every class. A parent may have a
            parent itself.

    Raises:
        ValueError: If a label is its own parent, or labels form a cycle.

    Example:
        >>> labels = taxonomy({"maple": "tree", "oak": "tree", "trout": "fish", "tree": "plant"})
        >>> labels.names
        ('maple', 'oak', 'trout', 'tree', 'fish', 'plant')
        >>> [labels.names[i] for i in labels.ancestors[labels.offsets[1] : labels.offsets[2]]]
        ['tree', 'plant']
    """
    names = tuple(dict.fromkeys((*parents, *parents.values())))
    number = {name: i for i, name in enumerate(names)}
    edges = [(number[label], number[parent]) for label, parent in parents.items()]
    return Hierarchy(names, torch.tensor(edges, dtype=torch.int64).reshape(-1, 2)).closure()


def _tree(parents: NDArray) -> Hierarchy:
    """Closure of the tree with the given parents of the nodes 1, 2, ...; node 0 is the root."""
    edges = np.stack((np.arange(1, len(parents) + 1), parents), axis=1)
    names = tuple(map(str, range(len(parents) + 1)))
    return Hierarchy(names, torch.from_numpy(edges)).closure()
