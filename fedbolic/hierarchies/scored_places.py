"""Places of a trained table of nodes, also where scores of pairs are no distances."""

from dataclasses import dataclass
from typing import Never

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from typing_extensions import override

from fedbolic.hierarchies.node_table import NodeTable
from fedbolic.manifolds import ManifoldPlaces, Places
from fedbolic.manifolds.places import by_rows, same_kind


@dataclass(frozen=True, eq=False)
class ScoredPlaces(Places):
    """Nodes of a table with biases or products, where minus the score stands for the distance.

    Such a number may be below 0, and that of a node from itself is not 0. With a bias of the
    ancestor alone it is that of the first node as the descendant and the second as the ancestor.

    Args:
        table: Settings of the table.
        embedded: Points and biases: :meth:`~fedbolic.hierarchies.node_table.NodeTable.embed`.

    Raises:
        ValueError: If ``embedded`` has other columns than the output of such a table.

    Example:
        >>> rows = torch.tensor([[0.0, 0.0, 0.0], [3.0, 4.0, 1.5]])
        >>> table = NodeTable(dim=2, c=0.0, bias="ancestor")
        >>> places = ScoredPlaces(table, table.embed(rows))
        >>> places[torch.tensor([0])].cdist(places)
        tensor([[0.0000, 3.5000]], dtype=torch.float64)
    """

    table: NodeTable
    embedded: Float[Tensor, "n coordinates"]

    def __post_init__(self) -> None:
        columns = self.table.dim + (self.table.c > 0) + (self.table.bias != "none")
        if self.embedded.ndim != 2 or self.embedded.shape[1] != columns:
            raise ValueError(
                f"{self.table} has {columns} coordinates a node, got {tuple(self.embedded.shape)}"
            )

    @property
    @override
    def dim(self) -> int:
        return self.table.dim

    @override
    def tensors(self) -> dict[str, Tensor]:
        return {"embedded": self.embedded}

    @override
    def dist(self, others: Places) -> Float64[Tensor, " n"]:
        return self.table.gap(self.embedded.double(), same_kind(self, others).embedded.double())

    @override
    def cdist(self, others: Places) -> Float64[Tensor, "n m"]:
        v = same_kind(self, others).embedded.double()
        u = self.embedded.double().unsqueeze(1)
        return by_rows(lambda at: self.table.gap(u[at], v), u, v.numel())

    @override
    def to_poincare(self, dtype: torch.dtype = torch.float64) -> Float[Tensor, "n ambient"]:
        return self._refuse()

    @override
    def to_lorentz(self, dtype: torch.dtype = torch.float64) -> Float[Tensor, "n ambient"]:
        return self._refuse()

    def _refuse(self) -> Never:
        raise ValueError(
            f"scores of {self.table} are no distances of points: take places.embedded, the points "
            "with their biases"
        )


def places_of(table: NodeTable, rows: Float[Tensor, "n numbers"]) -> Places:
    """Places of the rows of a table: points of its manifold where scores are distances.

    Args:
        table: Settings of the table.
        rows: The table.
    """
    embedded = table.embed(rows)
    if table.bias == "none" and table.score == "distance":
        return ManifoldPlaces(table.space, embedded)
    return ScoredPlaces(table, embedded)
