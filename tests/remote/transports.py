"""A federation of nodes in this process: messages are encoded and decoded, but not sent."""

import dataclasses

from fedbolic.federated import Evaluation
from fedbolic.remote.accounts import PrivacyAccounts
from fedbolic.remote.client_state_store import ClientStateStore
from fedbolic.remote.in_process import InProcess
from fedbolic.remote.node import Node
from fedbolic.remote.nodes import Nodes
from tests.federated.simple_method import RNG


def identified(method, folder, num=10):
    """A secure sum whose clients have long-term keys in a folder."""
    from fedbolic.federated.secure import write_identities  # needs the extra secure

    write_identities(folder / "keys", num)
    return dataclasses.replace(method, keys=folder / "keys")


class Here(InProcess):
    """Nodes of this process, under numbers that differ from the ids of their clients.

    Args:
        method: Method of every node.
        data: Federation; each node gets one of its clients.
        folder: Folder of the nodes' client states.
        channels: Channels of every node.
        evaluation: Evaluation at every node.
        accounts: Folder of the accounts of ``client0``, ``client1``, ...; ``None`` for none.
        secret: Seed of the nodes' random streams under a secure sum, as a simulation has it;
            ``None`` for a secret of each node.
        private: Whether the server makes the updates private.
    """

    def __init__(
        self,
        method,
        data,
        folder,
        *,
        channels=(),
        evaluation=Evaluation(),
        accounts=None,
        secret=RNG.seed,
        private=False,
    ):
        nodes = {
            1000 - client.id: Node(
                method,
                client,
                channels,
                evaluation,
                ClientStateStore(folder / str(client.id) / "client_state.pt", secret),
                None if accounts is None else PrivacyAccounts(accounts, f"client{client.id}"),
                private=private,
            )
            for client in data.clients
        }
        super().__init__(nodes)
        self.gone, self.lost, self.requests = set(), set(), []

    def online(self):
        return self.nodes.keys() - self.gone

    def exchange(self, kind, requests, *, group, timeout):
        replies = {}
        for number in sorted(requests):
            self.requests.append((kind, number, requests[number]))
            replies[number] = self.ask(number, requests[number])
            if (kind, number) in self.lost:  # the node did the work, but its reply is lost
                replies[number] = {"error": "lost"}
        return replies


def away(method, data, folder, *, least=1, **settings):
    """An engine of nodes in this process, and the federation as its server sees it."""
    transport = Here(method, data, folder, **settings)
    nodes = Nodes(transport, len(data.clients), least=least)
    inputs = data.clients[0].no_inputs
    return nodes, nodes.federation(data.holdout).to(inputs.device, inputs.dtype)


def without_data(data):
    """True if no client holds an example."""
    return all(len(split) == 0 for c in data.clients for split in (c.train, c.validation, c.test))
