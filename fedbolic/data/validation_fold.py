"""A data set without its test part, for choices that must not see that part."""

from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import override

from fedbolic.data.contract.dataset import Dataset, OfficialParts
from fedbolic.data.contract.labelled import every_fourth
from fedbolic.data.images.digits import Digits


@dataclass(frozen=True)
class ValidationFold(Dataset):
    """A data set whose training part is split again: every fourth example of each class tests.

    For choices of step sizes and the like in runs whose clients report no scores, such as private
    ones: the server's test set is then made of training examples, and the official test part is not
    used. The split is independent of the run's seed.

    Args:
        dataset: Data set whose test part is left out.

    Example:
        >>> parts = ValidationFold(Digits()).read(None, download=False)
        >>> len(parts.y_train), len(parts.y_test)  # of 1352 and 445
        (1018, 334)
    """

    dataset: Dataset = field(default_factory=Digits)

    @override
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        parts = self.dataset.read(root, download=download)
        test = every_fourth(parts.y_train)
        owners = None
        if parts.owners is not None:  # a client whose examples all test is left out
            owners = parts.owners[~test].unique(return_inverse=True)[1]
        return OfficialParts(
            parts.name,
            *(parts.x_train[~test], parts.y_train[~test]),
            *(parts.x_train[test], parts.y_train[test]),
            num_classes=parts.num_classes,
            class_names=parts.class_names,
            owners=owners,
        )
