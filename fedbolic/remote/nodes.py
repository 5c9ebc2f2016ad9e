"""Engine for clients on other machines, each reached through its node."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import torch
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.log import logger
from fedbolic.core.types import Meta, Tree
from fedbolic.data.contract.client import Client, Examples, FederatedData
from fedbolic.federated.aggregators.aggregator import Additive
from fedbolic.federated.aggregators.update import Update
from fedbolic.federated.contract.engine import Exchange, Failure, Remote, Result, RunStoppedError
from fedbolic.remote.node import make_request, merge_handshakes, names_digest, purpose
from fedbolic.remote.replies import (
    NAME_ALIKE,
    ExampleForm,
    NodeError,
    check_handshake,
    deviating,
    example_form,
    plain_error,
    rarely_fine_tuned,
    read_numbers,
    read_update,
    unusual,
)

POLL_SECONDS = 0.5
"""Seconds between two polls for online nodes and replies."""


class Transport(ABC):
    """Transport between the server and its nodes."""

    @abstractmethod
    def online(self) -> set[int]:
        """Ids of the nodes that are online."""

    @abstractmethod
    def exchange(
        self, kind: str, requests: Mapping[int, Tree], *, group: str, timeout: float
    ) -> dict[int, Tree]:
        """Send requests and return the reply of every node, or ``{"error": text}`` for it.

        Args:
            kind: ``query``, ``train`` or ``evaluate``.
            requests: Requests by node id.
            group: Name of this exchange in logs.
            timeout: Maximum wait in seconds, above 0.
        """


class Nodes(Remote):
    """Engine whose clients are separate nodes, each with its own data and client state.

    The server stores only the names of client states, so a run can be resumed from its last
    checkpoint after a crash of either side. A client fails in an exchange if its node is offline,
    replies too late or sends an unreadable reply. Replies must lie within the bounds of
    :mod:`~fedbolic.remote.replies`. A node whose handshake violates them or cannot be read is
    excluded; the run begins without it after ``timeout``.

    Args:
        transport: Connection to the nodes.
        num_clients: Number of clients that must be online before a run begins, at least 1.
        timeout: Seconds to wait for clients at the start and for the replies of an exchange, above
            0.
        least: Minimum number of replies in every exchange and evaluation, at least 1. If fewer
            clients are asked, all must reply. Otherwise the run stops and can be resumed.
        accounts: Folder of the privacy accounts of nodes on this machine, to resume with it;
            ``""`` if there is none.
        files: Folder of the own configurations of nodes on this machine, likewise.

    Raises:
        ValueError: If a value is out of range.
    """

    def __init__(
        self,
        transport: Transport,
        num_clients: int,
        *,
        timeout: float = 600.0,
        least: int = 1,
        accounts: str = "",
        files: str = "",
    ) -> None:
        check.at_least(1, num_clients=num_clients, least=least)
        check.positive(timeout=timeout)
        self.transport, self.num_clients = transport, num_clients
        self.timeout, self.least = timeout, least
        self.kept = {"accounts": accounts, "nodes": files}
        self.handshakes: dict[int, Tree] = {}
        self.refused: set[int] = set()
        self.num_classes = check.MOST_CLASSES
        self.silent: dict[int, str] = {}
        self.begun = False
        self.form: ExampleForm | None = None

    @property
    @override
    def deployment(self) -> dict[str, float | str]:
        kept = {name: folder for name, folder in self.kept.items() if folder}
        return {"timeout": self.timeout, "least": self.least, **kept}

    @override
    def federation(self, holdout: Client | None) -> FederatedData:
        end = time.monotonic() + self.timeout
        if holdout is not None:
            self.num_classes = holdout.meta.num_classes
        while len(places := self._places()) < self.num_clients:
            if time.monotonic() > end:
                for node, fault in self.silent.items():
                    self._refuse(node, f"it sent no handshake: {fault}")
                if len(places) + len(self.refused) >= self.num_clients:
                    break  # the missing nodes are online but were refused
                raise RunStoppedError(
                    f"{len(places)} of {self.num_clients} clients joined within {self.timeout:g} "
                    f"seconds: {sorted(places)}"
                )
            time.sleep(POLL_SECONDS)
        own = None if holdout is None else (holdout.meta.input_shape, names_digest(holdout))
        received = {i: self.handshakes[node] for i, node in places.items()}
        meta, sizes = merge_handshakes(self._agreed(received, own))
        self.begun = True
        clients = tuple(_absent(i, meta) for i in range(meta.num_clients))
        return FederatedData(clients, meta, holdout, sizes)

    @override
    def run(self, exchange: Exchange) -> Iterator[Result]:
        method, clients = exchange.method, exchange.clients
        replies = self._ask(exchange, task="update")
        found: dict[int, tuple[Update, str]] = {}
        failures: dict[int, NodeError] = {}
        kind = "fine_tuned" if purpose(method) == "fine_tuning" else "metrics"
        for client in clients:
            name, device = exchange.state(client).get("name", ""), client.no_inputs.device
            try:
                found[client.id] = read_update(replies[client.id], device, name=name, kind=kind)
            except NodeError as error:
                failures[client.id] = error
        if isinstance(method.aggregator, Additive):  # or the first would set the form for all
            payloads = {i: update.payload for i, (update, _) in found.items()}
            odd = unusual(payloads, method.aggregator)
            failures |= {i: NodeError("its payload has another form than most") for i in odd}
        for client in clients:
            if client.id in failures:
                yield client, Failure(failures[client.id]), exchange.state(client)
            else:
                update, name = found[client.id]
                yield client, update, {"name": name}

    @override
    def scores(self, exchange: Exchange) -> dict[int, dict[str, float]]:
        replies = self._ask(exchange, task="scores")
        found = {}
        for client in exchange.clients:
            try:
                found[client.id] = read_numbers(replies[client.id], "scores", kind="scores")
            except NodeError as error:
                logger.warning("client %d is not scored: %s", client.id, error)
        for client_id in rarely_fine_tuned(found):
            logger.warning("client %d is not scored: most clients lack such scores", client_id)
            del found[client_id]
        return found

    def _ask(self, exchange: Exchange, *, task: str) -> dict[int, Tree]:
        """The reply of every client, or ``{"error": text}`` for it."""
        clients, rng = exchange.clients, exchange.rng
        requests = {
            client.id: make_request(
                exchange.method,
                exchange.messages[client.id],
                exchange.state(client),
                client.meta,
                rng,
                task=task,
            )
            for client in clients
        }
        places = self._places()
        kind = "train" if task == "update" else "evaluate"
        here = {places[i]: request for i, request in requests.items() if i in places}
        by_node = self._exchange(kind, here, "/".join(map(str, rng.path)))
        replies = {i: by_node[places[i]] for i in requests if i in places}
        replies |= {i: {"error": "its node is offline"} for i in requests if i not in places}
        if (good := sum("error" not in a for a in replies.values())) < min(
            self.least, len(clients)
        ):
            faults = {i: a["error"] for i, a in sorted(replies.items()) if "error" in a}
            raise RunStoppedError(
                f"{good} of {len(clients)} clients replied, fewer than least={self.least}: {faults}"
            )
        return replies

    def _exchange(self, kind: str, requests: Mapping[int, Tree], group: str) -> dict[int, Tree]:
        if not requests:
            return {}
        found = self.transport.exchange(kind, requests, group=group, timeout=self.timeout)
        return {node: plain_error(reply) for node, reply in found.items()}

    def _places(self) -> dict[int, int]:
        """Online nodes by client id, ascending; new nodes are asked for their handshake."""
        online = self.transport.online()
        self.handshakes = {n: received for n, received in self.handshakes.items() if n in online}
        self.refused &= online
        new = online - self.handshakes.keys() - self.refused
        request: dict[int, Tree] = {node: {"task": "handshake"} for node in new}
        replies = self._exchange("query", request, "handshake")
        self.silent = {
            node: received["error"] for node, received in replies.items() if "error" in received
        }
        for node, received in replies.items():
            if node in self.silent:
                logger.warning("node %d sent no handshake: %s", node, received["error"])
            else:
                self._shake_hands(node, received)
        return dict(
            sorted((received["client"], node) for node, received in self.handshakes.items())
        )

    def _shake_hands(self, node: int, received: Tree) -> None:
        """Accept a node as the client that its handshake names, or refuse it."""
        bounds = {"num_clients": self.num_clients, "num_classes": self.num_classes}
        try:
            check_handshake(received, **bounds)
        except NodeError as error:
            self._refuse(node, str(error))
            return
        if self.form is not None and example_form(received) != self.form:
            self._refuse(node, self._other_form(received))
            return
        if received["client"] not in {other["client"] for other in self.handshakes.values()}:
            self.handshakes[node] = received
        elif self.begun:  # only the first node has the state of this client
            self._refuse(node, f"client {received['client']} already has another node")
        else:
            raise RunStoppedError(f"two nodes claim to be client {received['client']}")

    def _refuse(self, node: int, reason: str) -> None:
        self.refused.add(node)
        self.handshakes.pop(node, None)
        logger.warning("node %d is not accepted as a client: %s", node, reason)

    def _other_form(self, received: Tree) -> str:
        (shape, numbering), (usual, agreed) = example_form(received), self.form or ((), "")
        if shape != usual:
            return f"its inputs have shape {shape!s:.80}, those of most clients {usual}"
        return (
            f"it numbers nodes or classes by names of digest {numbering[:8] or 'none'}, most "
            f"clients by those of {agreed[:8] or 'none'}: {NAME_ALIKE}"
        )

    def _agreed(self, handshakes: dict[int, Tree], own: ExampleForm | None) -> dict[int, Tree]:
        """Handshakes of all clients; a missing or refused client gets one without examples.

        Raises:
            RunStoppedError: If no node was accepted.
            ValueError: If no single form of examples is the most frequent.
        """
        if not handshakes:
            raise RunStoppedError("no node was accepted as a client: see the warnings above")
        self.form, others = deviating(handshakes, own)
        for node in [n for n, received in self.handshakes.items() if received["client"] in others]:
            self._refuse(node, self._other_form(self.handshakes[node]))
        nothing = {"size": 0, "num_classes": 0, "input_shape": json.dumps(self.form[0])}
        absent = {i: {"client": i, **nothing} for i in range(self.num_clients)}
        return absent | {i: received for i, received in handshakes.items() if i not in others}


def _absent(client_id: int, meta: Meta) -> Client:
    """A client without data, in place of one on another machine."""
    nothing = Examples(
        {"x": torch.empty(0, *meta.input_shape), "y": torch.empty(0, dtype=torch.int64)}
    )
    return Client(client_id, nothing, nothing, nothing, meta)
