"""Clients on other machines: asked in writing, each by its node."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import torch
from typing_extensions import override

from fedbolic import check
from fedbolic.data.client import Client, Examples, FederatedData
from fedbolic.federated.aggregators.aggregator import Additive
from fedbolic.federated.engines.engine import Failure, Remote, Result, RunStoppedError
from fedbolic.federated.method import Method
from fedbolic.federated.update import Update
from fedbolic.log import logger
from fedbolic.remote.node import make_request, merge_handshakes, purpose
from fedbolic.remote.replies import (
    MOST_CLASSES,
    NodeError,
    check_introduction,
    deviating,
    plain_error,
    rarely_tuned,
    read_numbers,
    read_update,
    unusual,
)
from fedbolic.rng import Rng
from fedbolic.types import Meta, Tree

POLL_SECONDS = 0.5
"""Seconds between two looks at who is there."""


class Transport(ABC):
    """Transport between the server and its nodes."""

    @abstractmethod
    def online(self) -> set[int]:
        """The nodes that are there."""

    @abstractmethod
    def exchange(
        self, kind: str, requests: Mapping[int, Tree], *, group: str, timeout: float
    ) -> dict[int, Tree]:
        """The answer of every node, or ``{"error": words}``.

        Args:
            kind: ``query``, ``train`` or ``evaluate``.
            requests: By node.
            group: What logs call this exchange.
            timeout: Seconds to wait at most.
        """


class Nodes(Remote):
    """Clients that are nodes of their own, each with its data and memory at its place.

    In place of memories the server has their names, so that a run goes on, after a crash of either
    side, from where its last checkpoint was. A client whose node is gone, answers too late or
    cannot be understood is a failure of that exchange. What a node says is read within the bounds
    of :mod:`~fedbolic.remote.replies`; one whose introduction is out of them has no place in
    the run, which begins without it when the time to wait is over.

    Args:
        transport: The way to the nodes.
        num_clients: How many must be there before a run begins, at least 1.
        timeout: Seconds to wait for the answers of an exchange, above 0.
        least: Clients that must answer in every exchange and evaluation, as far as so many are
            asked; with fewer the run stops, to be resumed.

    Raises:
        ValueError: If a value is out of range.
    """

    def __init__(
        self, transport: Transport, num_clients: int, *, timeout: float = 600.0, least: int = 1
    ) -> None:
        check.at_least(1, num_clients=num_clients, least=least)
        check.positive(timeout=timeout)
        self.transport, self.num_clients = transport, num_clients
        self.timeout, self.least = timeout, least
        self.handshakes: dict[int, Tree] = {}
        self.refused: set[int] = set()
        self.num_classes = MOST_CLASSES
        self.begun = False

    @property
    @override
    def deployment(self) -> dict[str, float]:
        return {"timeout": self.timeout, "least": self.least}

    @override
    def federation(self, holdout: Client | None) -> FederatedData:
        end = time.monotonic() + self.timeout
        if holdout is not None:
            self.num_classes = holdout.meta.num_classes
        while len(places := self._places()) < self.num_clients:
            if time.monotonic() > end:
                if len(places) + len(self.refused) >= self.num_clients:
                    break  # who is missing came, and cannot be taken for a client
                raise RunStoppedError(
                    f"{len(places)} of {self.num_clients} clients came within {self.timeout:g} "
                    f"seconds: {sorted(places)}"
                )
            time.sleep(POLL_SECONDS)
        own = None if holdout is None else holdout.meta.input_shape
        told = {i: self.handshakes[node] for i, node in places.items()}
        meta, sizes = merge_handshakes(self._agreed(told, own))
        self.begun = True
        clients = tuple(_absent(i, meta) for i in range(meta.num_clients))
        return FederatedData(clients, meta, holdout, sizes)

    @override
    def run(
        self,
        method: Method,
        messages: Mapping[int, Tree],
        clients: Sequence[Client],
        client_states: Mapping[int, Tree],
        rng: Rng,
    ) -> Iterator[Result]:
        replies = self._ask(method, messages, clients, client_states, rng, task="update")
        found: dict[int, tuple[Update, str]] = {}
        failures: dict[int, NodeError] = {}
        kind = "fine_tuned" if purpose(method) == "fine_tuning" else "metrics"
        for client in clients:
            name, device = client_states.get(client.id, {}).get("name", ""), client.no_inputs.device
            try:
                found[client.id] = read_update(replies[client.id], device, name=name, kind=kind)
            except NodeError as error:
                failures[client.id] = error
        if isinstance(method.aggregator, Additive):  # else the first would say what form is right
            odd = unusual({i: update.payload for i, (update, _) in found.items()})
            failures |= {i: NodeError("its payload has another form than most") for i in odd}
        for client in clients:
            if client.id in failures:
                yield client, Failure(failures[client.id]), client_states.get(client.id, {})
            else:
                update, name = found[client.id]
                yield client, update, {"name": name}

    @override
    def scores(
        self,
        method: Method,
        messages: Mapping[int, Tree],
        clients: Sequence[Client],
        client_states: Mapping[int, Tree],
        rng: Rng,
    ) -> dict[int, dict[str, float]]:
        replies = self._ask(method, messages, clients, client_states, rng, task="scores")
        found = {}
        for client in clients:
            try:
                found[client.id] = read_numbers(replies[client.id], "scores", kind="scores")
            except NodeError as error:
                logger.warning("client %d is not scored: %s", client.id, error)
        for client_id in rarely_tuned(found):
            logger.warning("client %d is not scored: others have no such scores", client_id)
            del found[client_id]
        return found

    def _ask(
        self,
        method: Method,
        messages: Mapping[int, Tree],
        clients: Sequence[Client],
        client_states: Mapping[int, Tree],
        rng: Rng,
        *,
        task: str,
    ) -> dict[int, Tree]:
        """The answer of every client, or ``{"error": words}``."""
        requests = {
            client.id: make_request(
                method,
                messages[client.id],
                client_states.get(client.id, {}),
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
        replies |= {i: {"error": "its node is not there"} for i in requests if i not in places}
        if (good := sum("error" not in a for a in replies.values())) < min(
            self.least, len(clients)
        ):
            faults = {i: a["error"] for i, a in sorted(replies.items()) if "error" in a}
            raise RunStoppedError(
                f"{good} of {len(clients)} clients answered, and {self.least} must: {faults}"
            )
        return replies

    def _exchange(self, kind: str, requests: Mapping[int, Tree], group: str) -> dict[int, Tree]:
        if not requests:
            return {}
        found = self.transport.exchange(kind, requests, group=group, timeout=self.timeout)
        return {node: plain_error(reply) for node, reply in found.items()}

    def _places(self) -> dict[int, int]:
        """The nodes that are there, by the id of their client, ascending."""
        online = self.transport.online()
        self.handshakes = {n: told for n, told in self.handshakes.items() if n in online}
        self.refused &= online
        new = online - self.handshakes.keys() - self.refused
        request: dict[int, Tree] = {node: {"task": "handshake"} for node in new}
        for node, told in self._exchange("query", request, "handshake").items():
            if "error" in told:
                logger.warning("node %d does not introduce itself: %s", node, told["error"])
            else:
                self._introduce(node, told)
        return dict(sorted((told["client"], node) for node, told in self.handshakes.items()))

    def _introduce(self, node: int, told: Tree) -> None:
        """Take a node for the client that it calls itself, if it can be that one."""
        bounds = {"num_clients": self.num_clients, "num_classes": self.num_classes}
        try:
            check_introduction(told, **bounds)
        except NodeError as error:
            self._refuse(node, str(error))
            return
        if told["client"] not in {other["client"] for other in self.handshakes.values()}:
            self.handshakes[node] = told
        elif self.begun:  # who came first is asked for its memory, and the other one has none
            self._refuse(node, f"client {told['client']} is another node")
        else:
            raise RunStoppedError(
                f"two nodes are there that call themselves client {told['client']}"
            )

    def _refuse(self, node: int, reason: str) -> None:
        self.refused.add(node)
        self.handshakes.pop(node, None)
        logger.warning("node %d is not taken for a client: %s", node, reason)

    def _agreed(self, handshakes: dict[int, Tree], own: tuple[int, ...] | None) -> dict[int, Tree]:
        """Introductions of all clients; those that are refused, or deviate, have nothing.

        Raises:
            RunStoppedError: If nobody is left.
            ValueError: If it cannot be said who deviates.
        """
        if not handshakes:
            raise RunStoppedError("no node can be taken for a client; the warnings above say why")
        shape, others = deviating(handshakes, own)
        for node in [n for n, told in self.handshakes.items() if told["client"] in others]:
            self._refuse(node, f"its inputs are {self.handshakes[node]['input_shape']:.80}, and "
                               f"those of most {shape}")  # fmt: skip
        nothing = {"size": 0, "num_classes": 0, "input_shape": shape}
        absent = {i: {"client": i, **nothing} for i in range(self.num_clients)}
        return absent | {i: told for i, told in handshakes.items() if i not in others}


def _absent(client_id: int, meta: Meta) -> Client:
    """A client whose data are elsewhere."""
    nothing = Examples(
        {"x": torch.empty(0, *meta.input_shape), "y": torch.empty(0, dtype=torch.int64)}
    )
    return Client(client_id, nothing, nothing, nothing, meta)
