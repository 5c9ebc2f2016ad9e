"""Controls of federated hierarchies: rows averaged as points of the space, not as tangents."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from typing_extensions import override

from fedbolic.core.types import Tree
from fedbolic.data import Client
from fedbolic.federated import AggregatedUpdate, Aggregator, Update
from fedbolic.federated.aggregators.row_mean import TableMeans
from fedbolic.hierarchies import HierarchyEmbedding
from fedbolic.hierarchies.method import TABLE
from fedbolic.manifolds import Manifold, frechet_mean

Mean = Literal["centroid", "frechet"]


@dataclass(frozen=True)
class PointRows(Aggregator):
    """Mean of every row of a table of tangents, taken between the exponentials.

    Payloads are those of ``HierarchyEmbedding``, whose rows are those of one table.

    Args:
        space: Space of the exponentials.
        mean: ``centroid`` or ``frechet``.
    """

    space: Manifold
    mean: Mean

    @override
    def form(self, payload: Tree) -> Tree:
        return TableMeans().form(payload)

    @override
    def find_fault(self, update: Update) -> str | None:
        return TableMeans().find_fault(update)

    @override
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> AggregatedUpdate:
        clients, tables, weights = [], [], []
        for client_id, update in updates:
            payload = update.payload[TABLE]
            rows = payload["rows"].long()
            table, weight = (
                torch.zeros(x.shape, dtype=torch.float64, device=rows.device)
                for x in self.form(update.payload)[TABLE].values()
            )
            table[rows], weight[rows] = payload["values"].double(), payload["weights"].double()
            clients.append(client_id)
            tables.append(table)
            weights.append(weight)
        if not clients:
            raise ValueError("there is no update to aggregate")
        w = torch.stack(weights, dim=-1)
        sent = w.sum(-1) > 0
        vectors = torch.stack(tables, dim=-2)[sent]
        points = self.space.expmap0(torch.nn.functional.pad(vectors, (1, 0)))
        mean = frechet_mean if self.mean == "frechet" else type(self.space).centroid
        values = torch.zeros_like(tables[0])
        values[sent] = self.space.logmap0(mean(self.space, points, w[sent]))[..., 1:]
        payload = {TABLE: {"values": values, "weights": w.sum(-1)}}
        return AggregatedUpdate(payload, float(len(clients)), tuple(clients))


@dataclass(frozen=True)
class MeanOfPoints(HierarchyEmbedding):
    """The method with the centroid or the Fréchet mean of the points that clients trained.

    Args:
        mean: ``centroid`` or ``frechet``.
    """

    mean: Mean = "centroid"

    @property
    @override
    def aggregator(self) -> Aggregator:
        return PointRows(self.table.space, self.mean)

    @override
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        update, client_state = super().finish(local, client, context)
        payload = update.payload[TABLE]
        values = local["parameters"][TABLE][payload["rows"].long()]
        return Update({TABLE: {**payload, "values": values}}), client_state

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        table, found = server_state["parameters"][TABLE], total.payload[TABLE]
        sent = found["weights"] > 0
        new = torch.where(sent.unsqueeze(-1), found["values"].to(table), table)
        return {"parameters": {TABLE: new}, "round": server_state["round"] + 1}
