"""The pairs of a hierarchy that one client holds, as examples."""

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.data.client import Split
from fedbolic.data.hierarchy import Hierarchy


@dataclass(frozen=True, eq=False)
class HierarchySplit(Split):
    """Pairs of a hierarchy as examples: ``x`` holds a descendant and an ancestor in every row.

    Args:
        hierarchy: All nodes of the federation, and the pairs of this split.
        candidates: Nodes that may be negative examples, at least one; ``None`` for all nodes.
        held: True for the pairs that some client holds; ``None`` if all are.
        dtype: Floating-point type in which a model works on these pairs.

    Raises:
        ValueError: If there is no candidate, or ``held`` has another length than the pairs.

    Example:
        >>> cats = Hierarchy(("lion", "cat", "mammal"), torch.tensor([[0, 1], [1, 2]]))
        >>> HierarchySplit(cats).at(torch.tensor([1]))
        {'x': tensor([[1, 2]])}
    """

    hierarchy: Hierarchy
    candidates: Int64[Tensor, " m"] | None = None
    held: Bool[Tensor, " num_pairs"] | None = None
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.candidates is not None and not len(self.candidates):
            raise ValueError("there is no candidate for negative examples: give one node or more")
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

    @functools.cached_property
    def node_counts(self) -> Int64[Tensor, " n"]:
        """Number of pairs of this split with every node."""
        return torch.bincount(self.hierarchy.pairs.flatten(), minlength=len(self.hierarchy))

    @override
    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "HierarchySplit":
        candidates, held = (
            None if x is None else x.to(device) for x in (self.candidates, self.held)
        )
        return HierarchySplit(self.hierarchy.to(device), candidates, held, dtype or self.dtype)
