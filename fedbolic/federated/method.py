"""The interface of a federated method: a few pure functions around one aggregate."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from typing_extensions import override

from fedbolic.data.client import Client, FederatedData
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.update import AggregatedUpdate, Update
from fedbolic.figure import Figure
from fedbolic.rng import Rng
from fedbolic.types import Meta, Tree

CohortKind = Literal["sample", "same", "all"]


class Method(ABC):
    """A federated method. Every function is pure: same arguments, same results, nothing touched.

    State, message, payload and memory are trees: nested dicts of tensors, numbers and strings. An
    implementation is a frozen dataclass that holds hyper-parameters only.
    """

    rounds: int = 1
    """How many rounds a run lasts."""

    @property
    @abstractmethod
    def aggregator(self) -> Aggregator:
        """Aggregator of the payloads of a round."""

    @abstractmethod
    def init(self, meta: Meta, rng: Rng) -> Tree:
        """The server's state before the first round."""

    def admit(self, server_state: Tree, sizes: Sequence[int]) -> Tree:
        """The state of :meth:`init` once the server knows its clients; by default the same.

        Args:
            server_state: The server's.
            sizes: Number of labelled training examples of every client, by id. Clients do not get
                to know them but by what this puts into the state.
        """
        del sizes
        return server_state

    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        """The message that goes down to one client; by default the state.

        Args:
            server_state: The server's.
            client_id: To whom; :data:`~fedbolic.data.client.HOLDOUT` for the server's test set.
        """
        del client_id
        return server_state

    @abstractmethod
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        """The work of one client: what it sends up, and what it keeps for its next turn.

        Args:
            message: What :meth:`broadcast` sent.
            client: The client with its data.
            client_state: What it kept from its last turn; empty the first time.
            rng: The client's own random stream of this exchange.
        """

    def template(self, message: Tree) -> Tree | None:
        """Tree of the names, shapes and dtypes that a payload must have; ``None`` if they may vary.

        An update of another form is refused, so it also declares all that leaves a client.
        """
        del message
        return None

    @abstractmethod
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        """The server's next state."""

    @abstractmethod
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        """Scores of a client on its own data, by names such as ``test/accuracy``.

        ``<split>/examples`` gives the weight of that split's scores in a mean over clients. A
        method without a global model returns nothing for the server's test set.
        """

    def figures(self, server_state: Tree, data: FederatedData) -> dict[str, Figure]:
        """Pictures of what was learned, by names that can name a file; by default empty.

        Asked for once, after the last round, without gradients; saved beside the metrics.

        Args:
            server_state: The server's, after the last round.
            data: On the device and in the dtype of the run.
        """
        del server_state, data
        return {}

    def phase(self, server_state: Tree) -> "Method":
        """The method of the next exchange; by default this one.

        A protocol of several exchanges gives another method for each, all over one state. A client
        finds the phase by the message it got: asked with one that a phase broadcasts, this gives
        that phase.
        """
        del server_state
        return self

    @property
    def cohort(self) -> CohortKind:
        """Clients that take part: a sample, those who answered the last exchange, or all."""
        return "sample"

    @property
    def evaluates(self) -> bool:
        """True if a round ends, and is counted and recorded, with this exchange."""
        return True

    def check_deployed(self) -> None:
        """Refuse settings that are safe in a simulation and not where every client is a node.

        There the server may lie, so nothing that protects a client may follow from what it says.
        By default no setting is refused.

        Raises:
            ValueError: Saying what to set.
        """
        return


class Phase(Method):
    """One exchange of a method of several: the state is the method's, and so are the scores."""

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return {}

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        return {}
