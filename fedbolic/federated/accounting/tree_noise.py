"""Correlated noise for sums of all rounds so far, by a binary tree over the rounds."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Int64
from torch import Tensor

NodeNoise: TypeAlias = Callable[[int, int], Tensor]
"""Function from a node's level and its number in that level, from 0, to the node's own noise."""


def tree_height(num_leaves: int) -> int:
    """Largest number of nodes of complete subtrees that share one of the first leaves.

    Args:
        num_leaves: Number of leaves, at least 0.

    Example:
        >>> [tree_height(n) for n in (0, 1, 2, 3, 4)]
        [0, 1, 2, 2, 3]
    """
    return num_leaves.bit_length()


def add_leaf(
    nodes: dict[str, Tensor], leaf: int, noise: NodeNoise
) -> tuple[dict[str, Tensor], Int64[Tensor, " size"]]:
    r"""Noise of the complete subtrees after another leaf, and the growth of their sum.

    The rounds are leaves, and every node of the tree holds the sum of its leaves with noise of its
    own. The sum of the first t leaves is that of as many complete subtrees as t has binary digits
    1. The sum of a subtree of height l can be read from its root, or from the estimates of both
    halves; their best combination gives the root the weight of its variance,

    .. math:: V_l = \frac{1}{2 (1 - 2^{-l - 1})}, \quad
        e_l = V_l z_{\text{root}} + (1 - V_l) (e_{\text{left}} + e_{\text{right}})

    in units of the noise of one node. Estimates are rounded to integers. What is rounded, a
    multiple of :math:`z_{\text{root}} - e_{\text{left}} - e_{\text{right}}`, is known to whoever
    has the nodes' noisy integers, so the rounding is post-processing.

    Args:
        nodes: Noise of the estimates of the complete subtrees, by height as text; empty for a new
            tree.
        leaf: Number of the new leaf, from 0.
        noise: Noise of every node, as integers, independent of all other nodes.

    References:
        Kairouz et al. (2021), Practical and private (deep) learning without sampling or shuffling,
        App. D.1 and D.2, arXiv:2103.00039; Honaker (2015), Efficient use of differentially private
        binary trees.

    Example:
        >>> nodes, growth = add_leaf({}, 0, lambda level, place: torch.tensor([300]))
        >>> add_leaf(nodes, 1, lambda level, place: torch.tensor([0]))
        ({'1': tensor([100])}, tensor([-200]))
    """
    kept, level, estimate = dict(nodes), 0, noise(0, leaf)
    before = noise_of_sum(nodes, estimate)
    while str(level) in kept:
        halves = kept.pop(str(level)) + estimate
        level += 1
        weight = 1 / (2 * (1 - 2.0 ** (-level - 1)))
        gap = noise(level, leaf >> level) - halves
        estimate = halves + (weight * gap.double()).round().long()
    kept[str(level)] = estimate
    return kept, noise_of_sum(kept, estimate) - before


def noise_of_sum(nodes: dict[str, Tensor], like: Tensor) -> Int64[Tensor, " size"]:
    """Noise of the sum of all leaves so far.

    Args:
        nodes: Result of :func:`add_leaf`; empty before the first leaf.
        like: Tensor with the form of the noise.
    """
    return sum(nodes.values(), torch.zeros_like(like))
