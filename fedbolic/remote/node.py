"""A client where its data are: what it is asked, what it answers, what it keeps."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedbolic import tree
from fedbolic.data.client import Client
from fedbolic.federated.capabilities import OneTimeSecrets
from fedbolic.federated.channel import Channel
from fedbolic.federated.engines.engine import torch_stream
from fedbolic.federated.evaluation.evaluation import Evaluation, FineTune, RidgeHead
from fedbolic.federated.evaluation.fine_tuning import FineTuningPhase
from fedbolic.federated.evaluation.ridge_head import RidgeHeadPhase
from fedbolic.federated.gradient_method import GradientMethod
from fedbolic.federated.method import Method
from fedbolic.federated.update_filter import find_update_fault
from fedbolic.log import logger
from fedbolic.remote.client_state_store import ClientStateStore
from fedbolic.remote.wire import encode_message
from fedbolic.rng import Rng
from fedbolic.types import Meta, Tree


def purpose(phase: Method) -> str:
    """Purpose of a phase in a request; with the message it identifies the phase.

    Args:
        phase: As the server has it.
    """
    return {FineTuningPhase: "fine_tuning", RidgeHeadPhase: "ridge_head"}.get(type(phase), "train")


def make_request(
    phase: Method, message: Tree, client_state: Tree, meta: Meta, rng: Rng, *, task: str
) -> Tree:
    """Request to a client, which has the method, its data and its state itself.

    Args:
        phase: The method of this exchange.
        message: What it broadcasts to this client.
        client_state: What the server knows of the client's memory: its name.
        meta: What everybody knows of the federation.
        rng: The stream of this exchange.
        task: ``update`` or ``scores``.
    """
    return {
        "task": task,
        "purpose": purpose(phase),
        "phase": type(phase).__name__,
        "message": message,
        "client_state": client_state.get("name", ""),
        "meta": json.dumps(dataclasses.asdict(meta)),
        "seed": rng.seed,
        "path": json.dumps(rng.path),
    }


def handshake(client: Client) -> Tree:
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


def merge_handshakes(handshakes: Mapping[int, Tree]) -> tuple[Meta, tuple[int, ...]]:
    """Common knowledge of a federation of these clients, and the server's record of sizes.

    Args:
        handshakes: By client id.

    Raises:
        ValueError: If ids are missing, or inputs differ in shape.
    """
    ids = sorted(handshakes)
    if ids != list(range(len(ids))):
        raise ValueError(f"clients must be 0, 1, ..., and these came: {ids}")
    shapes = {tuple(json.loads(each["input_shape"])) for each in handshakes.values()}
    if len(shapes) != 1:
        raise ValueError(f"the clients' inputs differ in shape: {sorted(shapes)}")
    num_classes = max(int(each["num_classes"]) for each in handshakes.values())
    sizes = tuple(int(handshakes[i]["size"]) for i in ids)
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
        store: Where the memory is kept.
    """

    method: Method
    client: Client
    channels: tuple[Channel, ...]
    evaluation: Evaluation
    store: ClientStateStore

    def reply(self, request: Tree) -> Tree:
        """The answer to a question of :func:`make_request`.

        Args:
            request: As it came; what cannot be understood is an error as any other.
        """
        try:
            self.method.check_deployed()
            return _TASKS[request["task"]](self, request)
        except Exception as error:  # it is the server's to go on without this client
            logger.exception("client %d cannot answer", self.client.id)
            return {"error": type(error).__name__}

    def _update(self, request: Tree) -> Tree:
        """The update, as it was given before if the same was asked before."""
        name = encode_message(request).digest()
        if (known := self.store.reply(name)) is not None:
            return known
        client, rng, client_state = self._place(request)
        phase = self._phase(request)
        with torch_stream(client, rng):
            update, kept = phase.local_update(request["message"], client, client_state, rng)
        template = phase.template(request["message"])
        expected = None if template is None else tree.signature(template)
        if (fault := find_update_fault(update, kept, expected)) is not None:
            raise ValueError(fault)
        for i, channel in enumerate(self.channels if request["purpose"] == "train" else ()):
            update = channel.send(update, client, rng.at("channel", i))
        metrics = {key: float(value) for key, value in update.metrics.items()}
        given = {"payload": update.payload, "weight": float(update.weight), "metrics": metrics}
        if request["purpose"] != "train":  # what is scored and dropped leaves the memory as it is
            return {**given, "name": request["client_state"]}
        reply = {**given, "name": name}
        beside = "" if isinstance(self.method, OneTimeSecrets) else request["client_state"]
        self.store.keep(name, reply, kept, beside=beside)
        return reply

    def _scores(self, request: Tree) -> Tree:
        client, rng, client_state = self._place(request)
        with torch_stream(client, rng):
            scores = self._phase(request).evaluate(request["message"], client, client_state, rng)
        return {"scores": {name: float(value) for name, value in scores.items()}}

    def _place(self, request: Tree) -> tuple[Client, Rng, Tree]:
        """The client as part of the federation, its stream, and the memory it goes on with."""
        client = dataclasses.replace(self.client, meta=self._meta(request["meta"]))
        rng = Rng(request["seed"], tuple(json.loads(request["path"]))).at("client", client.id)
        # whichever memory the server names: one of before has secrets that served already, and the
        # empty one knows nobody
        client_state = (
            self.store.last()
            if isinstance(self.method, OneTimeSecrets)
            else self.store.client_state(request["client_state"])
        )
        return client, rng, tree.to(client_state, client.no_inputs.device)

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
        if (first := self.store.first(told)) != told:
            raise ValueError(f"the server speaks of {told}, and at first it spoke of {first}")
        return meta

    def _phase(self, request: Tree) -> Method:
        """The phase that the server is in.

        Raises:
            ValueError: If this client's method has no such phase.
        """
        phase = self._found(request)
        if phase is None or type(phase).__name__ != request["phase"]:
            raise ValueError(
                f"the server is at {request['phase']!r} and this client at "
                f"{type(phase).__name__!r}: both must have the same method"
            )
        return phase

    def _found(self, request: Tree) -> Method | None:
        if request["purpose"] == "fine_tuning":
            return self._fine_tuning_phase(self.evaluation.fine_tuning)
        if request["purpose"] == "ridge_head":
            return self._ridge_head_phase(self.evaluation.ridge_head)
        if request["task"] == "scores":
            return self.method
        return self.method.phase(request["message"])

    def _fine_tuning_phase(self, settings: FineTune | None) -> Method | None:
        if settings is None or not isinstance(self.method, GradientMethod):
            return None
        inner = self.method.fine_tuning(settings.epochs, settings.lr)
        return FineTuningPhase(inner) if inner else None

    def _ridge_head_phase(self, settings: RidgeHead | None) -> Method | None:
        if settings is None or not isinstance(self.method, GradientMethod):
            return None
        inner = self.method.ridge_head
        return RidgeHeadPhase(inner, settings.ridge) if inner else None


_TASKS: dict[str, Callable[[Node, Tree], Tree]] = {
    "update": Node._update,
    "scores": Node._scores,
}
