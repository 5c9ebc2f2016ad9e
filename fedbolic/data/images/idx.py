"""MNIST and related data sets, read from the published IDX files."""

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from typing_extensions import override

from fedbolic.core.reading import gunzip, read_bytes
from fedbolic.data.contract.dataset import Dataset, OfficialParts
from fedbolic.data.files.published_files import RemoteFile, locate, members

# checksums and mirrors from torchvision 0.29.2
_STEMS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
MNIST_MD5 = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
FASHION_MIRRORS = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)
FASHION_MD5 = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
EMNIST = RemoteFile(
    "EMNIST/raw/gzip.zip",
    "58c8d27c78d21e728a6bc7b3cc06412e",
    ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
)
LETTERS_STEMS = (
    "emnist-letters-train-images-idx3-ubyte",
    "emnist-letters-train-labels-idx1-ubyte",
    "emnist-letters-test-images-idx3-ubyte",
    "emnist-letters-test-labels-idx1-ubyte",
)


@dataclass(frozen=True)
class MNIST(Dataset):
    """Handwritten digits: 60,000 + 10,000 grey images of 28 x 28 pixels, 10 classes.

    References:
        LeCun et al. (1998), Gradient-based learning applied to document recognition.
    """

    @override
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        files = _published("MNIST", MNIST_MIRRORS, md5s=MNIST_MD5)
        return _parts("MNIST", _contents(files, root=root, download=download), num_classes=10)


@dataclass(frozen=True)
class FashionMNIST(Dataset):
    """Photographs of clothes: 60,000 + 10,000 grey images of 28 x 28 pixels, 10 classes.

    References:
        Xiao et al. (2017), arXiv:1708.07747.
    """

    @override
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        files = _published("FashionMNIST", FASHION_MIRRORS, md5s=FASHION_MD5)
        contents = _contents(files, root=root, download=download)
        return _parts("FashionMNIST", contents, num_classes=10)


@dataclass(frozen=True)
class EMNISTLetters(Dataset):
    """Handwritten letters: 124,800 + 20,800 grey images of 28 x 28 pixels, 26 classes.

    The published labels 1 .. 26 are read as 0 .. 25. The images keep their published orientation:
    compared with MNIST, they are transposed. The download contains all of EMNIST (562 MB).

    References:
        Cohen et al. (2017), arXiv:1702.05373.
    """

    @override
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        plain = [f"EMNIST/raw/{stem}" for stem in LETTERS_STEMS]
        packed = [f"{name}.gz" for name in plain]
        paths = locate(EMNIST, [plain, packed], root=root, download=download)
        if len(paths) == 1:
            inside = [f"gzip/{stem}.gz" for stem in LETTERS_STEMS]
            contents = list(zip(inside, members(paths[0], inside), strict=True))
        else:
            contents = [(str(path), read_bytes(path)) for path in paths]
        contents = [
            (name, _unpacked(data, name) if name.endswith(".gz") else data)
            for name, data in contents
        ]
        return _parts("EMNISTLetters", contents, num_classes=26, first_label=1)


def read_idx(data: bytes | bytearray, name: str, *, num_axes: int) -> UInt8[Tensor, "..."]:
    """Parse the array of bytes in an IDX file.

    The file consists of two zero bytes, 8 for unsigned bytes, the number of axes, the length of
    every axis (32 bits, big-endian), and the elements in row-major order.

    Args:
        data: Content of the file.
        name: Name of the file in error messages.
        num_axes: Number of axes: 3 for images, 1 for labels.

    Raises:
        ValueError: If the content is not such an array, is truncated, or is too long.

    Example:
        >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "two", num_axes=1)
        tensor([7, 9], dtype=torch.uint8)
    """
    magic = bytes([0, 0, 8, num_axes])
    if data[:4] != magic:
        raise ValueError(
            f"{name} is not an IDX file of bytes with {num_axes} axes: expected it to begin with "
            f"{magic.hex()}, found {data[:4].hex() or 'nothing'}"
        )
    start = 4 + 4 * num_axes
    shape = struct.unpack(f">{num_axes}I", data[4:start].ljust(4 * num_axes, b"\0"))
    expected = start + math.prod(shape)
    if len(data) != expected:
        raise ValueError(
            f"{name} is truncated or damaged: expected {expected} bytes, found {len(data)}"
        )
    # copied because torch warns about read-only buffers
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy())


def _unpacked(data: bytes | bytearray, name: str) -> bytearray:
    """Content of a gzipped IDX file, of which no more is decompressed than its head declares."""
    try:
        head = zlib.decompressobj(wbits=31).decompress(data[: 2**16], 4 + 4 * 3)
    except zlib.error:
        head = b""  # the whole is refused below
    num_axes = min(head[3], 3) if len(head) == 4 + 4 * 3 else 0
    shape = struct.unpack_from(f">{num_axes}I", head, 4) if num_axes else (0,)
    return gunzip(data, name, 4 + 4 * 3 + math.prod(shape))


def _published(folder: str, mirrors: Sequence[str], *, md5s: Sequence[str]) -> list[RemoteFile]:
    """The four files of a data set in MNIST's layout."""
    return [
        RemoteFile(
            f"{folder}/raw/{stem}.gz", md5, tuple(f"{mirror}{stem}.gz" for mirror in mirrors)
        )
        for stem, md5 in zip(_STEMS, md5s, strict=True)
    ]


def _contents(
    files: Sequence[RemoteFile], *, root: Path | None, download: bool
) -> list[tuple[str, bytes | bytearray]]:
    """Name and unpacked content of each file."""
    contents = []
    for file in files:
        unpacked = [[file.path.removesuffix(".gz")]]
        (path,) = locate(file, unpacked, root=root, download=download)
        data = read_bytes(path)
        contents.append((str(path), _unpacked(data, str(path)) if path.suffix == ".gz" else data))
    return contents


def _parts(
    name: str,
    contents: Sequence[tuple[str, bytes | bytearray]],
    *,
    num_classes: int,
    first_label: int = 0,
) -> OfficialParts:
    """Build the data set from its four arrays; grey images get a channel axis."""
    x_train, y_train, x_test, y_test = (
        read_idx(data, file, num_axes=num_axes)
        for (file, data), num_axes in zip(contents, (3, 1, 3, 1), strict=True)
    )
    return OfficialParts(
        name,
        x_train.unsqueeze(1),
        y_train.long() - first_label,
        x_test.unsqueeze(1),
        y_test.long() - first_label,
        num_classes,
    )
