"""Means of the rows of tables, over the clients that sent each of them."""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core.types import Tree
from fedbolic.federated.aggregators.aggregator import Additive, as_double, cast_like
from fedbolic.federated.aggregators.update import Update

_NAMES = {"num_rows", "rows", "values", "weights"}


@dataclass(frozen=True)
class RowMean(Additive):
    r"""Weighted mean of every row of a table, over the clients that sent this row.

    .. math:: y_i = \frac{\sum_k w_{ki} x_{ki}}{\sum_k w_{ki}}

    where :math:`w_{ki} = 0` if client :math:`k` did not send row :math:`i`. A payload holds the
    number of rows of the table, ``num_rows``, the numbers ``rows`` of the rows sent (int32,
    ascending), their ``values`` and their ``weights`` (0 or more). The aggregate holds the
    ``values`` of all rows, 0 where nobody sent a row, and the sums of their ``weights``. The weight
    of an update has no effect.

    A summand is the whole table with its weights, so a secure sum hides which rows a client sent.

    References:
        Chen et al. (2021), FedE, Sec. 3, arXiv:2010.12882, with weights of 1.

    Example:
        >>> def update(rows, values):
        ...     rows, values = torch.tensor(rows, dtype=torch.int32), torch.tensor(values)
        ...     weights = torch.ones(len(rows))
        ...     return Update({"num_rows": 3, "rows": rows, "values": values, "weights": weights})
        >>> updates = [(0, update([0, 1], [[2.0], [2.0]])), (1, update([1], [[4.0]]))]
        >>> RowMean().aggregate(updates).payload["values"].flatten()
        tensor([2., 3., 0.])
    """

    @override
    def form(self, payload: Tree) -> Tree:
        values, weights = payload["values"], payload["weights"]
        num_rows = payload["num_rows"]
        return {
            "values": values.new_empty((num_rows, *values.shape[1:]), device="meta"),
            "weights": weights.new_empty(num_rows, device="meta"),
        }

    @override
    def find_fault(self, update: Update) -> str | None:
        payload = update.payload
        if payload.keys() != _NAMES:
            return f"its payload must hold {sorted(_NAMES)}, got {sorted(payload)[:9]}"
        rows, values, weights = payload["rows"], payload["values"], payload["weights"]
        if not all(isinstance(x, Tensor) for x in (rows, values, weights)):
            return "its rows, values and weights must be tensors"
        if not (rows.dtype == torch.int32 and rows.ndim == weights.ndim == 1 and values.ndim == 2):
            return "its rows must be int32 numbers, its values a table and its weights a list"
        if not len(rows) == len(values) == len(weights):
            return f"it sent {len(rows)} rows, {len(values)} values and {len(weights)} weights"
        num_rows = payload["num_rows"]
        outside = len(rows) and not 0 <= int(rows[0]) <= int(rows[-1]) < num_rows
        if outside or bool((rows.diff() <= 0).any()):
            return f"its rows must ascend within 0 .. {num_rows - 1}"
        if bool((weights < 0).any()):
            return f"its weights must be 0 or more, got {float(weights.min())}"
        return None

    @override
    def to_summand(self, update: Update) -> Tree:
        payload = update.payload
        rows = payload["rows"].long()
        weights, values = as_double(payload["weights"]), as_double(payload["values"])
        whole = {
            name: torch.zeros(each.shape, dtype=torch.float64, device=values.device)
            for name, each in self.form(payload).items()
        }
        whole["values"][rows] = values * weights.unsqueeze(-1)
        whole["weights"][rows] = weights
        return whole

    @override
    def from_sum(self, total: Tree, weight: float, like: Tree) -> Tree:
        del weight
        weights = total["weights"]
        shares = torch.where(weights > 0, 1 / weights, 0.0)
        values = total["values"] * shares.unsqueeze(-1)
        return {
            "values": cast_like(values, like["values"]),
            "weights": cast_like(weights, like["weights"]),
        }


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
