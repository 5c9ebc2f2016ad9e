"""Base of methods whose server averages all networks for every client, with weights of its own."""

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Tree
from fedbolic.federated.aggregators.aggregator import Aggregator, Gather
from fedbolic.federated.updates.update import AggregatedUpdate
from flatland.graphs.graph_method import GraphMethod


@dataclass(frozen=True)
class PersonalMeans(GraphMethod):
    """Base of methods with a mean of all networks for each client, which the server keeps."""

    @property
    @override
    def aggregator(self) -> Aggregator:
        return Gather()

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        server_state = super().init(meta, rng)
        if not server_state["parameters"]:
            raise ValueError(f"sharing leaves no parameter to be sent: {self.sharing}")
        return {**server_state, "clients": {}}

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        parameters = server_state["clients"].get(str(client_id), server_state["parameters"])
        common = {name: server_state[name] for name in ("buffers", "seed")}
        return {"parameters": parameters, **common}

    def with_means(
        self,
        server_state: Tree,
        total: AggregatedUpdate,
        *,
        shares: Float64[Tensor, "clients clients"],
        common: Float64[Tensor, " clients"],
    ) -> Tree:
        """Server state in which each client of a round has a weighted mean of the trained networks.

        Clients that took no part keep the networks that they have.

        Args:
            server_state: State before the round.
            total: Payloads with the ``delta`` of each client.
            shares: Weights of the clients' networks in the mean of each client (row), in the order
                of the payloads.
            common: Weights in the mean of all, which new clients receive.
        """
        ids = list(total.payload)
        sent = [self.broadcast(server_state, int(i))["parameters"] for i in ids]
        trained = [tree.add(x, total.payload[i]["delta"]) for x, i in zip(sent, ids, strict=True)]
        rows = torch.cat((shares, common.unsqueeze(0)))
        means = {
            name: torch.tensordot(rows, torch.stack([x[name] for x in trained]).double(), 1).to(of)
            for name, of in server_state["parameters"].items()
        }
        *own, for_all = [{n: x[row].clone() for n, x in means.items()} for row in range(len(rows))]
        known = {**server_state["clients"], **dict(zip(ids, own, strict=True))}
        return {**server_state, "parameters": for_all, "clients": known}
