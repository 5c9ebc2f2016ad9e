"""Sources of federated data."""

from abc import ABC, abstractmethod

from fedbolic.data.client import FederatedData
from fedbolic.rng import Rng


class Source(ABC):
    """A recipe for federated data: the same source and stream give the same data."""

    @abstractmethod
    def load(self, rng: Rng) -> FederatedData:
        """The clients with their splits, and the server's own test set if there is one.

        Raises:
            FileNotFoundError: If data are not where they should be; the message says where.
            ValueError: If data are damaged, or cannot be split as asked.
        """
