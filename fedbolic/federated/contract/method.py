"""Interface of a federated method: pure functions around one aggregated update."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Tree
from fedbolic.data.contract.client import Client, Split
from fedbolic.federated.aggregators.aggregator import Aggregator, Mean
from fedbolic.federated.aggregators.update import (
    LONGEST_PART,
    AggregatedUpdate,
    Update,
    find_long_part,
)
from fedbolic.federated.contract.traits import Traits


class Method(ABC):
    """A federated method: pure functions for the server and for its clients.

    A pure function returns the same result for the same arguments and modifies none of them. State,
    message, payload and client state are trees: nested dicts of tensors, numbers and strings. An
    implementation is a frozen dataclass that holds hyper-parameters only.
    """

    rounds: int = 1
    """Number of rounds of a run."""

    aggregator: Aggregator = Mean()
    """Rule that combines the client updates of an exchange; by default their weighted mean."""

    traits: Traits = Traits()
    """Traits of this method, or of this exchange of it."""

    unsent: ClassVar[tuple[str, ...]] = ()
    """Entries of the server's state that no client is sent, such as ``("optimizer",)``."""

    payload_like: ClassVar[dict[str, str | None]] = {}
    """Entries of a payload, each with the entry of the message that has its form, if it is sent.

    ``None`` stands for a number in float64. With ``{"delta": "parameters", "norm": None}``, a
    client sends a change of the parameters and a number. Empty if the form may vary.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if isinstance(cls.unsent, str):  # whose letters would be taken for names
            raise TypeError(f"{cls.__name__}.unsent must be a tuple: write ({cls.unsent!r},)")

    @abstractmethod
    def init(self, meta: Meta, rng: Rng) -> Tree:
        """Initial server state.

        Later states keep its entries, their types and, except of integers, their shapes; they may
        have more. A stored state of another form is refused.
        """

    def admit(self, server_state: Tree, sizes: Sequence[int]) -> Tree:
        """Initial server state that takes the clients' sizes into account; by default unchanged.

        Args:
            server_state: Result of :meth:`init`.
            sizes: Number of labelled training examples of every client, by id. Clients do not learn
                these numbers unless this function puts them into the state.
        """
        del sizes
        return server_state

    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        """Message from the server to one client; by default the server state but ``unsent``.

        Args:
            server_state: Current server state.
            client_id: Id of the recipient; :data:`~fedbolic.data.contract.client.HOLDOUT` for the
                server's own test set.
        """
        del client_id
        if not self.unsent:
            return server_state
        return {name: value for name, value in server_state.items() if name not in self.unsent}

    @abstractmethod
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        """Local work of one client: the update that it sends and the client state that it keeps.

        Args:
            message: Result of :meth:`broadcast` for this client.
            client: The client with its data.
            client_state: State that the client kept from its previous turn; empty the first time.
            rng: Random stream of this client in this exchange.
        """

    def template(self, message: Tree) -> Tree | None:
        """Tree with the names, shapes and dtypes of a valid payload; ``None`` if they may vary.

        An update of any other form is rejected, so the template declares everything that a payload
        may hold; by default what ``payload_like`` says.
        """
        if not self.payload_like:
            return None
        number = torch.zeros((), dtype=torch.float64)
        given = {**message, None: number}
        return {name: given[of] for name, of in self.payload_like.items() if of in given}

    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        """Reason why no honest client could send a payload; ``None`` if one could.

        By default that the delta, or another part, is too long for the message: see
        :func:`~fedbolic.federated.aggregators.update.find_long_part`. A method that sends sums
        over examples, or counts, overrides it by other bounds.

        Args:
            message: Message to the client.
            payload: Payload with the form of the template and finite numbers.
            norm: Upper bound of the Euclidean norm of its floating numbers; infinite if unknown.
        """
        return None if norm <= LONGEST_PART else find_long_part(message, payload)

    @abstractmethod
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        """Next server state, from the aggregated update of an exchange."""

    @abstractmethod
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        """Scores of a client on its own data, by names such as ``test/accuracy``.

        ``<split>/examples`` is the weight of the scores of that split in a mean over clients. A
        method without a global model returns no scores for the server's test set.
        """

    def phase(self, server_state: Tree) -> "Method":
        """Method of the next exchange; by default this method.

        A protocol with several exchanges returns a different method for each of them; all share one
        server state. A client finds its phase in the same way, from the message that it received:
        for a message that a phase broadcasts, this function returns that phase.
        """
        del server_state
        return self

    def check_deployed(self, *, summed: int = 1) -> None:
        """Refuse settings that are safe in a simulation but not if every client is a node.

        The server of a deployment may lie, so the protection of a client must not depend on
        anything that the server says. By default no setting is refused.

        Args:
            summed: Least number of clients whose sum a secure sum reveals; 1 if there is none.

        Raises:
            ValueError: If a setting is unsafe in a deployment.
        """
        return


class OtherDataError(ValueError):
    """Raised before a run whose clients hold other examples than the method learns from.

    Args:
        method: The method.
        found: Kind of the clients' examples.
    """

    def __init__(self, method: Method, found: type[Split]) -> None:
        self.found = found
        super().__init__(
            f"{type(method).__name__} learns from {method.traits.learns_from.__name__}, and a "
            f"client holds {found.__name__}"
        )


def refuse_other_data(method: Method, client: Client) -> None:
    """Refuse a client whose examples the method cannot learn from.

    Args:
        method: The method.
        client: The client.

    Raises:
        OtherDataError: If its examples are of another kind.
        ValueError: If they lack what the method needs.
    """
    if not isinstance(client.train, method.traits.learns_from):
        raise OtherDataError(method, type(client.train))
    if (fault := method.traits.find_unfit(client.train)) is not None:
        raise ValueError(f"{type(method).__name__} cannot use client {client.id}: {fault}")


class Phase(Method):
    """One exchange of a method that needs several; the method holds the state and the scores."""

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return {}

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        return {}
