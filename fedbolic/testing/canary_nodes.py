"""Nodes that are planted to audit a run between machines."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from typing_extensions import override

from fedbolic.core.tree_bytes import tree_digest
from fedbolic.data import FederatedData
from fedbolic.federated import Evaluation, Method
from fedbolic.federated.accounting.ledger import PrivacyLedger
from fedbolic.federated.secure import SecureSum, write_identities
from fedbolic.remote.accounts import PrivacyAccounts
from fedbolic.remote.client_state_store import ClientStateStore
from fedbolic.remote.in_process import InProcess
from fedbolic.remote.node import Node
from fedbolic.remote.nodes import Nodes
from fedbolic.testing.audit_checks import RECORDED
from fedbolic.testing.canaries import CanaryEngine

UNLIMITED = 1e300
"""Budget of an account, above the cost of an almost silent run."""


class CanaryNodes(CanaryEngine):
    """Canaries as nodes of this process, each with encoded messages, a state on disk, an account.

    Args:
        folder: Folder of states, keys and accounts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.transport = InProcess({})

    @override
    def placed(
        self, method: Method, data: FederatedData, ledger: PrivacyLedger | None
    ) -> tuple[Nodes, Method, FederatedData]:
        folder, size = Path(tempfile.mkdtemp(dir=self.folder)), len(data.clients)
        if isinstance(method, SecureSum):
            write_identities(folder / "keys", size)
            method = replace(method, keys=folder / "keys")
        nodes = {}
        for client in data.clients:
            accounts, store = None, ClientStateStore(folder / str(client.id) / "client_state.pt")
            if ledger is not None:
                accounts = PrivacyAccounts(folder / "accounts", f"client{client.id}")
                budget = {"epsilon": UNLIMITED, "dp_delta": (1 + ledger.dp_delta) / 2}
                accounts.create(ledger.unit, **budget, neighbours=ledger.neighbours)
            scored = replace(client, test=client.train)  # so that scores would show
            given = method, scored, (), Evaluation(), store, accounts
            nodes[client.id] = Node(*given, private=ledger is None)
        self.transport = InProcess(nodes)
        engine = Nodes(self.transport, size)
        inputs = data.clients[0].no_inputs
        return engine, method, engine.federation(None).to(inputs.device, inputs.dtype)

    @override
    def charged(self, ledger: PrivacyLedger) -> float:
        return min(_charged(self.transport.nodes[i], ledger) for i in self.transport.updates)

    @override
    def faults(self, ledger: PrivacyLedger | None) -> list[str]:
        return list(dict.fromkeys(self._faults(ledger)))

    def _faults(self, ledger: PrivacyLedger | None) -> Iterator[str]:
        for number, (request, reply) in list(self.transport.updates.items()):
            node, ask = self.transport.nodes[number], self.transport.ask
            if ask(number, {**request, "task": "scores"}) != {"scores": {}}:
                yield "a node sends scores, which have no noise"
            if reply.get("metrics", {}).keys() - RECORDED or reply.get("weight", 1.0) != 1.0:
                yield "a node sends metrics or a weight, which have no noise"
            if ledger is None:
                continue
            before = _charged(node, ledger)
            again = tree_digest(ask(number, request))
            if again != tree_digest(reply) or _charged(node, ledger) != before:
                yield "a node answers a repeated request anew, and its noise can be averaged"
            other = ask(number, {**request, "seed": request["seed"] + 1})
            if "error" not in other and _charged(node, ledger) == before:
                yield "a node answers more requests than it charges to its account"


def _charged(node: Node, ledger: PrivacyLedger) -> float:
    """Epsilon that is charged to the account of a node."""
    assert node.accounts is not None
    return node.accounts.balance(ledger.unit).epsilon
