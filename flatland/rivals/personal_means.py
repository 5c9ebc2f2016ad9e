"""A separately weighted mean of all networks for every client, which the server keeps."""

import torch
from jaxtyping import Float64
from torch import Tensor

from fedbolic.core import tree
from fedbolic.core.types import Tree
from fedbolic.federated.aggregators.update import AggregatedUpdate
from fedbolic.federated.contract.sharing import Sharing


def without_means(server_state: Tree, sharing: Sharing) -> Tree:
    """Initial server state, in which no client has a mean yet.

    Args:
        server_state: State with the ``parameters`` that every new client receives.
        sharing: Sharing table, which a refusal shows.

    Raises:
        ValueError: If no parameter is sent.
    """
    if not server_state["parameters"]:
        raise ValueError(f"sharing leaves no parameter to be sent: {sharing}")
    return {**server_state, "clients": {}}


def network_of(server_state: Tree, client_id: int) -> Tree:
    """Message to a client: its own mean, or that of all for a new client."""
    parameters = server_state["clients"].get(str(client_id), server_state["parameters"])
    return {"parameters": parameters, **{name: server_state[name] for name in ("buffers", "seed")}}


def with_means(
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
        shares: Weights of the clients' networks in the mean of each client (row), in the order of
            the payloads.
        common: Weights in the mean of all, which new clients receive.
    """
    ids = list(total.payload)
    sent = [network_of(server_state, int(i))["parameters"] for i in ids]
    trained = [tree.add(x, total.payload[i]["delta"]) for x, i in zip(sent, ids, strict=True)]
    rows = torch.cat((shares, common.unsqueeze(0)))
    means = {
        name: torch.tensordot(rows, torch.stack([x[name] for x in trained]).double(), 1).to(of)
        for name, of in server_state["parameters"].items()
    }
    *own, for_all = [{n: x[row].clone() for n, x in means.items()} for row in range(len(rows))]
    known = {**server_state["clients"], **dict(zip(ids, own, strict=True))}
    return {**server_state, "parameters": for_all, "clients": known}
