"""Weighted means of networks, and a server that keeps a separate one for every client."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.federated.aggregators.aggregator import Gather
from fedbolic.federated.aggregators.update import AggregatedUpdate
from flatland.graphs.graph_method import GraphMethod


@dataclass(frozen=True)
class PersonalMeans(GraphMethod):
    """Base of methods whose server keeps a network for every client."""

    aggregator = Gather()
    unsent = ("clients",)

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        server_state = super().init(meta, rng)
        if not server_state["parameters"]:
            raise ValueError(f"sharing leaves no parameter to be sent: {self.sharing}")
        return {**server_state, "clients": {}}

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        """Message to a client with its own mean, or that of all for a new client."""
        own = server_state["clients"].get(str(client_id), server_state["parameters"])
        return {**super().broadcast(server_state, client_id), "parameters": own}

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
        means = weighted_means(trained, rows)
        *own, for_all = [{n: x[row].clone() for n, x in means.items()} for row in range(len(rows))]
        known = {**server_state["clients"], **dict(zip(ids, own, strict=True))}
        return {**server_state, "parameters": for_all, "clients": known}


def weighted_means(models: Sequence[Params], shares: Float64[Tensor, "*means clients"]) -> Params:
    """Weighted sums of the parameters of several models, in float64, then in their own dtypes.

    Args:
        models: Parameters of the models.
        shares: Weights of the models, one row for each mean.
    """
    return {
        name: torch.tensordot(
            shares.to(like.device), torch.stack([one[name] for one in models]).double(), 1
        ).to(like.dtype)
        for name, like in models[0].items()
    }
