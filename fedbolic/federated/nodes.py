"""Clients on other machines: asked in writing, each by its node."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import torch
from typing_extensions import override

from fedbolic import check, tree
from fedbolic.data.client import Client, Examples, FederatedData
from fedbolic.federated.engine import Failure, Remote, Result, RunStoppedError
from fedbolic.federated.method import Method, Update
from fedbolic.federated.node import acquainted, question
from fedbolic.rng import Rng
from fedbolic.types import Meta, Tree

logger = logging.getLogger("fedbolic")

PAUSE = 0.5
"""Seconds between two looks at who is there."""


class NodeError(RuntimeError):
    """A client on another machine gave no answer that can be used."""


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
    cannot be understood is a failure of that exchange.

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

    @property
    @override
    def terms(self) -> dict[str, float]:
        return {"timeout": self.timeout, "least": self.least}

    @override
    def federation(self, holdout: Client | None) -> FederatedData:
        end = time.monotonic() + self.timeout
        while len(places := self._places()) < self.num_clients:
            if time.monotonic() > end:
                raise RunStoppedError(
                    f"{len(places)} of {self.num_clients} clients came within {self.timeout:g} "
                    f"seconds: {sorted(places)}"
                )
            time.sleep(PAUSE)
        meta, sizes = acquainted({i: self.introduced[node] for i, node in places.items()})
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
        for client in clients:
            old, answer = memories.get(client.id, {}), answers[client.id]
            try:
                update, name = _read_update(answer, client.no_inputs.device)
            except NodeError as error:
                yield client, Failure(error), old
            else:
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
                found[client.id] = _read_numbers(answers[client.id], "scores")
            except NodeError as error:
                logger.warning("client %d is not scored: %s", client.id, error)
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
        return self.post.exchange(kind, questions, group=group, timeout=self.timeout)

    def _places(self) -> dict[int, int]:
        """The nodes that are there, by the id of their client, ascending."""
        online = self.post.online()
        self.introduced = {n: told for n, told in self.introduced.items() if n in online}
        new = {node: {"task": "introduction"} for node in online - self.introduced.keys()}
        for node, told in self._exchange("query", new, "introduction").items():
            if _is_introduction(told, self.num_clients):
                self.introduced[node] = told
            else:
                logger.warning("node %d is not taken for a client: %s", node, told)
        places: dict[int, int] = {}
        for node, told in self.introduced.items():
            if told["client"] in places:
                raise RunStoppedError(f"two nodes are there that call themselves client "
                                      f"{told['client']}")  # fmt: skip
            places[told["client"]] = node
        return dict(sorted(places.items()))


def _absent(client_id: int, meta: Meta) -> Client:
    """A client whose data are elsewhere."""
    nothing = Examples(
        {"x": torch.empty(0, *meta.input_shape), "y": torch.empty(0, dtype=torch.int64)}
    )
    return Client(client_id, nothing, nothing, nothing, meta)


def _is_introduction(told: Tree, num_clients: int) -> bool:
    numbers = [told.get(name) for name in ("client", "size", "num_classes")]
    return all(type(n) is int and n >= 0 for n in numbers) and told["client"] < num_clients


def _read_update(answer: Tree, device: torch.device) -> tuple[Update, str]:
    """An update and the name of the memory beside it, from what a node said."""
    _refuse_error(answer)
    payload, weight, name = (answer.get(key) for key in ("payload", "weight", "name"))
    if not (isinstance(payload, dict) and isinstance(weight, float) and isinstance(name, str)):
        raise NodeError(f"its answer is no update: it has {sorted(answer)}")
    metrics = _read_numbers(answer, "metrics")
    return Update(tree.to(payload, device), weight, metrics), name


def _read_numbers(answer: Tree, part: str) -> dict[str, float]:
    _refuse_error(answer)
    numbers = answer.get(part)
    if not (isinstance(numbers, dict) and all(type(x) is float for x in numbers.values())):
        raise NodeError(f"its {part} are not numbers by name")
    return numbers


def _refuse_error(answer: Tree) -> None:
    if "error" in answer:
        raise NodeError(str(answer["error"]))
