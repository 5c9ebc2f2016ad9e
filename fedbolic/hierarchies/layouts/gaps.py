"""Layout by gaps: every node is near its descendants and far from all other nodes."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedbolic.hierarchies.layouts.forest import Forest, run_lengths
from fedbolic.manifolds import PolarPlaces

SCALE = 3.0
"""K of the radius: the farther out all nodes are, the less their heights matter for distances."""

ARC_BITS = 2
"""Bits of a turn left out: on a quarter of the circle chords are nearly as long as angles."""

KEPT_ATOMS = 512
"""Parts of the gap of a leaf where room is kept, so that nodes that come later find some."""

LOWEST = -20.0
"""Strength at which all gaps vanish next to leaves; any forest that memory holds then fits."""


@dataclass(frozen=True)
class GapRule:
    r"""Sizes of the gaps around the descendants of a node at depth ``k``.

    Descendants that are no leaves of the node's own begin at ``spread`` times their extent from it,
    and all other nodes stand beyond ``margin`` :math:`(1 + 1 / \mathrm{spread})^{k \sigma}` times
    the distance of the farthest descendant.

    Args:
        spread: Distance from the node to inner children by their extent, at least 0.
        margin: Gap to all other nodes by the distance of the farthest descendant, at the roots.
        order: sigma in [0, 1]; with 1 every ancestor is nearer than those above it.
        bonus: Logarithm by which a node's size exceeds its gap, per level, so that the nodes above
            it are farther from its children; ancestors then no longer precede all other nodes.
    """

    spread: float
    margin: float
    order: float = 0.0
    bonus: float = 0.0

    def at(self, strength: float) -> "GapRule":
        """The rule with ``order`` for a strength from 0 to 1, and with smaller gaps below 0."""
        factor = 2 ** min(strength, 0.0)
        order = self.order * max(strength, 0.0)
        return replace(self, spread=self.spread * factor, margin=self.margin * factor, order=order)

    def margins(self, depths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Margin by depth."""
        growth = self.order * math.log1p(1 / self.spread) if self.order else 0.0
        return self.margin * np.exp(np.minimum(growth * depths, 600.0))


def gaps(forest: Forest, rule: GapRule, *, bits: int, room: float) -> PolarPlaces:
    r"""Nodes next to their descendants on the circle.

    .. math:: r = 2 \operatorname{asinh} \frac{K}{2 s}

    where :math:`s` is the angle to the nearest node that is no descendant. Far out, the distance
    from a node u to v is that of u from the origin plus a constant and
    :math:`2 \log (|\theta_u - \theta_v| / s_v)`, so v is nearer than any node that is no ancestor
    if u is a descendant. The strongest form of ``rule`` that the bits of a turn can hold is taken.

    Args:
        forest: The forest.
        rule: Sizes of gaps.
        bits: Bits of a turn, 32 or 64.
        room: Part of the circle, and of the places of leaves, that is kept for later nodes.
    """
    n = len(forest.parents)
    atoms = KEPT_ATOMS if room else 1
    rule = _strongest(forest, rule, 2.0 ** (bits - ARC_BITS) * (1 - room), atoms, room)
    # the free zone of every node, and last that of the whole circle: start, length, part to use
    starts, lengths, used = np.zeros(n + 1, dtype=np.uint64), np.zeros(n + 1), np.full(n + 1, 0.5)
    lengths[-1], used[-1] = 2.0 ** (64 - ARC_BITS), 1 - room
    turns, sizes, units = np.zeros(n, dtype=np.uint64), np.zeros(n), np.zeros(n)
    for batch in np.unique(forest.batches):
        levels = [level[forest.batches[level] == batch] for level in forest.levels]
        extents = _Extents(forest, levels, rule, atoms, room, 2.0**64)
        if not math.isfinite(extents.totals[-1]):
            raise ValueError(
                "an angle has too few bits for the nodes that come later: lay the tree out anew"
            )
        for level in levels:
            hosted = forest.hosted[level]
            first, own, over = level[hosted], level[~hosted], forest.parents[level[~hosted]]
            host = forest.parents[first]
            unit = used[host] * lengths[host] / extents.totals[host]
            units[first] = np.where(unit < 1, unit, np.floor(unit))
            units[own] = units[over]
            turns[first] = starts[host] + _scaled(extents.offsets[first], units[first])
            turns[own] = turns[over] + _scaled(extents.offsets[own], units[own])
        nodes = np.concatenate(levels)
        hosts = np.unique(forest.parents[nodes[forest.hosted[nodes]]])
        if room:
            starts[hosts] += (used[hosts] * lengths[hosts]).astype(np.uint64)
        lengths[hosts], used[hosts] = lengths[hosts] * (1 - used[hosts]), 0.5
        starts[nodes] = turns[nodes] + _scaled(extents.leaf_zones[nodes], units[nodes])
        lengths[nodes] = extents.kept[nodes] * units[nodes]
        sizes[nodes] = extents.gaps[nodes] * units[nodes]
    sizes *= np.exp(rule.bonus * (forest.depths - ~forest.inner - forest.depths.max()))
    radii = 2 * np.arcsinh(SCALE / (4 * math.pi) / (sizes / 2.0**64))
    return PolarPlaces(torch.from_numpy(_as_bits(turns, bits)), torch.from_numpy(radii))


def _as_bits(turns: NDArray[np.uint64], bits: int) -> NDArray[np.int64] | NDArray[np.int32]:
    """Turns, rounded to 32 bits or not, with the signed dtype that torch has operators for."""
    if bits == 64:
        return turns.view(np.int64)
    return ((turns + np.uint64(2**31)) >> np.uint64(32)).astype(np.uint32).view(np.int32)


def _strongest(forest: Forest, rule: GapRule, limit: float, atoms: int, room: float) -> GapRule:
    """The strongest form of a rule with which the first batch has at most ``limit`` atoms."""
    first = [level[forest.batches[level] == forest.batches.min()] for level in forest.levels]

    def fits(strength: float) -> bool:
        extents = _Extents(forest, first, rule.at(strength), atoms, room, limit)
        return bool(extents.totals[-1] < limit)

    if fits(1.0):
        return rule.at(1.0)
    low, high = (0.0, 1.0) if fits(0.0) else (LOWEST, 0.0)
    for _ in range(9):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return rule.at(low)


def _scaled(offsets: NDArray[np.uint64], units: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Offsets in atoms as turns; exact for units that are whole numbers."""
    whole = offsets * units.astype(np.uint64)
    return np.where(units < 1, (offsets * units).astype(np.uint64), whole)


class _Extents:
    """Lengths of the nodes of one batch from the leaves up, in atoms: whole parts of a leaf's gap.

    ``offsets`` are distances from the parent, or from the start of the free zone of a node of an
    earlier batch; ``totals`` the lengths needed in such zones; ``kept`` those of free zones, which
    begin where the ``leaf_zones`` of children end. Lengths are exact in ``offsets``, since
    rounding to a float would let small groups far from their parent coincide.
    """

    def __init__(
        self,
        forest: Forest,
        levels: list[NDArray],
        rule: GapRule,
        atoms: int,
        room: float,
        limit: float,
    ) -> None:
        n, parents, self.atoms = len(forest.parents), forest.parents, atoms
        margins = rule.margins(forest.depths)
        self.offsets, self.leaf_zones = np.zeros((2, n), dtype=np.uint64)
        self.gaps, self.kept, self.totals = np.full(n, float(atoms)), np.zeros(n), np.zeros(n + 1)
        self.inner_starts, self.inner_extents = np.zeros((2, n))
        extents = np.zeros(n)
        for level in reversed(levels):
            inner, leaves = level[forest.inner[level]], level[~forest.inner[level]]
            if room:
                self.kept[leaves] = np.ceil(atoms / 2 / np.maximum(margins[leaves], 1.0))
                extents[leaves] = self.kept[leaves]
                self.kept[inner] = np.ceil(np.maximum(room * self.leaf_zones[inner], atoms))
                self.leaf_zones[inner] += atoms  # later nodes stand a gap beyond the last leaf
            near = self.leaf_zones[inner] + self.kept[inner]
            begin = np.maximum(
                rule.spread * self.inner_extents[inner], self.inner_starts[inner] + near
            )
            self.inner_starts[inner] = np.where(self.inner_extents[inner] > 0, np.ceil(begin), near)
            extents[inner] = self.inner_starts[inner] + self.inner_extents[inner]
            self.gaps[inner] = np.maximum(np.ceil(extents[inner] * margins[inner]), atoms)
            if float((self.gaps[inner] + extents[inner]).sum()) >= limit:
                self.totals[:] = math.inf
                return
            self._leaves(parents, leaves[~forest.hosted[leaves]])
            self._rows(parents, level[forest.hosted[level]], extents, hosted=True)
            self._rows(parents, inner[~forest.hosted[inner]], extents, hosted=False)
        own = np.concatenate(levels)
        own = own[~forest.hosted[own] & forest.inner[own]]
        self.offsets[own] += self.inner_starts[parents[own]].astype(np.uint64)

    def _leaves(self, parents: NDArray, leaves: NDArray) -> None:
        """Leaves next to their parent, one gap apart."""
        if len(leaves):
            leaves = leaves[parents[leaves].argsort(kind="stable")]
            first = np.r_[True, parents[leaves][1:] != parents[leaves][:-1]]
            counts = run_lengths(first)
            before = np.repeat(first.nonzero()[0], counts)
            pitch = (self.atoms + self.kept[leaves]).astype(np.uint64)  # equal at one parent
            self.offsets[leaves] = (np.arange(len(leaves)) - before + 1).astype(np.uint64) * pitch
            self.leaf_zones[parents[leaves[first]]] = counts.astype(np.uint64) * pitch[first]

    def _rows(self, parents: NDArray, nodes: NDArray, extents: NDArray, *, hosted: bool) -> None:
        """Nodes of one parent in a row, each after its gap, the smallest gap first."""
        if not len(nodes):
            return
        nodes = nodes[np.lexsort((self.gaps[nodes], parents[nodes]))]
        over, gaps = parents[nodes], self.gaps[nodes].astype(np.uint64)
        first = np.r_[True, over[1:] != over[:-1]]
        begin, counts = first.nonzero()[0], run_lengths(first)
        last = np.r_[begin[1:] - 1, len(nodes) - 1]
        lengths = gaps + extents[nodes].astype(np.uint64)
        ends = lengths.cumsum()
        base = (ends - lengths)[begin] + (0 if hosted else gaps[begin])
        self.offsets[nodes] = ends - lengths + gaps - np.repeat(base, counts)
        total = (ends[last] - base).astype(float)
        if hosted:
            self.totals[over[begin]] += total + self.gaps[nodes[last]]
        else:
            self.inner_starts[over[begin]] = self.gaps[nodes[begin]]
            self.inner_extents[over[begin]] = total
