"""A mean of all networks for every client, with weights of its own."""

import torch
from jaxtyping import Float64
from torch import Tensor

from fedbolic import tree
from fedbolic.federated.method import Method
from fedbolic.federated.update import AggregatedUpdate
from fedbolic.types import Tree


def with_personal_means(
    method: Method,
    server_state: Tree,
    total: AggregatedUpdate,
    *,
    shares: Float64[Tensor, "clients clients"],
    common: Float64[Tensor, " clients"],
) -> Tree:
    """Server state in which each client of a round has a weighted mean of the trained networks.

    Clients that took no part keep the networks that they have.

    Args:
        method: Method whose messages hold each client's ``parameters``.
        server_state: State before the round, with common ``parameters`` and those of ``clients``.
        total: Payloads with the ``delta`` of each client.
        shares: Weights of the clients' networks in the mean of each client (row), in the order of
            the payloads.
        common: Weights in the mean of all, which new clients receive.
    """
    ids = list(total.payload)
    sent = [method.broadcast(server_state, int(i))["parameters"] for i in ids]
    trained = [tree.add(x, total.payload[i]["delta"]) for x, i in zip(sent, ids, strict=True)]
    rows = torch.cat((shares, common.unsqueeze(0)))
    means = {
        name: torch.tensordot(rows, torch.stack([x[name] for x in trained]).double(), 1).to(like)
        for name, like in server_state["parameters"].items()
    }
    *own, for_all = [{n: x[row].clone() for n, x in means.items()} for row in range(len(rows))]
    known = {**server_state["clients"], **dict(zip(ids, own, strict=True))}
    return {**server_state, "parameters": for_all, "clients": known}
