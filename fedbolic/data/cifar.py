"""CIFAR-10 and CIFAR-100, read from the published Python pickles."""

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor
from typing_extensions import override

from fedbolic.data.dataset import Dataset, OfficialParts
from fedbolic.data.files import RemoteFile, locate, members

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
        batches = _batches(TEN, TEN_BATCHES, root=root, download=download, labels=b"labels")
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
            HUNDRED, HUNDRED_BATCHES, root=root, download=download, labels=b"fine_labels"
        )
        return _parts("CIFAR100", batches, num_classes=100)


Batch = tuple[UInt8[Tensor, "_ 3 32 32"], Int64[Tensor, " _"]]


def read_batch(data: bytes, name: str, *, labels: bytes) -> Batch:
    """Read images and labels from a pickled CIFAR batch without running code in the pickle.

    Args:
        data: Content of the file.
        name: Name of the file in error messages.
        labels: Key of the labels in the pickled dict.

    Raises:
        ValueError: If the content is not a CIFAR batch, or it refers to anything but arrays.
    """
    try:
        batch = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
        rows = np.asarray(batch[b"data"])
        targets = torch.tensor(batch[labels], dtype=torch.int64)
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(
            f"{name} is damaged or not a CIFAR batch ({type(error).__name__}: {error}): download "
            "it again"
        ) from error
    if rows.dtype != np.uint8 or rows.shape != (len(targets), 3072):
        raise ValueError(
            f"{name} is not a CIFAR batch: expected {len(targets)} rows of 3072 bytes, found "
            f"{rows.dtype} of shape {rows.shape}"
        )
    # copied because torch warns about read-only arrays, and a pickled array may be one
    return torch.from_numpy(rows.copy()).reshape(-1, 3, 32, 32), targets


class _ArraysOnly(pickle.Unpickler):
    """Unpickler that builds NumPy arrays and built-in containers and calls nothing else."""

    @override
    def find_class(self, module: str, name: str) -> object:
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        # numpy.core was renamed in NumPy 2, and importing it warns
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.empty(0).__reduce__()[0]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which may run code")


def _batches(
    archive: RemoteFile, names: Sequence[str], *, root: Path | None, download: bool, labels: bytes
) -> list[Batch]:
    """The batches in order, read from unpacked files or from the archive."""
    paths = locate(archive, [names], root=root, download=download)
    if len(paths) == 1:
        contents = zip(names, members(paths[0], names), strict=True)
    else:
        contents = ((str(path), path.read_bytes()) for path in paths)
    return [read_batch(data, name, labels=labels) for name, data in contents]


def _parts(name: str, batches: Sequence[Batch], *, num_classes: int) -> OfficialParts:
    """Join all batches but the last for training, and use the last one for testing."""
    x_train, y_train = (torch.cat(parts) for parts in zip(*batches[:-1], strict=True))
    return OfficialParts(name, x_train, y_train, *batches[-1], num_classes)
