"""Sources of federated data."""

from abc import ABC, abstractmethod

from fedbolic.data.client import FederatedData
from fedbolic.rng import Rng


class Source(ABC):
    """A recipe for federated data; the same source and stream give the same data."""

    @abstractmethod
    def load(self, rng: Rng) -> FederatedData:
        """Load the clients with their splits, and the server's own test set if there is one.

        Raises:
            FileNotFoundError: If a file is missing; the message names the folders searched.
            ValueError: If data are damaged, or there are too few examples for the split.
        """
