"""Slots of the clients at the common nodes of a hierarchy, and the nodes that a client puts there.

A *cell* is a common node and a client. The cells of a node lie side by side, next to the sectors of
its common children. Nodes without a common ancestor have a cell, too: that of ``ROOT``.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from fedbolic.core.log import logger
from fedbolic.data.contract.client import Split
from fedbolic.data.hierarchies.hierarchy_split import PRIVATE, ROOT, HierarchySplit
from fedbolic.hierarchies.slots import (
    CLOSURE,
    TURN,
    Sector,
    SectorShape,
    divide,
    divide_around,
    part_of,
    place_below,
    to_polar,
)


def find_no_common(split: Split) -> str | None:
    """Fault of pairs that have no common nodes for slots; ``None`` if they have some.

    Args:
        split: Pairs of the client.
    """
    common = split.common if isinstance(split, HierarchySplit) else None
    if common is not None and bool((common != PRIVATE).any()):
        return None
    return (
        "slots need nodes that all clients know: give HolderFiles a common file, or use the "
        "partition CommonLevels or SubtreesAndAuthority"
    )


@dataclass(frozen=True, eq=False)
class SlotWeights:
    """Shares of one client in the cells of every common node.

    Args:
        total: Weight of all cells of every common node in ascending order, and of ``ROOT``; at
            least 1.
        before: Weight of the cells of earlier clients.
        own: Weight of the client's cell, at least 1.
    """

    total: Int64[Tensor, " cells"]
    before: Int64[Tensor, " cells"]
    own: Int64[Tensor, " cells"]

    @classmethod
    def equal(cls, num_cells: int, client_id: int, num_clients: int) -> "SlotWeights":
        """Equal slots, which follow from public numbers.

        Args:
            num_cells: Number of common nodes, and one.
            client_id: Id of the client.
            num_clients: Number of clients.
        """
        ones = torch.ones(num_cells, dtype=torch.int64)
        return cls(num_clients * ones, client_id * ones, ones)


@dataclass(frozen=True, eq=False)
class ClientNodes:
    """The nodes of a client in the tree of primary parents: the common ones, and its own.

    Args:
        common: Parent of every common node.
        private: Parent of every node of the client alone: a private or a common node, or ``ROOT``.
        shape: Shape of the sectors.
    """

    common: dict[int, int]
    private: dict[int, int]
    shape: SectorShape = CLOSURE

    @classmethod
    def of(cls, split: HierarchySplit, shape: SectorShape = CLOSURE) -> "ClientNodes":
        """The nodes of a client.

        Args:
            split: Pairs of the client.
            shape: Shape of the sectors.

        Raises:
            ValueError: If no node is common.
        """
        if (fault := find_no_common(split)) is not None or split.common is None:
            raise ValueError(fault)
        common = dict(enumerate(split.common.tolist()))
        common = {node: parent for node, parent in common.items() if parent != PRIVATE}
        below, above = split.common[split.hierarchy.pairs].T
        if odd := int(((below != PRIVATE) & (above == PRIVATE)).sum()):
            logger.warning(
                "%d pairs have a common node below one of the client's own: a layout by slots does "
                "not show them",
                odd,
            )
        parents = split.hierarchy.primary_parents.tolist()
        own = split.hierarchy.pairs.unique().tolist()
        private = {node: parents[node] for node in own if node not in common}
        return cls(common, private, shape)

    @functools.cached_property
    def cells(self) -> list[int]:
        """The common nodes in ascending order, and ``ROOT``."""
        return [*sorted(self.common), ROOT]

    @functools.cached_property
    def depths(self) -> dict[int, int]:
        """Depth of every node by its parents, 0 for roots."""
        parents, depths = self.common | self.private, {ROOT: -1}
        for node in parents:
            above = [node]
            while above[-1] not in depths:
                above.append(parents[above[-1]])
            for lower, upper in zip(above[-2::-1], above[:0:-1], strict=True):
                depths[lower] = depths[upper] + 1
        return depths

    @functools.cached_property
    def children(self) -> dict[int, list[int]]:
        """The private children of every cell and of every private node, ascending."""
        children: dict[int, list[int]] = {node: [] for node in (*self.cells, *self.private)}
        for node in sorted(self.private):
            children[self.private[node]].append(node)
        return children

    @functools.cached_property
    def leaves(self) -> dict[int, int]:
        """Number of leaves below every private node, itself included, and in every cell."""
        walk, leaves = list(self.cells), dict[int, int]()
        for node in walk:  # grows while it is read: parents come before their children
            walk += self.children[node]
        for node in reversed(walk):
            below = sum(leaves[child] for child in self.children[node])
            leaves[node] = below if node in self.common or node == ROOT else max(1, below)
        return leaves

    def count_leaves(self) -> Int64[Tensor, " cells"]:
        """Number of the client's leaves in each of its cells."""
        return torch.tensor([self.leaves[cell] for cell in self.cells])

    def common_sectors(self, total: Sequence[int]) -> tuple[dict[int, Sector], dict[int, Sector]]:
        """Sectors of the common nodes, and of the cells of each of them together.

        Args:
            total: Weight of the cells of each common node, and of ``ROOT``.
        """
        children: dict[int, list[int]] = {cell: [] for cell in self.cells}
        for node in self.cells[:-1]:
            children[self.common[node]].append(node)
        walk = [ROOT]
        for node in walk:
            walk += children[node]
        weight, own = dict[int, int](), dict(zip(self.cells, total, strict=True))
        for node in reversed(walk):
            weight[node] = own[node] + sum(weight[child] for child in children[node])
        sectors: dict[int, Sector] = {ROOT: (0, TURN)}
        together: dict[int, Sector] = {}
        for node in walk:
            items = [(PRIVATE, own[node]), *((child, weight[child]) for child in children[node])]
            whole = sectors[node]
            shares = divide(items, whole) if node == ROOT else self._around(items, whole)
            together[node] = shares.pop(PRIVATE)
            sectors |= self._narrowed(shares)
        del sectors[ROOT]
        return sectors, together

    def place(
        self, weights: SlotWeights
    ) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"], Float64[Tensor, " n"]]:
        """Numbers, turns and radii of the common nodes and of the client's own.

        Args:
            weights: Shares of the client in all cells.

        Raises:
            ValueError: If the hierarchy is too deep.
        """
        total, before, own = (x.tolist() for x in (weights.total, weights.before, weights.own))
        sectors, together = self.common_sectors(total)
        heads: dict[int, Sector] = {}
        for i, cell in enumerate(self.cells):
            slot = part_of(together[cell], total[i], before[i], own[i])
            heads |= self._narrowed(divide(self._weighed(cell), slot))
        return self._numbered(sectors | self._below(heads))

    def place_by_number(
        self, num_nodes: int, client_id: int, num_clients: int
    ) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"], Float64[Tensor, " n"]]:
        """The same with a slot for each node, where heads of one number have one place.

        Below a head every client has an equal slot.

        Args:
            num_nodes: Number of all nodes.
            client_id: Id of the client.
            num_clients: Number of clients.

        Raises:
            ValueError: If the hierarchy is too deep.
        """
        sectors, together = self.common_sectors([num_clients] * len(self.cells))
        second: dict[int, Sector] = {}
        for cell in self.cells:
            for head in self.children[cell]:
                share = part_of(together[cell], num_nodes, head, 1)
                sectors |= self._narrowed({head: share})
                side = self._around([(head, 1)], sectors[head])[head]
                slot = part_of(side, num_clients, client_id, 1)
                second |= self._narrowed(divide(self._weighed(head), slot))
        return self._numbered(sectors | self._below(second))

    def _weighed(self, node: int) -> list[tuple[int, int]]:
        return [(child, self.leaves[child]) for child in self.children[node]]

    def _around(self, items: list[tuple[int, int]], sector: Sector) -> dict[int, Sector]:
        return divide_around(items, sector, self.shape)

    def _narrowed(self, shares: dict[int, Sector]) -> dict[int, Sector]:
        return {u: self.shape.narrowed(share, self.depths[u]) for u, share in shares.items()}

    def _below(self, sectors: dict[int, Sector]) -> dict[int, Sector]:
        return place_below(self.children, self.leaves, self.depths, sectors, self.shape)

    def _numbered(
        self, sectors: dict[int, Sector]
    ) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"], Float64[Tensor, " n"]]:
        nodes = sorted(sectors)
        depths = [self.depths[node] for node in nodes]
        polar = to_polar([sectors[node] for node in nodes], depths, self.shape)
        return torch.tensor(nodes), *polar
