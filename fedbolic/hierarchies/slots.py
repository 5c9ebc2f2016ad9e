r"""Sectors of the plane for a hierarchy of which everybody knows the upper part alone.

A sector of width :math:`w` about its node's angle holds the node, at the radius

.. math:: r = 2 \ln \frac{K}{4 \sin (w / 4)}, \qquad K = 10,

and all nodes below it, on both sides of a gap about the node. Far out, a node :math:`u` at an
angle :math:`\theta` from a node :math:`v` has the distance

.. math:: d(u, v) \approx r_u + 2 \ln (K / 4) + 2 \ln (\sin (\theta / 2) / \sin (w_v / 4)).

So the nodes in the sector of :math:`v`, and they alone, are nearer to it than
:math:`r_u + 2 \ln (K / 4)`. Since a gap is a third of the sector, all nodes below :math:`u` are
farther from :math:`u` than that. Seen from any node, its ancestors are then the nearest nodes.

For ancestors in their order (``BOTH``, with a K of 40), a node of depth :math:`h` has a sector
that is :math:`(4 / 5)^h` of its share, and a radius that is smaller by :math:`2 h \ln (5 / 4)`. The
gap is .8 of the sector, which reaches to .98 of it, so nodes below :math:`v` differ by less than
:math:`2 \ln (5 / 4)` in the last term: a parent is nearer than its own parent. What lies outside of
a share is as far as before.

Angles are integers in units of :math:`2 \pi / 2^{64}`, so all machines find the same.

References:
    Sarkar (2011), Low distortion Delaunay embedding of trees in hyperbolic plane, for sectors.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

TURN = 2**64
"""The full circle."""

REACH = (49, 50)
"""Fraction of half a sector where the shares of the children end."""

NARROWEST = 2**9
"""Least width of a sector, whose fractions are still exact to half a percent."""

Sector: TypeAlias = tuple[int, int]
"""Start and width, in units of a turn divided by 2 ** 64."""


@dataclass(frozen=True)
class SectorShape:
    """Shape of the sectors of a layout.

    Args:
        gap: Fraction of half a sector where the shares of the children begin.
        narrowing: Fraction of its share that the sector of a node has, a level of depth.
        scale: The number K in radii; the larger, the farther out the nodes are.
    """

    gap: tuple[int, int]
    narrowing: tuple[int, int]
    scale: float

    @property
    def bonus(self) -> float:
        """Decrease of the radius of a node, a level of depth."""
        part, whole = self.narrowing
        return 2 * math.log(whole / part)

    def narrowed(self, share: Sector, depth: int) -> Sector:
        """The sector of a node, in the middle of its share.

        Args:
            share: Share of the node.
            depth: Depth of the node, 0 for a root.
        """
        start, width = share
        part, whole = self.narrowing
        own = width * part**depth // whole**depth
        return start + (width - own) // 2, own


CLOSURE, BOTH = SectorShape((1, 3), (1, 1), 10.0), SectorShape((4, 5), (4, 5), 40.0)
"""Shapes by which ancestors are the nearest nodes, in any order and in theirs."""

Key = TypeVar("Key")


def divide(items: Sequence[tuple[Key, int]], sector: Sector) -> dict[Key, Sector]:
    """Consecutive parts of a sector in proportion to weights.

    Args:
        items: Names of the parts with weights of at least 1.
        sector: Sector to divide.

    Example:
        >>> divide([("a", 1), ("b", 3)], (100, 40))
        {'a': (100, 10), 'b': (110, 30)}
    """
    total, before, parts = sum(weight for _, weight in items), 0, {}
    for name, weight in items:
        parts[name] = part_of(sector, total, before, weight)
        before += weight
    return parts


def part_of(sector: Sector, total: int, before: int, own: int) -> Sector:
    """The part of a sector from ``before`` to ``before + own`` of ``total``.

    Args:
        sector: The sector.
        total: Weight of the whole sector, at least 1.
        before: Weight before the part.
        own: Weight of the part.
    """
    start, width = sector
    begin, end = (width * x // total for x in (before, before + own))
    return start + begin, end - begin


def divide_around(
    items: Sequence[tuple[Key, int]], sector: Sector, shape: SectorShape
) -> dict[Key, Sector]:
    """Parts of a sector on both sides of the node in its middle, with a gap about the node.

    The items are cut into two halves of weights as equal as their order allows.

    Args:
        items: As for :func:`divide`.
        sector: Sector to divide.
        shape: Shape of the sector.
    """
    if not items:
        return {}
    start, width = sector
    half, total, before = width // 2, sum(weight for _, weight in items), 0
    cuts = []
    for _, weight in items:
        before += weight
        cuts.append(abs(2 * before - total))
    cut = cuts.index(min(cuts)) + 1
    near, far = (half * part // whole for part, whole in (shape.gap, REACH))
    left = divide(items[:cut], (start + half - far, far - near))
    right = divide(items[cut:], (start + half + near, far - near)) if items[cut:] else {}
    return left | right


def place_below(
    children: Mapping[int, Sequence[int]],
    leaves: Mapping[int, int],
    depths: Mapping[int, int],
    sectors: Mapping[int, Sector],
    shape: SectorShape,
) -> dict[int, Sector]:
    """Sectors of some nodes and of all nodes below them, in proportion to leaves.

    Args:
        children: Children of every node.
        leaves: Number of leaves of every node below the given ones.
        depths: Depth of every node.
        sectors: Sectors of the given nodes.
        shape: Shape of the sectors.
    """
    found, waiting = dict(sectors), list(sectors)
    while waiting:
        node = waiting.pop()
        shares = divide_around([(c, leaves[c]) for c in children[node]], found[node], shape)
        found |= {child: shape.narrowed(share, depths[child]) for child, share in shares.items()}
        waiting += shares
    return found


def to_polar(
    sectors: Sequence[Sector], depths: Sequence[int], shape: SectorShape
) -> tuple[Int64[Tensor, " n"], Float64[Tensor, " n"]]:
    """Turns and radii of the nodes of some sectors, as ``PolarPlaces`` takes them.

    Args:
        sectors: The sectors.
        depths: Depths of the nodes.
        shape: Shape of the sectors.

    Raises:
        ValueError: If a sector is too narrow.
    """
    narrowest = min((width for _, width in sectors), default=NARROWEST)
    if narrowest < NARROWEST:
        raise ValueError(
            "the hierarchy is too deep for 64 bits of an angle: its narrowest sector has a width "
            f"of {narrowest} / 2 ** 64 of a turn, and {NARROWEST} is the minimum; leave levels out"
        )
    middles = [(start + width // 2 + TURN // 2) % TURN - TURN // 2 for start, width in sectors]
    quarters = [math.pi / 2 * width / TURN for _, width in sectors]
    radii = [
        2 * math.log(shape.scale / (4 * math.sin(quarter))) - shape.bonus * depth
        for quarter, depth in zip(quarters, depths, strict=True)
    ]
    return (
        torch.tensor(middles, dtype=torch.int64),
        torch.tensor(radii, dtype=torch.float64),
    )
