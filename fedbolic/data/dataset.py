"""Labelled data sets with an official training and test part."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float, Int64, UInt8
from torch import Tensor


@dataclass(frozen=True, eq=False)
class OfficialParts:
    """The official parts of a data set, as read.

    Args:
        name: What errors call it: the data set or its file.
        x_train: Images (channels first, bytes or floats in [0, 1]), or rows of features.
        y_train: Their labels.
        x_test: As ``x_train``.
        y_test: Their labels.
        num_classes: Labels are the integers below it.

    Raises:
        ValueError: If a part has another number of labels than of examples, the parts' examples
            differ in shape, or a label lies outside ``0 .. num_classes - 1``.
    """

    name: str
    x_train: UInt8[Tensor, "n ..."] | Float[Tensor, "n ..."]
    y_train: Int64[Tensor, " _"]
    x_test: UInt8[Tensor, "m ..."] | Float[Tensor, "m ..."]
    y_test: Int64[Tensor, " _"]
    num_classes: int

    def __post_init__(self) -> None:
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise ValueError(
                f"{self.name}: training examples have shape {tuple(self.x_train.shape[1:])}, test "
                f"examples {tuple(self.x_test.shape[1:])}: they must agree"
            )
        for part, x, y in (
            ("train", self.x_train, self.y_train),
            ("test", self.x_test, self.y_test),
        ):
            if len(x) != len(y):
                raise ValueError(
                    f"{self.name}: the {part} part has {len(x)} examples but {len(y)} labels"
                )
            wrong = ((y < 0) | (y >= self.num_classes)).nonzero()
            if len(wrong):
                at = int(wrong[0])
                raise ValueError(
                    f"{self.name}: label {int(y[at])} of {part} example {at} does not lie in "
                    f"0 .. {self.num_classes - 1}"
                )


class Dataset(ABC):
    """A labelled data set that somebody published, or that lies in a file."""

    @abstractmethod
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        """The official training and test part.

        Args:
            root: The folder to read from, and nothing else; ``None``: the folder named by
                ``FEDBOLIC_DATA`` if that is set, then the user's cache.
            download: Whether a file that is not there is downloaded into the cache; never with
                ``root``.

        Raises:
            FileNotFoundError: If a file is missing and may not be downloaded.
            ValueError: If a file is damaged.
        """
