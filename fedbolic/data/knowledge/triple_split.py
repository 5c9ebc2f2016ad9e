"""Triples that one client holds, as examples."""

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.data.contract.client import Split
from fedbolic.data.hierarchies.vocabulary import digest_of


@dataclass(frozen=True, eq=False)
class TripleSplit(Split):
    """Triples as examples: ``x`` holds a head, a relation and a tail in every row.

    Args:
        entities: Names of all entities of the federation.
        relations: Names of all relations.
        triples: Triples of this split, by number.
        known: Further triples that their holder knows to be true: rankings leave them out.
        dtype: Floating-point type in which a model works on these triples.
        digest: Digest of the names by which all parties number; ``None`` for that of ``entities``
            and ``relations``.

    Example:
        >>> none = torch.empty(0, 3, dtype=torch.int64)
        >>> split = TripleSplit(("cat", "lion"), ("is_a",), torch.tensor([[1, 0, 0]]), none)
        >>> split.at(torch.tensor([0]))
        {'x': tensor([[1, 0, 0]])}
    """

    entities: tuple[str, ...]
    relations: tuple[str, ...]
    triples: Int64[Tensor, "n 3"]
    known: Int64[Tensor, "m 3"]
    dtype: torch.dtype = torch.float32
    digest: str | None = None

    @override
    def __len__(self) -> int:
        return len(self.triples)

    @override
    def at(self, index: Tensor) -> dict[str, Tensor]:
        return {"x": self.triples[index.to(self.triples.device)]}

    @property
    @override
    def no_inputs(self) -> Tensor:
        return torch.empty(0, 3, dtype=self.dtype, device=self.triples.device)

    @property
    @override
    def numbering(self) -> str:
        if self.digest is not None:
            return self.digest
        return digest_of([digest_of(self.entities), digest_of(self.relations)])

    @functools.cached_property
    def tail_keys(self) -> Int64[Tensor, " keys"]:
        """Sorted keys of all triples that are known to be true, read in both directions.

        The key of ``(h, r, t)`` is ``(r n + h) n + t`` for n entities; the inverse of relation
        ``r`` out of m is relation ``m + r``. So ``contains_pair(keys, r * n + h, t, num_nodes=n)``
        says whether a triple is known.
        """
        n = len(self.entities)
        head, relation, tail = torch.cat((self.triples, self.known)).T
        there = (relation * n + head) * n + tail
        back = ((relation + len(self.relations)) * n + tail) * n + head
        return torch.cat((there, back)).unique()

    @functools.cached_property
    def entity_counts(self) -> Int64[Tensor, " entities"]:
        """Number of triples of this split with every entity."""
        return torch.bincount(self.triples[:, ::2].flatten(), minlength=len(self.entities))

    @functools.cached_property
    def relation_counts(self) -> Int64[Tensor, " relations"]:
        """Number of triples of this split with every relation."""
        return torch.bincount(self.triples[:, 1], minlength=len(self.relations))

    @override
    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "TripleSplit":
        tensors = self.triples.to(device), self.known.to(device)
        names = self.entities, self.relations
        return TripleSplit(*names, *tensors, dtype or self.dtype, self.numbering)
