"""The small data set of handwritten digits included in scikit-learn."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
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
        table = _table()
        x = torch.tensor(table[:, :-1] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
        y = torch.tensor(table[:, -1], dtype=torch.int64)
        test = torch.zeros(len(y), dtype=torch.bool)
        for label in range(10):
            test[(y == label).nonzero().flatten()[3::4]] = True
        return OfficialParts("Digits", x[~test], y[~test], x[test], y[test], num_classes=10)


def _table() -> NDArray[np.float64]:
    """Pixels and labels by row, as scikit-learn installs them."""
    found = importlib.util.find_spec("sklearn")
    if found is not None and found.origin is not None:
        file = Path(found.origin).parent / "datasets/data/digits.csv.gz"
        if file.is_file():  # a tenth of the time that importing scikit-learn takes
            return np.loadtxt(file, delimiter=",")
    with extra("data", "Digits"):
        from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return np.column_stack((np.asarray(pixels), np.asarray(labels)))
