"""The small handwritten digits that come with scikit-learn."""

from dataclasses import dataclass
from pathlib import Path

import torch
from typing_extensions import override

from fedbolic.data.dataset import Dataset, OfficialParts


@dataclass(frozen=True)
class Digits(Dataset):
    """Handwritten digits: 1,797 grey images of 8 x 8 in 17 levels, 10 classes; embedded.

    There is no official test part: it is every fourth example of each class (445), whatever the
    seed of the run.

    References:
        Alpaydin and Kaynak (1998), Optical recognition of handwritten digits, UCI repository.
    """

    @override
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        # only here: it takes a second, and whoever reads other data need not wait for it
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        x = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
        y = torch.tensor(labels, dtype=torch.int64)
        test = torch.zeros(len(y), dtype=torch.bool)
        for label in range(10):
            test[(y == label).nonzero().flatten()[3::4]] = True
        return OfficialParts("Digits", x[~test], y[~test], x[test], y[test], num_classes=10)
