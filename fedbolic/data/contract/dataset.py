"""Labelled data sets with official training and test parts."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from fedbolic.core.check import MOST_CLASSES


@dataclass(frozen=True, eq=False)
class OfficialParts:
    """The official training and test parts of a data set.

    Args:
        name: Name of the data set or its file in error messages.
        x_train: Images (channels first, bytes or floats in [0, 1]), or rows of features.
        y_train: Labels of ``x_train``.
        x_test: Test examples in the format of ``x_train``.
        y_test: Labels of ``x_test``.
        num_classes: Number of classes; labels are ``0 .. num_classes - 1``.
        class_names: Name of every class, by label; empty if the classes have no names.
        owners: Number of the client that owns each training example, from 0 without gaps; ``None``
            if the data set names no clients.

    Raises:
        ValueError: If the numbers of labels and examples differ in a part, the examples of the two
            parts differ in shape, a label lies outside ``0 .. num_classes - 1``, or the number of
            class names is not that of classes.
    """

    name: str
    x_train: UInt8[Tensor, "n ..."] | Float[Tensor, "n ..."]
    y_train: Int64[Tensor, " _"]
    x_test: UInt8[Tensor, "m ..."] | Float[Tensor, "m ..."]
    y_test: Int64[Tensor, " _"]
    num_classes: int
    class_names: tuple[str, ...] = ()
    owners: Int64[Tensor, " n"] | None = None

    def __post_init__(self) -> None:
        if self.num_classes > MOST_CLASSES:
            raise ValueError(
                f"{self.name} has {self.num_classes} classes, but {MOST_CLASSES} is the maximum: "
                "give labels a column of classes, not of names or numbers of examples"
            )
        if len(self.class_names) not in (0, self.num_classes):
            raise ValueError(
                f"{self.name}: there are {len(self.class_names)} class names for "
                f"{self.num_classes} classes"
            )
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
    """A labelled data set: published, generated, or given as a file."""

    @abstractmethod
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        """Read the official training and test parts.

        Args:
            root: The only folder to read from; ``None``: first the folder named by the environment
                variable ``FEDBOLIC_DATA``, then the user's cache.
            download: Whether to download a missing file into the cache; ignored if ``root`` is
                given.

        Raises:
            FileNotFoundError: If a file is missing and may not be downloaded.
            ValueError: If a file is damaged.
        """
