"""Layouts by cells: every node owns a cell, a sector or a box, which its children divide."""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from fedbolic.hierarchies.layouts.forest import Forest, run_lengths
from fedbolic.manifolds import HalfSpacePlaces, PolarPlaces

SECTOR_SCALE = 10.0
"""K of sectors, in radians; ancestors beyond it are told apart less well."""

BOX_SCALE = 1.5
"""K of boxes, in sides of the whole cube; larger ones need more radius."""

ALONE = {"sectors": 0.7, "boxes": 0.1}
"""Logarithm by which an only child counts as smaller than its parent, whose cell it has."""

EVENNESS = 0.6
"""Power of the leaves by which boxes are divided: small subtrees get no slivers."""

LEAF_MARGIN = math.log(2)
"""Logarithm by which the box of a leaf counts as smaller, since leaves have no margin."""

MOST_MARGIN = math.log(2)
"""Logarithm by which the box of a node with several siblings is shrunk at most."""


def sectors(forest: Forest, *, slope: float, room: float) -> PolarPlaces:
    r"""Nodes in the middle of sectors of the circle, divided by leaves.

    .. math:: r = \alpha \operatorname{asinh} \frac{K}{2 w}

    for a sector of the width :math:`w`.

    Args:
        forest: The forest.
        slope: alpha, the radius by the logarithm of the width.
        room: Part of every sector that is kept for later children.
    """
    n = len(forest.parents)
    turns = np.zeros(n, dtype=np.int64)
    sizes, alone = np.zeros(n), np.zeros(n)  # sizes by the logarithm of parts of the circle
    for depth, level in enumerate(forest.levels):
        groups = _Groups(forest, level, forest.leaves, room)
        nodes, over = groups.nodes, forest.parents[groups.nodes]
        middle = groups.begin + groups.share * (groups.before + groups.part / 2) - 0.5
        sizes[nodes] = np.log(groups.share * groups.part)
        if depth:
            middle *= np.exp(sizes[over])
            turns[nodes] = turns[over]
            sizes[nodes] += sizes[over]
            alone[nodes] = alone[over] + groups.alone
        turns[nodes] += np.rint(middle * 2.0**64).astype(np.int64)
    log = math.log(SECTOR_SCALE / (2 * math.pi)) - sizes + ALONE["sectors"] * alone
    # asinh(e^x / 2) is x far out, where the exponential overflows
    radii = slope * (np.arcsinh(np.exp(np.minimum(log, 300)) / 2) + np.maximum(log - 300, 0))
    return PolarPlaces(torch.from_numpy(turns), torch.from_numpy(radii))


def boxes(forest: Forest, *, dim: int, slope: float, room: float, radius: float) -> HalfSpacePlaces:
    r"""Nodes above the middle of boxes at the boundary of the half-space, divided by leaves.

    .. math:: y = (s / K)^\alpha

    where :math:`s` is the geometric mean of the sides of a node's box. A box is cut across its
    longest side into two of about equal weight, as in a treemap, until every child has one; the
    weight of a child is a power of its leaves. Boxes of nodes with children and siblings are then
    shrunk by a margin, the largest with which all nodes of the first batch lie within ``radius``.
    The box of the whole forest is a cube within the unit sphere about the origin.

    Args:
        forest: The forest.
        dim: Dimensions of the space, at least 2.
        slope: alpha, the radius by the logarithm of the size.
        room: Part of every box that is kept for later children.
        radius: Radius of all nodes, unless there are too many for it without a margin.
    """
    n, flat = len(forest.parents), dim - 1
    # whole numbers, whose sums are exact: later nodes of a level then move no earlier ones
    weights = np.rint(forest.leaves**EVENNESS * 2.0**16)
    middles, sides = np.zeros((n, flat)), np.zeros((n, flat))  # sides by their logarithms
    sizes, alone, margins = np.zeros(n), np.zeros(n), np.zeros(n)
    levels = [_Groups(forest, level, weights, room) for level in forest.levels]
    for depth, groups in enumerate(levels):
        nodes, over = groups.nodes, forest.parents[groups.nodes]
        sizes[nodes] = np.log(groups.share * groups.part) / flat
        margins[nodes] = (1 - groups.alone) * forest.inner[nodes]
        if depth:
            sizes[nodes] += sizes[over]
            alone[nodes] = alone[over] + groups.alone
            margins[nodes] += margins[over]
    unit = math.log(2 / math.sqrt(flat))
    sizes -= ALONE["boxes"] * alone + LEAF_MARGIN * ~forest.inner + math.log(BOX_SCALE)
    # a point of height y above the unit ball lies within log(2 / y) of the origin
    first = (forest.batches == forest.batches.min()) & (margins > 0)
    spare = (sizes + (radius - math.log(2) + unit) / slope)[first] / margins[first]
    margin = float(np.clip(spare.min(initial=MOST_MARGIN), 0.0, MOST_MARGIN))
    for depth, groups in enumerate(levels):
        heads = groups.nodes[groups.first]
        over = forest.parents[heads]
        outer = (middles[over], sides[over]) if depth else (middles[heads], sides[heads])
        inside = _slice(*outer, groups.begin[groups.first], groups.share[groups.first])
        middles[groups.nodes], sides[groups.nodes] = _divided(*inside, groups)
        shrunk = (1 - groups.alone) * forest.inner[groups.nodes]
        sides[groups.nodes] -= margin * shrunk[:, None]
    log_heights = torch.from_numpy(slope * (sizes - margin * margins) + unit)
    return HalfSpacePlaces(torch.from_numpy(middles * math.exp(unit)), log_heights)


class _Groups:
    """Nodes of a level by parent and batch: children that divide a part of one cell.

    The part begins at ``begin`` and has the length ``share``; in it a node has the length ``part``
    after the length ``before``.
    """

    def __init__(self, forest: Forest, level: NDArray, weights: NDArray, room: float) -> None:
        parents, batches = forest.parents[level], forest.batches[level]
        order = np.lexsort((batches, parents))
        parents, batches = parents[order], batches[order]
        is_first = np.r_[True, (parents[1:] != parents[:-1]) | (batches[1:] != batches[:-1])]
        self.nodes, self.first, self.sizes = (
            level[order],
            is_first.nonzero()[0],
            run_lengths(is_first),
        )
        ranks = forest.ranks[self.nodes]
        self.begin, self.share = 1 - room**ranks, (1 - room) * room**ranks
        own = weights[self.nodes]
        self.summed = np.r_[0.0, own.cumsum()]
        totals = np.repeat(np.add.reduceat(own, self.first), self.sizes)
        self.part = own / totals
        self.before = (self.summed[:-1] - np.repeat(self.summed[self.first], self.sizes)) / totals
        self.alone = np.repeat(self.sizes == 1, self.sizes).astype(float)


def _slice(
    middle: NDArray, side: NDArray, begin: NDArray, share: NDArray
) -> tuple[NDArray, NDArray]:
    """The parts of boxes from ``begin`` on along their longest sides, of the length ``share``."""
    rows, axis = np.arange(len(side)), side.argmax(1)
    middle, side = middle.copy(), side.copy()
    middle[rows, axis] += (begin + share / 2 - 0.5) * np.exp(side[rows, axis])
    side[rows, axis] += np.log(share)
    return middle, side


def _divided(middle: NDArray, side: NDArray, groups: _Groups) -> tuple[NDArray, NDArray]:
    """A box for every node of the groups, by halving the boxes of all groups at once."""
    start, size, summed = groups.first, groups.sizes, groups.summed
    while (wide := size > 1).any():
        end = start + size
        half = (summed[start] + summed[end]) / 2
        cut = np.searchsorted(summed, half)
        cut -= half - summed[cut - 1] < summed[cut] - half  # the nearer of both
        cut = np.where(wide, np.clip(cut, start + 1, end - 1), end)
        part = (summed[cut] - summed[start]) / (summed[end] - summed[start])
        left = _slice(middle, side, np.zeros_like(part), part)
        right = _slice(middle[wide], side[wide], part[wide], 1 - part[wide])
        middle, side = (np.concatenate(both) for both in zip(left, right, strict=True))
        size = np.r_[cut - start, (end - cut)[wide]]
        start = np.r_[start, cut[wide]]
    order = start.argsort()
    return middle[order], side[order]
