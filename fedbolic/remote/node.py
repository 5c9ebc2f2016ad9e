"""A client on its own machine: the requests it gets, its replies and its client state."""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedbolic.core import tree
from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.core.tree_bytes import tree_digest
from fedbolic.core.types import Meta, Tree
from fedbolic.data.contract.client import Client
from fedbolic.data.hierarchies.vocabulary import digest_of
from fedbolic.federated.accounting.charges import charging
from fedbolic.federated.accounting.ledger import PrivacyLedger
from fedbolic.federated.aggregators.channel import Channel
from fedbolic.federated.aggregators.update import Update
from fedbolic.federated.contract.capabilities import OneTimeSecrets
from fedbolic.federated.contract.engine import torch_stream
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.method import Method
from fedbolic.federated.rounds.evaluation import Evaluation, FineTune, RidgeHead
from fedbolic.federated.rounds.fine_tuning import FineTuningPhase
from fedbolic.federated.rounds.ridge_head import HeadExchange, featured
from fedbolic.federated.rounds.update_filter import find_update_fault
from fedbolic.federated.scores.metrics import measuring
from fedbolic.remote.accounts import PrivacyAccounts
from fedbolic.remote.client_state_store import ClientStateStore
from fedbolic.remote.score_noise import ScoreNoise
from fedbolic.remote.site import Site, SiteLimitError, cost_of


def purpose(phase: Method) -> str:
    """Purpose of a phase in a request; with the message it identifies the phase.

    Args:
        phase: Method of the exchange at the server.
    """
    if isinstance(phase, HeadExchange) and phase.place is None:
        return "ridge_head"
    return "fine_tuning" if isinstance(phase, FineTuningPhase) else "train"


def make_request(
    phase: Method, message: Tree, client_state: Tree, meta: Meta, rng: Rng, *, task: str
) -> Tree:
    """Request to a client, which has its own copy of the method, its data and its state.

    Args:
        phase: Method of this exchange.
        message: Message that the method broadcasts to this client.
        client_state: The server's record of the client state, which is its name.
        meta: Facts about the federation that all parties know.
        rng: Random stream of this exchange.
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
        client: The client with its data.
    """
    meta = client.meta
    shape = json.dumps(meta.input_shape)
    return {
        "client": client.id,
        "size": client.size,
        "num_classes": meta.num_classes,
        "input_shape": shape,
        "numbering": names_digest(client),
    }


def names_digest(client: Client) -> str:
    """Digest of the names of a client's nodes or classes; empty if numbers have no names.

    Args:
        client: A client, or the server's test set.
    """
    numbering = client.train.numbering or client.test.numbering
    return numbering or (digest_of(client.class_names) if client.class_names else "")


def merge_handshakes(handshakes: Mapping[int, Tree]) -> tuple[Meta, tuple[int, ...]]:
    """Metadata of the federation of these clients, and their numbers of training examples.

    Args:
        handshakes: Handshakes by client id.

    Raises:
        ValueError: If ids are missing, or inputs differ in shape.
    """
    ids = sorted(handshakes)
    if ids != list(range(len(ids))):
        raise ValueError(f"client ids must be 0, 1, ..., got {ids}")
    shapes = {tuple(json.loads(each["input_shape"])) for each in handshakes.values()}
    if len(shapes) != 1:
        raise ValueError(f"the clients' inputs differ in shape: {sorted(shapes)}")
    num_classes = max(int(each["num_classes"]) for each in handshakes.values())
    sizes = tuple(int(handshakes[i]["size"]) for i in ids)
    return Meta(num_classes, shapes.pop(), len(ids)), sizes


@dataclass(frozen=True, eq=False)
class Node:
    """A client that replies to requests.

    Only replies leave the client: payload, weight and metrics of an update after the channels, or
    scores. Scores are withheld where a secure sum or noise protects the client, unless its operator
    gives them noise. An error is reported by its class alone; its text may reveal data, and is
    written only to the client's own log. Private releases are charged to the accounts of the data's
    owner before their noise is drawn, so an error or an interruption does not make them free; a
    stored reply is sent again for free.

    Args:
        method: Method that is trained.
        client: The client with its data, on the device and in the dtype of its training. The server
            must agree with the number of clients and the input shape of its ``meta``.
        channels: Channels that an update passes through before it leaves.
        evaluation: Evaluation settings, for metrics, fine-tuning and the ridge head.
        store: Store of the client state.
        accounts: Privacy accounts of the client's data; ``None`` refuses every private release.
            With accounts the method must be private, as everything else would leave uncharged.
        score_noise: Noise of scores under an account of examples; ``None`` withholds them.
        private: Whether the node's configuration has ``privacy``, so that the server makes the
            updates private: the node then sends payloads alone.
        site: Limits and transcript of the site; ``None`` for neither.
    """

    method: Method
    client: Client
    channels: tuple[Channel, ...]
    evaluation: Evaluation
    store: ClientStateStore
    accounts: PrivacyAccounts | None = None
    score_noise: ScoreNoise | None = None
    private: bool = False
    site: Site | None = None

    def reply(self, request: Tree) -> Tree:
        """Reply to a request of :func:`make_request`, or ``{"error": class name}``.

        Args:
            request: Request as received; an invalid request is reported as an error, too.
        """
        try:
            kind = "scores" if request["task"] == "scores" else request["purpose"]
            work = functools.partial(self._work, request)
            if self.site is None:
                return work([], "")
            return self.site.answer(kind, request, work, state=self.store.last_name())
        except SiteLimitError as error:
            logger.warning("client %d: %s", self.client.id, error)
            return {"scores": {}} if request["task"] == "scores" else {"error": str(error)}
        except Exception as error:
            return self._failed(error)

    def _work(self, request: Tree, costs: list[Tree], line: str) -> Tree:
        """Reply, with what it charges in a list; an error is one, too."""

        def charge(ledger: PrivacyLedger, num_releases: int) -> tuple[str | int, ...]:
            name = self._charge(ledger, num_releases)
            costs.append(cost_of(ledger, num_releases))
            return name

        try:
            self.method.check_deployed()
            self._check_accounts()
            with measuring(self.evaluation.metrics), charging(charge):
                return _TASKS[request["task"]](self, request, line)
        except Exception as error:  # the server continues without this client
            return self._failed(error)

    def _failed(self, error: Exception) -> Tree:
        logger.error("client %d cannot reply", self.client.id, exc_info=error)
        return {"error": type(error).__name__}

    def _check_accounts(self) -> None:
        name, unit = type(self.method).__name__, self.method.traits.privacy_unit
        if self.accounts is None and unit is not None:
            raise ValueError(
                f"{name} spends the privacy of every {unit}, and this node has no accounts: name "
                "their folder and the data in its configuration"
            )
        if self.accounts is not None and unit is None:
            raise ValueError(f"this node has privacy accounts, and {name} adds no noise to charge")
        if self.score_noise is not None and unit != "example":
            raise ValueError(
                f"noisy scores are charged to an account of examples, and {name} has none: leave "
                "score_epsilon out, so that scores are withheld"
            )

    def _charge(self, ledger: PrivacyLedger, num_releases: int) -> tuple[str | int, ...]:
        if self.accounts is None:
            raise ValueError("this node has no privacy accounts, so it releases nothing private")
        return self.accounts.charge(ledger, num_releases)

    def _update(self, request: Tree, line: str) -> Tree:
        """The update; a repeated request gets the stored reply."""
        digest = tree_digest(request).hex()
        if (known := self.store.reply(digest)) is not None:
            return known
        client, rng, client_state = self._place(request)
        phase = self._phase(request)
        with torch_stream(client, rng):
            update, kept = phase.local_update(request["message"], client, client_state, rng)
        template = phase.template(request["message"])
        # a phase without a template may need the server's state for its aggregator
        expected, aggregator = (
            (None, None) if template is None else (tree.signature(template), phase.aggregator)
        )
        if (fault := find_update_fault(update, kept, expected, aggregator)) is not None:
            raise ValueError(fault)
        for i, channel in enumerate(self.channels if request["purpose"] == "train" else ()):
            update = channel.send(update, client, rng.at("channel", i))
        if self.private:
            update = Update(update.payload)
        metrics = {key: float(value) for key, value in update.metrics.items()}
        given = {"payload": update.payload, "weight": float(update.weight), "metrics": metrics}
        if request["purpose"] != "train":  # its model is discarded, so the client state stays
            return {**given, "name": request["client_state"]}
        name = line or digest  # by a line of its transcript, the server can tell if one is missing
        reply = {**given, "name": name}
        earlier = "" if isinstance(self.method, OneTimeSecrets) else request["client_state"]
        self.store.keep(name, reply, kept, earlier=earlier, request=digest)
        return reply

    @property
    def _withholds_scores(self) -> bool:
        """True if a secure sum or noise protects the client, whom exact scores would betray.

        A few models that predict one class each would read its counts of labels.
        """
        secret = isinstance(self.method, OneTimeSecrets)
        return self.accounts is not None or self.private or secret

    def _scores(self, request: Tree, line: str) -> Tree:
        del line
        if self.score_noise is not None:
            return self._noisy_scores(self.score_noise, request)
        if self._withholds_scores:
            return {"scores": {}}
        client, rng, client_state = self._place(request)
        with torch_stream(client, rng):
            scores = self._phase(request).evaluate(request["message"], client, client_state, rng)
        return {"scores": {name: float(value) for name, value in scores.items()}}

    def _noisy_scores(self, noise: ScoreNoise, request: Tree) -> Tree:
        """The only scoring of a round; a repeated request gets the stored reply."""
        match json.loads(request["path"]):
            case ["round", int(number), "evaluation"]:
                name = tree_digest(request).hex()
            case path:
                raise ValueError(f"a scoring is named by its round, got {path!r:.80}")
        if (known := self.store.scoring(number)) is not None:
            if known["name"] != name:
                raise ValueError(f"round {number} is scored once, and it was with another request")
            return known["reply"]
        client, rng, _ = self._place(request)
        with torch_stream(client, rng):
            scores = noise.release(self._phase(request), request["message"], client, rng)
        reply = {"scores": scores}
        self.store.keep_scoring(number, name, reply)
        return reply

    def _place(self, request: Tree) -> tuple[Client, Rng, Tree]:
        """The client with the federation's metadata, its random stream and its client state."""
        client = dataclasses.replace(self.client, meta=self._meta(request["meta"]))
        # a server that knows the seed could ask twice for the same work in different sums
        secret = isinstance(self.method, OneTimeSecrets)
        seed = self.store.seed() if secret else request["seed"]
        rng = Rng(seed, tuple(json.loads(request["path"]))).at("client", client.id)
        # `once` overrides the state that the server names: an earlier one holds secrets that were
        # used already, and the empty one knows no other client
        client_state = (
            self.store.last()
            if isinstance(self.method, OneTimeSecrets)
            else self.store.client_state(request["client_state"])
        )
        return client, rng, tree.to(client_state, client.no_inputs.device)

    def _meta(self, reported: str) -> Meta:
        """Metadata of the federation, after a check against the node's own and earlier values.

        The threshold of a secure sum and the scale of private noise depend on these values.

        Raises:
            ValueError: If this node is configured for another federation, or the server reported
                other values before.
        """
        own, said = self.client.meta, json.loads(reported)
        meta = Meta(said["num_classes"], tuple(said["input_shape"]), said["num_clients"])
        same = (meta.num_clients, meta.input_shape) == (own.num_clients, own.input_shape)
        if not same or meta.num_classes < own.num_classes:
            raise ValueError(f"the server reports {meta}, but this node is configured for {own}")
        # a table that was trained by another numbering has rows of other nodes
        reported += names_digest(self.client)
        if (first := self.store.first(reported)) != reported:
            raise ValueError(f"the server reports {reported}, but it first reported {first}")
        return meta

    def _phase(self, request: Tree) -> Method:
        """The phase that the request names.

        Raises:
            ValueError: If this client's method has no such phase.
        """
        if (self.accounts is not None or self.private) and request["purpose"] != "train":
            raise ValueError("fine_tuning and ridge_head send more than privacy covers")
        phase = self._found(request)
        if phase is None or type(phase).__name__ != request["phase"]:
            raise ValueError(
                f"the server runs phase {request['phase']!r}, but this client "
                f"{type(phase).__name__!r}: both must use the same method"
            )
        return phase

    def _found(self, request: Tree) -> Method | None:
        match request["purpose"], request["task"]:
            case "fine_tuning", _:
                return self._fine_tuning_phase(self.evaluation.fine_tuning)
            case "ridge_head", _:
                return self._ridge_head_phase(self.evaluation.ridge_head)
            case "train", "scores":
                return self.method
            case "train", _:
                return self.method.phase(request["message"])
        return None  # only what is for training passes through the channels

    def _fine_tuning_phase(self, settings: FineTune | None) -> Method | None:
        if settings is None or not isinstance(self.method, GradientMethod):
            return None
        inner = self.method.fine_tuning(settings.epochs, settings.lr)
        return FineTuningPhase(inner) if inner else None

    def _ridge_head_phase(self, settings: RidgeHead | None) -> Method | None:
        inner = featured(self.method)
        if settings is None:
            return None
        return HeadExchange(inner, settings.ridge, settings.layer) if inner else None


_TASKS: dict[str, Callable[[Node, Tree, str], Tree]] = {
    "update": Node._update,
    "scores": Node._scores,
}
