"""Sources of federated data."""

from abc import ABC, abstractmethod

from torch import Tensor

from fedbolic.core.rng import Rng
from fedbolic.data.contract.client import FederatedData


class Source(ABC):
    """A recipe for federated data; the same source and stream give the same data."""

    @abstractmethod
    def load(self, rng: Rng) -> FederatedData:
        """Load the clients with their splits, and the server's own test set if there is one.

        Raises:
            FileNotFoundError: If a file is missing; the message names the folders searched.
            ValueError: If data are damaged, or there are too few examples for the split.
        """

    def raw_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of one input as :meth:`preprocess` takes it; by default unchanged.

        Args:
            shape: Shape of one input of a model.
        """
        return shape

    def preprocess(self, x: Tensor) -> Tensor:
        """Convert inputs from the format of the data set to that of a model; by default unchanged.

        A trained model that is used outside the federation applies this function first.

        Args:
            x: Batch of inputs as the data set holds them, such as images as bytes.
        """
        return x
