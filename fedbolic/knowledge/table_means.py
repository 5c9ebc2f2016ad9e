"""Means of the rows of several tables."""

from dataclasses import dataclass

from typing_extensions import override

from fedbolic.core.types import Tree
from fedbolic.federated.aggregators.aggregator import Additive
from fedbolic.federated.aggregators.row_mean import RowMean
from fedbolic.federated.aggregators.update import Update


@dataclass(frozen=True)
class TableMeans(Additive):
    """Mean of every row of each of several tables, over the clients that sent this row.

    A payload holds by the name of each table what :class:`~fedbolic.federated.RowMean` adds.
    """

    @override
    def form(self, payload: Tree) -> Tree:
        return {name: RowMean().form(part) for name, part in payload.items()}

    @override
    def find_fault(self, update: Update) -> str | None:
        for name, part in update.payload.items():
            if fault := RowMean().find_fault(Update(part)):
                return f"{name}: {fault}"
        return None

    @override
    def to_summand(self, update: Update) -> Tree:
        return {name: RowMean().to_summand(Update(part)) for name, part in update.payload.items()}

    @override
    def from_sum(self, total: Tree, weight: float, like: Tree) -> Tree:
        return {name: RowMean().from_sum(total[name], weight, like[name]) for name in like}
