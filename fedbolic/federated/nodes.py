"""Clients on other machines: asked in writing, each by its node."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import torch
from typing_extensions import override

from fedbolic import check
from fedbolic.data.client import Client, Examples, FederatedData
from fedbolic.federated.aggregate import Additive
from fedbolic.federated.engine import Failure, Remote, Result, RunStoppedError
from fedbolic.federated.method import Method, Update
from fedbolic.federated.node import acquainted, purpose, question
from fedbolic.federated.replies import (
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

logger = logging.getLogger("fedbolic")

PAUSE = 0.5
"""Seconds between two looks at who is there."""


class Post(ABC):
    """What carries questions to nodes, which are known by a number each, and answers back."""

    @abstractmethod
    def online(self) -> set[int]:
        """The nodes that are there."""

    @abstractmethod
    def exchange(
        self, kind: str, questions: Mapping[int, Tree], *, group: str, timeout: float
    ) -> dict[int, Tree]:
        """The answer of every node, or ``{"error": words}``.

        Args:
            kind: ``query``, ``train`` or ``evaluate``.
            questions: By node.
            group: What logs call this exchange.
            timeout: Seconds to wait at most.
        """


class Nodes(Remote):
    """Clients that are nodes of their own, each with its data and memory at its place.

    In place of memories the server has their names, so that a run goes on, after a crash of either
    side, from where its last checkpoint was. A client whose node is gone, answers too late or
    cannot be understood is a failure of that exchange. What a node says is read within the bounds
    of :mod:`~fedbolic.federated.replies`; one whose introduction is out of them has no place in
    the run, which begins without it when the time to wait is over.

    Args:
        post: The way to the nodes.
        num_clients: How many must be there before a run begins, at least 1.
        timeout: Seconds to wait for the answers of an exchange, above 0.
        least: Clients that must answer in every exchange and evaluation, as far as so many are
            asked; with fewer the run stops, to be resumed.

    Raises:
        ValueError: If a value is out of range.
    """

    def __init__(
        self, post: Post, num_clients: int, *, timeout: float = 600.0, least: int = 1
    ) -> None:
        check.at_least(1, num_clients=num_clients, least=least)
        check.positive(timeout=timeout)
        self.post, self.num_clients = post, num_clients
        self.timeout, self.least = timeout, least
        self.introduced: dict[int, Tree] = {}
        self.refused: set[int] = set()
        self.num_classes = MOST_CLASSES
        self.begun = False

    @property
    @override
    def terms(self) -> dict[str, float]:
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
            time.sleep(PAUSE)
        own = None if holdout is None else holdout.meta.input_shape
        told = {i: self.introduced[node] for i, node in places.items()}
        meta, sizes = acquainted(self._agreed(told, own))
        self.begun = True
        clients = tuple(_absent(i, meta) for i in range(meta.num_clients))
        return FederatedData(clients, meta, holdout, sizes)

    @override
    def run(
        self,
        method: Method,
        messages: Mapping[int, Tree],
        clients: Sequence[Client],
        memories: Mapping[int, Tree],
        rng: Rng,
    ) -> Iterator[Result]:
        answers = self._ask(method, messages, clients, memories, rng, task="update")
        found: dict[int, tuple[Update, str]] = {}
        failures: dict[int, NodeError] = {}
        kind = "tuned" if purpose(method) == "tune" else "metrics"
        for client in clients:
            name, device = memories.get(client.id, {}).get("name", ""), client.no_inputs.device
            try:
                found[client.id] = read_update(answers[client.id], device, name=name, kind=kind)
            except NodeError as error:
                failures[client.id] = error
        if isinstance(method.aggregator, Additive):  # else the first would say what form is right
            odd = unusual({i: update.payload for i, (update, _) in found.items()})
            failures |= {i: NodeError("its payload has another form than most") for i in odd}
        for client in clients:
            if client.id in failures:
                yield client, Failure(failures[client.id]), memories.get(client.id, {})
            else:
                update, name = found[client.id]
                yield client, update, {"name": name}

    @override
    def scores(
        self,
        method: Method,
        messages: Mapping[int, Tree],
        clients: Sequence[Client],
        memories: Mapping[int, Tree],
        rng: Rng,
    ) -> dict[int, dict[str, float]]:
        answers = self._ask(method, messages, clients, memories, rng, task="scores")
        found = {}
        for client in clients:
            try:
                found[client.id] = read_numbers(answers[client.id], "scores", kind="scores")
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
        memories: Mapping[int, Tree],
        rng: Rng,
        *,
        task: str,
    ) -> dict[int, Tree]:
        """The answer of every client, or ``{"error": words}``."""
        questions = {
            client.id: question(
                method,
                messages[client.id],
                memories.get(client.id, {}),
                client.meta,
                rng,
                task=task,
            )
            for client in clients
        }
        places = self._places()
        kind = "train" if task == "update" else "evaluate"
        here = {places[i]: asked for i, asked in questions.items() if i in places}
        by_node = self._exchange(kind, here, "/".join(map(str, rng.path)))
        answers = {i: by_node[places[i]] for i in questions if i in places}
        answers |= {i: {"error": "its node is not there"} for i in questions if i not in places}
        if (good := sum("error" not in a for a in answers.values())) < min(
            self.least, len(clients)
        ):
            faults = {i: a["error"] for i, a in sorted(answers.items()) if "error" in a}
            raise RunStoppedError(
                f"{good} of {len(clients)} clients answered, and {self.least} must: {faults}"
            )
        return answers

    def _exchange(self, kind: str, questions: Mapping[int, Tree], group: str) -> dict[int, Tree]:
        if not questions:
            return {}
        found = self.post.exchange(kind, questions, group=group, timeout=self.timeout)
        return {node: plain_error(reply) for node, reply in found.items()}

    def _places(self) -> dict[int, int]:
        """The nodes that are there, by the id of their client, ascending."""
        online = self.post.online()
        self.introduced = {n: told for n, told in self.introduced.items() if n in online}
        self.refused &= online
        new = online - self.introduced.keys() - self.refused
        asked: dict[int, Tree] = {node: {"task": "introduction"} for node in new}
        for node, told in self._exchange("query", asked, "introduction").items():
            if "error" in told:
                logger.warning("node %d does not introduce itself: %s", node, told["error"])
            else:
                self._introduce(node, told)
        return dict(sorted((told["client"], node) for node, told in self.introduced.items()))

    def _introduce(self, node: int, told: Tree) -> None:
        """Take a node for the client that it calls itself, if it can be that one."""
        bounds = {"num_clients": self.num_clients, "num_classes": self.num_classes}
        try:
            check_introduction(told, **bounds)
        except NodeError as error:
            self._refuse(node, str(error))
            return
        if told["client"] not in {other["client"] for other in self.introduced.values()}:
            self.introduced[node] = told
        elif self.begun:  # who came first is asked for its memory, and the other one has none
            self._refuse(node, f"client {told['client']} is another node")
        else:
            raise RunStoppedError(
                f"two nodes are there that call themselves client {told['client']}"
            )

    def _refuse(self, node: int, reason: str) -> None:
        self.refused.add(node)
        self.introduced.pop(node, None)
        logger.warning("node %d is not taken for a client: %s", node, reason)

    def _agreed(
        self, introductions: dict[int, Tree], own: tuple[int, ...] | None
    ) -> dict[int, Tree]:
        """Introductions of all clients; those that are refused, or deviate, have nothing.

        Raises:
            RunStoppedError: If nobody is left.
            ValueError: If it cannot be said who deviates.
        """
        if not introductions:
            raise RunStoppedError("no node can be taken for a client; the warnings above say why")
        shape, others = deviating(introductions, own)
        for node in [n for n, told in self.introduced.items() if told["client"] in others]:
            self._refuse(node, f"its inputs are {self.introduced[node]['input_shape']:.80}, and "
                               f"those of most {shape}")  # fmt: skip
        nothing = {"size": 0, "num_classes": 0, "input_shape": shape}
        absent = {i: {"client": i, **nothing} for i in range(self.num_clients)}
        return absent | {i: told for i, told in introductions.items() if i not in others}


def _absent(client_id: int, meta: Meta) -> Client:
    """A client whose data are elsewhere."""
    nothing = Examples(
        {"x": torch.empty(0, *meta.input_shape), "y": torch.empty(0, dtype=torch.int64)}
    )
    return Client(client_id, nothing, nothing, nothing, meta)
