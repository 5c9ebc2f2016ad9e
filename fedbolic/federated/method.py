"""What a federated method is: a few pure functions around one aggregate."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from fedbolic.data.client import Client, FederatedData
from fedbolic.figure import Figure
from fedbolic.rng import Rng
from fedbolic.types import Meta, Tree

if TYPE_CHECKING:
    from fedbolic.federated.aggregate import Aggregator
    from fedbolic.federated.stepped import Stepped

Cohort = Literal["sample", "same", "all"]


@dataclass(frozen=True, eq=False)
class Update:
    """What comes up from one client: everything that leaves it is in here.

    Args:
        payload: What the server aggregates.
        weight: Its weight in a mean, usually the number of training examples; at least 0.
        metrics: Numbers to record, such as the training loss.
    """

    payload: Tree
    weight: float = 1.0
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Total:
    """What reaches the server of one exchange.

    Args:
        payload: The aggregate of the clients' payloads.
        weight: The sum of their weights.
        clients: The ids of those who delivered, ascending.
        metrics: Numbers about the aggregation itself.
    """

    payload: Tree
    weight: float
    clients: tuple[int, ...]
    metrics: dict[str, float] = field(default_factory=dict)


class Method(ABC):
    """A federated method. Every function is pure: same arguments, same results, nothing touched.

    State, message, payload and memory are trees: nested dicts of tensors, numbers and strings. An
    implementation is a frozen dataclass that holds hyper-parameters only.
    """

    rounds: int = 1
    """How many rounds a run lasts."""

    @property
    @abstractmethod
    def aggregator(self) -> "Aggregator":
        """How the payloads of a round become one."""

    @abstractmethod
    def init(self, meta: Meta, rng: Rng) -> Tree:
        """The server's state before the first round."""

    def admit(self, state: Tree, sizes: Sequence[int]) -> Tree:
        """The state of :meth:`init` once the server knows its clients; by default the same.

        Args:
            state: The server's.
            sizes: Number of labelled training examples of every client, by id. Clients do not get
                to know them but by what this puts into the state.
        """
        del sizes
        return state

    def broadcast(self, state: Tree, client_id: int) -> Tree:
        """The message that goes down to one client; by default the state.

        Args:
            state: The server's.
            client_id: To whom; :data:`~fedbolic.data.client.HOLDOUT` for the server's test set.
        """
        del client_id
        return state

    @abstractmethod
    def local_update(
        self, message: Tree, client: Client, memory: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        """The work of one client: what it sends up, and what it keeps for its next turn.

        Args:
            message: What :meth:`broadcast` sent.
            client: The client with its data.
            memory: What it kept from its last turn; empty the first time.
            rng: The client's own random stream of this exchange.
        """

    def template(self, message: Tree) -> Tree | None:
        """A tree with the names, shapes and dtypes that a payload must have; none: they may vary.

        An update of another form is refused, so it also declares all that leaves a client.
        """
        del message
        return None

    @abstractmethod
    def server_update(self, state: Tree, total: Total) -> Tree:
        """The server's next state."""

    @abstractmethod
    def evaluate(self, message: Tree, client: Client, memory: Tree, rng: Rng) -> dict[str, float]:
        """Scores of a client on its own data, by names such as ``test/accuracy``.

        ``<split>/examples`` gives the weight of that split's scores in a mean over clients. A
        method without a global model returns nothing for the server's test set.
        """

    def figures(self, state: Tree, data: FederatedData) -> dict[str, Figure]:
        """Pictures of what was learned, by names that can name a file; by default none.

        Asked for once, after the last round, without gradients; saved beside the metrics.

        Args:
            state: The server's, after the last round.
            data: On the device and in the dtype of the run.
        """
        del state, data
        return {}

    def phase(self, state: Tree) -> "Method":
        """The method of the next exchange; by default this one.

        A protocol of several exchanges gives another method for each, all over one state. A client
        finds the phase by the message it got: asked with one that a phase broadcasts, this gives
        that phase.
        """
        del state
        return self

    @property
    def cohort(self) -> Cohort:
        """Who takes part: a sample, the same who answered the last exchange, or all."""
        return "sample"

    @property
    def evaluates(self) -> bool:
        """Whether a round ends, and is counted and recorded, with this exchange."""
        return True

    @property
    def once(self) -> bool:
        """Whether a client must never go back to a memory of before, for its secrets serve once."""
        return False

    @property
    def order(self) -> str | None:
        """Where the state of :meth:`init` deals every client a place in an order; none: nowhere.

        Only clients need know the order: under a secure sum they agree on one, the state goes
        without, and each finds its place in every message under ``place``.
        """
        return None

    def check_deployed(self) -> None:
        """Refuse settings that are safe in a simulation and not where every client is a node.

        There the server may lie, so nothing that protects a client may follow from what it says.
        By default no setting is refused.

        Raises:
            ValueError: Saying what to set.
        """
        return

    def tuning(self, epochs: int, lr: float | None) -> "Stepped | None":
        """The method that fine-tunes at the clients for a personalised score; none: not of use.

        Args:
            epochs: Passes over the local training data.
            lr: Step size; none for the method's own.
        """
        del epochs, lr
        return None

    @property
    def calibrating(self) -> "Stepped | None":
        """The method that gives the features for a head common to all clients; none: not of use."""
        return None


class Phase(Method):
    """One exchange of a method of several: the state is the method's, and so are the scores."""

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return {}

    @override
    def evaluate(self, message: Tree, client: Client, memory: Tree, rng: Rng) -> dict[str, float]:
        return {}
