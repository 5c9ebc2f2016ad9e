"""CIFAR-10 and CIFAR-100, read from the published Python pickles."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor
from typing_extensions import override

from fedbolic.core.reading import read_bytes
from fedbolic.data.contract.dataset import Dataset, OfficialParts
from fedbolic.data.files.pickled import unpickle
from fedbolic.data.files.published_files import RemoteFile, locate, members

# checksums and URLs from torchvision 0.29.2
TEN = RemoteFile(
    "cifar-10-python.tar.gz",
    "c58f30108f718f92721af3b95e74349a",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
)
HUNDRED = RemoteFile(
    "cifar-100-python.tar.gz",
    "eb9058c3a382ffc7106e4002c42a8d85",
    ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
)
TEN_BATCHES = (
    *(f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)),
    "cifar-10-batches-py/test_batch",
)
HUNDRED_BATCHES = ("cifar-100-python/train", "cifar-100-python/test")


@dataclass(frozen=True)
class CIFAR10(Dataset):
    """Photographs: 50,000 + 10,000 colour images of 32 x 32 pixels, 10 classes.

    References:
        Krizhevsky (2009), Learning multiple layers of features from tiny images.
    """

    @override
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        batches = _batches(TEN, TEN_BATCHES, root=root, download=download, labels="labels")
        return _parts("CIFAR10", batches, num_classes=10)


@dataclass(frozen=True)
class CIFAR100(Dataset):
    """Photographs: 50,000 + 10,000 colour images of 32 x 32 pixels, 100 fine classes.

    References:
        Krizhevsky (2009), Learning multiple layers of features from tiny images.
    """

    @override
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        batches = _batches(
            HUNDRED, HUNDRED_BATCHES, root=root, download=download, labels="fine_labels"
        )
        return _parts("CIFAR100", batches, num_classes=100)


Batch = tuple[UInt8[Tensor, "_ 3 32 32"], Int64[Tensor, " _"]]


def read_batch(data: bytes | bytearray, name: str, *, labels: str) -> Batch:
    """Read images and labels from a pickled CIFAR batch without running code in the pickle.

    Args:
        data: Content of the file.
        name: Name of the file in error messages.
        labels: Key of the labels in the pickled dict.

    Raises:
        ValueError: If the content is not a CIFAR batch, or it refers to anything but arrays.
    """
    batch = unpickle(data, name)
    rows, found = (batch.get(key) if isinstance(batch, dict) else None for key in ("data", labels))
    # lists of lists, which a small pickle can nest to any size, are not looked into
    if not isinstance(found, list) or any(type(label) is not int for label in found):
        raise ValueError(f"{name} is not a CIFAR batch: it has no list of integers as {labels}")
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.shape[1:] != (3072,):
        form = f"{rows.dtype} of shape {rows.shape}" if isinstance(rows, np.ndarray) else "none"
        raise ValueError(f"{name} is not a CIFAR batch: expected rows of 3072 bytes, found {form}")
    if len(rows) != len(found) or any(not 0 <= label < 100 for label in found):
        raise ValueError(
            f"{name} is not a CIFAR batch: it has {len(rows)} images, and {len(found)} labels from "
            f"{min(found, default=0)} to {max(found, default=0)}"
        )
    return torch.from_numpy(rows).reshape(-1, 3, 32, 32), torch.tensor(found, dtype=torch.int64)


def _batches(
    archive: RemoteFile, names: Sequence[str], *, root: Path | None, download: bool, labels: str
) -> list[Batch]:
    """The batches in order, read from unpacked files or from the archive."""
    paths = locate(archive, [names], root=root, download=download)
    if len(paths) == 1:
        contents = zip(names, members(paths[0], names), strict=True)
    else:
        contents = ((str(path), read_bytes(path)) for path in paths)
    return [read_batch(data, name, labels=labels) for name, data in contents]


def _parts(name: str, batches: Sequence[Batch], *, num_classes: int) -> OfficialParts:
    """Join all batches but the last for training, and use the last one for testing."""
    x_train, y_train = (torch.cat(parts) for parts in zip(*batches[:-1], strict=True))
    return OfficialParts(name, x_train, y_train, *batches[-1], num_classes)
