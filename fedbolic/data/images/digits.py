"""The small data set of handwritten digits included in scikit-learn."""

from dataclasses import dataclass
from pathlib import Path

import torch
from typing_extensions import override

from fedbolic.core.imports import extra
from fedbolic.data.contract.dataset import Dataset, OfficialParts


@dataclass(frozen=True)
class Digits(Dataset):
    """Handwritten digits: 1,797 grey images of 8 x 8 pixels in 17 levels, 10 classes.

    Needs no download. There is no official test part: every fourth example of each class is used
    for testing (445 examples), independently of the run's seed.

    References:
        Alpaydin and Kaynak (1998), Optical recognition of handwritten digits, UCI repository.
    """

    @override
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        # imported here because it takes a second and other data sets do not need it
        with extra("data", "Digits"):
            from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        x = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
        y = torch.tensor(labels, dtype=torch.int64)
        test = torch.zeros(len(y), dtype=torch.bool)
        for label in range(10):
            test[(y == label).nonzero().flatten()[3::4]] = True
        return OfficialParts("Digits", x[~test], y[~test], x[test], y[test], num_classes=10)
