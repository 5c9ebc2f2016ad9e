"""Capabilities that a few methods declare, for the few parts of the library that ask for them."""

from abc import ABC, abstractmethod
from typing import TypeAlias

from jaxtyping import Int64
from torch import Tensor

from fedbolic.core.figure import Figure
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client, FederatedData
from fedbolic.federated.contract.method import Method
from fedbolic.manifolds import Places

NodePlaces: TypeAlias = tuple[Int64[Tensor, " m"], Places]
"""Nodes by number, and a place for each of them in the same order."""


class Reporting:
    """A method that has costs, figures or an embedding of nodes next to its updates and scores."""

    def costs(self, server_state: Tree) -> dict[str, float]:
        """Costs of all rounds so far, by names such as ``privacy/epsilon``; by default empty.

        A run records them after every round.

        Args:
            server_state: Server state after a round.
        """
        del server_state
        return {}

    def figures(self, server_state: Tree, data: FederatedData) -> dict[str, Figure]:
        """Figures of the trained model, by names that are valid in file names; by default empty.

        Called once, after the last round and without gradients. A run saves the figures next to its
        metrics.

        Args:
            server_state: Server state after the last round.
            data: Federated data, on the device and in the dtype of the run.
        """
        del server_state, data
        return {}

    def node_places(self, message: Tree, client: Client, client_state: Tree) -> NodePlaces | None:
        """Embedded nodes of a hierarchy, by number, and their places in the same order.

        :func:`fedbolic.load` names them as the client's hierarchy does. By default ``None``: the
        method embeds no nodes, or has no common embedding and the client is the server's test set.

        Args:
            message: Message to this client.
            client: The client with its data, or the server's test set.
            client_state: State that the client kept; empty for the server's test set.
        """
        del message, client, client_state
        return None

    def triple_tables(self, message: Tree, client: Client, client_state: Tree) -> Tree | None:
        """Tables that score the triples of a knowledge graph, and the fields of their score.

        :func:`fedbolic.load` names their rows as the client's triples do. By default ``None``: the
        method has none, or no common ones and the client is the server's test set.

        Args:
            message: Message to this client.
            client: The client with its data, or the server's test set.
            client_state: State that the client kept; empty for the server's test set.

        Returns:
            Trees ``score`` and ``tables``.
        """
        del message, client, client_state
        return None


class FixedTargets(ABC):
    """A method that compares features with fixed vectors, one for each class."""

    @abstractmethod
    def class_targets(self, server_state: Tree) -> Tensor | None:
        """Fixed vectors of the classes, one row each; ``None`` if they are trained."""


class OneTimeSecrets(Method):
    """A method whose client state holds one-time secrets, and so must never be rolled back."""


class Ordered(Method):
    """A method whose server deals every client a place in an order."""

    @property
    @abstractmethod
    def order(self) -> str:
        """Name of the entry of the server's state that holds the places, by client id.

        Only clients need to know the order: under a secure sum they agree on one among themselves,
        the server's state goes without the entry, and each client finds its place in every message
        under ``place``.
        """


class NoisySummands(Method):
    """A method whose clients add noise that protects them only in the sum of enough clients.

    The server must not see the summands of single clients, which a secure sum hides. Therefore
    ``check_deployed`` refuses a deployment without one.
    """

    @abstractmethod
    def check_threshold(self, least: int) -> None:
        """Refuse a secure sum that may reveal the sum of too few clients.

        Args:
            least: Least number of clients of a sum that is revealed.

        Raises:
            ValueError: If the noise of that many clients is not enough.
        """
