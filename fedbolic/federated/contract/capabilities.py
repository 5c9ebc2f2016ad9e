"""Capabilities that a few methods declare, for the few parts of the library that ask for them."""

from abc import abstractmethod

from fedbolic.federated.contract.method import Method


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
