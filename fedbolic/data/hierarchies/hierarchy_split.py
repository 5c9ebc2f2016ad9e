"""The pairs of a hierarchy that one client holds, as examples."""

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.data.contract.client import Split
from fedbolic.data.hierarchies.hierarchy import Hierarchy
from fedbolic.data.hierarchies.vocabulary import digest_of

ABOVE, HEAD, BELOW = range(3)
"""Tiers of nodes: above all branches, head of a branch, below a head."""

ROOT, PRIVATE = -1, -2
"""In place of the common parent of a node: for a common root, and for a node that is not common."""


@dataclass(frozen=True, eq=False)
class HierarchySplit(Split):
    """Pairs of a hierarchy as examples: ``x`` holds a descendant and an ancestor in every row.

    Args:
        hierarchy: All nodes of the federation, and the pairs of this split.
        tiers: Tier of every node. Whether a node below a head has an ancestor above the branches
            is unknown, so such a pair is no negative example; ``None`` if all is known.
        held: True for the pairs that some client holds; ``None`` if all are.
        dtype: Floating-point type in which a model works on these pairs.
        common: Primary parent of every node that all clients know, such as those of the upper
            levels: a common node, or ``ROOT``; ``PRIVATE`` for all other nodes; ``None`` if no node
            is common.
        digest: Digest of the names by which nodes are numbered; ``None`` for that of the names of
            the hierarchy.

    Raises:
        ValueError: If there is not one tier or common parent for every node, or ``held`` has
            another length than the pairs.

    Example:
        >>> cats = Hierarchy(("lion", "cat", "mammal"), torch.tensor([[0, 1], [1, 2]]))
        >>> HierarchySplit(cats).at(torch.tensor([1]))
        {'x': tensor([[1, 2]])}
    """

    hierarchy: Hierarchy
    tiers: Int64[Tensor, " n"] | None = None
    held: Bool[Tensor, " num_pairs"] | None = None
    dtype: torch.dtype = torch.float32
    common: Int64[Tensor, " n"] | None = None
    digest: str | None = None

    def __post_init__(self) -> None:
        for name, of_nodes in (("tiers", self.tiers), ("common", self.common)):
            if of_nodes is not None and len(of_nodes) != len(self.hierarchy):
                raise ValueError(
                    f"{name} must have one entry for each of {len(self.hierarchy)} nodes, got "
                    f"{len(of_nodes)}"
                )
        if self.held is not None and len(self.held) != len(self):
            raise ValueError(f"held must have {len(self)} entries, got {len(self.held)}")

    @override
    def __len__(self) -> int:
        return self.hierarchy.num_pairs

    @override
    def at(self, index: Tensor) -> dict[str, Tensor]:
        return {"x": self.hierarchy.pairs[index.to(self.hierarchy.pairs.device)]}

    @property
    @override
    def no_inputs(self) -> Tensor:
        return torch.empty(0, 2, dtype=self.dtype, device=self.hierarchy.pairs.device)

    @property
    @override
    def numbering(self) -> str:
        names = digest_of(self.hierarchy.names) if self.digest is None else self.digest
        return names if self.common is None else f"{names}:{digest_of([str(self.common.tolist())])}"

    @functools.cached_property
    def node_counts(self) -> Int64[Tensor, " n"]:
        """Number of pairs of this split with every node."""
        return torch.bincount(self.hierarchy.pairs.flatten(), minlength=len(self.hierarchy))

    def is_unknown(
        self, nodes: Int[Tensor, "*batch"], others: Int[Tensor, "*batch k"]
    ) -> Bool[Tensor, "*batch k"]:
        """True where nobody knows if one of ``others`` is an ancestor of its node.

        Args:
            nodes: First nodes of the pairs of a batch.
            others: Nodes to pair with each of them.
        """
        if self.tiers is None:
            return torch.zeros_like(others, dtype=torch.bool)
        return (self.tiers[nodes] == BELOW).unsqueeze(-1) & (self.tiers[others] == ABOVE)

    @override
    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "HierarchySplit":
        given = (self.tiers, self.held, self.common)
        tiers, held, common = (None if x is None else x.to(device) for x in given)
        moved = self.hierarchy.to(device), tiers, held, dtype or self.dtype
        return HierarchySplit(*moved, common, self.digest)
