"""A client where its data are: what it is asked, what it answers, what it keeps."""

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedbolic import tree
from fedbolic.data.client import Client
from fedbolic.federated.calibrated import Calibrated
from fedbolic.federated.channel import Channel
from fedbolic.federated.delivery import find_fault
from fedbolic.federated.engine import torch_stream
from fedbolic.federated.evaluation import Evaluation
from fedbolic.federated.method import Method
from fedbolic.federated.shelf import Shelf
from fedbolic.federated.tuning import Tuned
from fedbolic.federated.wire import encode
from fedbolic.rng import Rng
from fedbolic.types import Meta, Tree

logger = logging.getLogger("fedbolic")


def purpose(phase: Method) -> str:
    """What a phase is for, as a question says it: a client finds the phase by it and the message.

    Args:
        phase: As the server has it.
    """
    return {Tuned: "tune", Calibrated: "calibrate"}.get(type(phase), "train")


def question(
    phase: Method, message: Tree, memory: Tree, meta: Meta, rng: Rng, *, task: str
) -> Tree:
    """What a client is asked; it has the method, its data and its memory itself.

    Args:
        phase: The method of this exchange.
        message: What it broadcasts to this client.
        memory: What the server knows of the client's memory: its name.
        meta: What everybody knows of the federation.
        rng: The stream of this exchange.
        task: ``update`` or ``scores``.
    """
    return {
        "task": task,
        "purpose": purpose(phase),
        "phase": type(phase).__name__,
        "message": message,
        "memory": memory.get("name", ""),
        "meta": json.dumps(dataclasses.asdict(meta)),
        "seed": rng.seed,
        "path": json.dumps(rng.path),
    }


def introduction(client: Client) -> Tree:
    """Description that a client sends before the first round.

    Args:
        client: With its data.
    """
    meta = client.meta
    shape = json.dumps(meta.input_shape)
    return {
        "client": client.id,
        "size": client.size,
        "num_classes": meta.num_classes,
        "input_shape": shape,
    }


def acquainted(introductions: Mapping[int, Tree]) -> tuple[Meta, tuple[int, ...]]:
    """Common knowledge of a federation of these clients, and the server's record of sizes.

    Args:
        introductions: By client id.

    Raises:
        ValueError: If ids are missing, or inputs differ in shape.
    """
    ids = sorted(introductions)
    if ids != list(range(len(ids))):
        raise ValueError(f"clients must be 0, 1, ..., and these came: {ids}")
    shapes = {tuple(json.loads(each["input_shape"])) for each in introductions.values()}
    if len(shapes) != 1:
        raise ValueError(f"the clients' inputs differ in shape: {sorted(shapes)}")
    num_classes = max(int(each["num_classes"]) for each in introductions.values())
    sizes = tuple(int(introductions[i]["size"]) for i in ids)
    return Meta(num_classes, shapes.pop(), len(ids)), sizes


@dataclass(frozen=True, eq=False)
class Node:
    """A client that answers questions.

    Its answer is all that leaves it: payload, weight and metrics of an update after the channels,
    or scores. An error is told by its class alone: what it says may be of the data, and stays in
    the client's own log.

    Args:
        method: What is trained.
        client: With its data, on the device and in the dtype to work in. Of its ``meta``, the
            number of clients and the shape of inputs are not the server's to say.
        channels: What happens to an update before it leaves.
        evaluation: How a run is scored at its end.
        shelf: Where the memory is kept.
    """

    method: Method
    client: Client
    channels: tuple[Channel, ...]
    evaluation: Evaluation
    shelf: Shelf

    def answer(self, asked: Tree) -> Tree:
        """The answer to a question of :func:`question`.

        Args:
            asked: As it came; what cannot be understood is an error as any other.
        """
        try:
            self.method.check_deployed()
            return _TASKS[asked["task"]](self, asked)
        except Exception as error:  # it is the server's to go on without this client
            logger.exception("client %d cannot answer", self.client.id)
            return {"error": type(error).__name__}

    def _update(self, asked: Tree) -> Tree:
        """The update, as it was given before if the same was asked before."""
        name = encode(asked).digest()
        if (known := self.shelf.answer(name)) is not None:
            return known
        client, rng, memory = self._place(asked)
        phase = self._phase(asked)
        with torch_stream(client, rng):
            update, kept = phase.local_update(asked["message"], client, memory, rng)
        template = phase.template(asked["message"])
        expected = None if template is None else tree.signature(template)
        if (fault := find_fault(update, kept, expected)) is not None:
            raise ValueError(fault)
        for i, channel in enumerate(self.channels if asked["purpose"] == "train" else ()):
            update = channel.send(update, client, rng.at("channel", i))
        metrics = {key: float(value) for key, value in update.metrics.items()}
        given = {"payload": update.payload, "weight": float(update.weight), "metrics": metrics}
        if asked["purpose"] != "train":  # what is scored and dropped leaves the memory as it is
            return {**given, "name": asked["memory"]}
        answer = {**given, "name": name}
        beside = "" if self.method.once else asked["memory"]
        self.shelf.keep(name, answer, kept, beside=beside)
        return answer

    def _scores(self, asked: Tree) -> Tree:
        client, rng, memory = self._place(asked)
        with torch_stream(client, rng):
            scores = self._phase(asked).evaluate(asked["message"], client, memory, rng)
        return {"scores": {name: float(value) for name, value in scores.items()}}

    def _place(self, asked: Tree) -> tuple[Client, Rng, Tree]:
        """The client as part of the federation, its stream, and the memory it goes on with."""
        client = dataclasses.replace(self.client, meta=self._meta(asked["meta"]))
        rng = Rng(asked["seed"], tuple(json.loads(asked["path"]))).at("client", client.id)
        # whichever memory the server names: one of before has secrets that served already, and the
        # empty one knows nobody
        memory = self.shelf.last() if self.method.once else self.shelf.memory(asked["memory"])
        return client, rng, tree.to(memory, client.no_inputs.device)

    def _meta(self, told: str) -> Meta:
        """Common knowledge of the federation, once the server's words agree with it.

        Secrets depend on it, such as the threshold of a sum and the scale of private noise.

        Raises:
            ValueError: If this node was set up for another federation, or was told another before.
        """
        own, said = self.client.meta, json.loads(told)
        meta = Meta(said["num_classes"], tuple(said["input_shape"]), said["num_clients"])
        same = (meta.num_clients, meta.input_shape) == (own.num_clients, own.input_shape)
        if not same or meta.num_classes < own.num_classes:
            raise ValueError(f"the server speaks of {meta}, and this node is set up for {own}")
        if (first := self.shelf.first(told)) != told:
            raise ValueError(f"the server speaks of {told}, and at first it spoke of {first}")
        return meta

    def _phase(self, asked: Tree) -> Method:
        """The phase that the server is in.

        Raises:
            ValueError: If this client's method has no such phase.
        """
        phase = self._found(asked)
        if phase is None or type(phase).__name__ != asked["phase"]:
            raise ValueError(
                f"the server is at {asked['phase']!r} and this client at {type(phase).__name__!r}: "
                "both must have the same method"
            )
        return phase

    def _found(self, asked: Tree) -> Method | None:
        tune, calibrate = self.evaluation.tune, self.evaluation.calibrate
        if asked["purpose"] == "tune":
            tuning = self.method.tuning(tune.epochs, tune.lr) if tune else None
            return tuning and Tuned(tuning)
        if asked["purpose"] == "calibrate":
            inner = self.method.calibrating if calibrate else None
            return Calibrated(inner, calibrate.ridge) if inner and calibrate else None
        if asked["task"] == "scores":
            return self.method
        return self.method.phase(asked["message"])


_TASKS: dict[str, Callable[[Node, Tree], Tree]] = {
    "update": Node._update,
    "scores": Node._scores,
}
