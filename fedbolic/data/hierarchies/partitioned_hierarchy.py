"""A federation whose clients hold pairs of one hierarchy."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data.contract.client import HOLDOUT, Client, FederatedData
from fedbolic.data.contract.source import Source
from fedbolic.data.hierarchies.hierarchy import Hierarchy
from fedbolic.data.hierarchies.hierarchy_files import HierarchySet
from fedbolic.data.hierarchies.hierarchy_partition import HierarchyPartition, Subtrees
from fedbolic.data.hierarchies.hierarchy_sets import BalancedTree
from fedbolic.data.hierarchies.hierarchy_split import PRIVATE, HierarchySplit


@dataclass(frozen=True)
class PartitionedHierarchy(Source):
    """A hierarchy whose pairs are split among clients; nobody holds all of them.

    The number of nodes is public (``meta.num_classes``), and so is their numbering. The training
    examples of a client are its pairs. The server's test set holds all pairs, and says which of
    them some client holds: the others test what a federation infers.

    Args:
        hierarchy: Hierarchy to read; its pairs are transitively closed.
        partition: Partition of the pairs among clients.
        root: The only folder to read from. By default, the folder named by the environment variable
            FEDBOLIC_DATA, then the user's cache.
        download: Whether to download missing files into the cache.

    Example:
        >>> data = PartitionedHierarchy(BalancedTree(2, 3), Subtrees(2)).load(Rng(0))
        >>> data.sizes, data.meta.num_classes, len(data.holdout.test)
        ((17, 17), 15, 34)
    """

    hierarchy: HierarchySet = field(default_factory=BalancedTree)
    partition: HierarchyPartition = field(default_factory=Subtrees)
    root: Path | None = None
    download: bool = True

    @override
    def load(self, rng: Rng) -> FederatedData:
        whole = self.hierarchy.read(self.root, download=self.download)
        parts = self.partition.split(whole, rng.at("partition"))
        tiers = self.partition.tiers(whole)
        common = _common_parents(whole, self.partition.common(whole))
        meta = Meta(num_classes=len(whole), input_shape=(2,), num_clients=len(parts))

        def some(pairs: Tensor) -> HierarchySplit:
            return HierarchySplit(Hierarchy(whole.names, pairs), tiers, common=common)

        none = some(whole.pairs[:0])
        clients = tuple(
            Client(i, some(whole.pairs[part]), none, none, meta) for i, part in enumerate(parts)
        )
        held = torch.zeros(whole.num_pairs, dtype=torch.bool)
        held[torch.cat(parts)] = True
        test = HierarchySplit(whole, tiers, held, common=common)
        return FederatedData(clients, meta, Client(HOLDOUT, none, none, test, meta))


def _common_parents(
    whole: Hierarchy, common: Bool[Tensor, " n"] | None
) -> Int64[Tensor, " n"] | None:
    """Primary parents of the common nodes, as :class:`HierarchySplit` has them."""
    return None if common is None else torch.where(common, whole.primary_parents, PRIVATE)
