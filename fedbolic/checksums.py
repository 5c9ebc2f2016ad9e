"""Files that cannot be altered, cut or taken from another run without being noticed."""

import hashlib
import os
import pickle
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

SEAL = b"fedbolic SHA-256 "
"""Begins the comment of a checkpoint, a zip archive; the digest of all before the comment follows.
"""


class DamagedError(ValueError):
    """A file is not what was written.

    Args:
        file: Which.
        fault: What is wrong with it; it follows its name.
    """

    def __init__(self, file: Path, fault: str = "is damaged: it is not what was written") -> None:
        super().__init__(f"{file} {fault}; put back a copy, or begin anew with --overwrite")

    @classmethod
    def of_size(cls, file: Path, before: int) -> "DamagedError":
        """The error about a file that has lost bytes."""
        size = file.stat().st_size if file.exists() else 0
        return cls(file, f"has {size} bytes and had {before} when the run was saved")


@dataclass(frozen=True)
class Grown:
    """The length of a file that grows, and the CRC-32 of all that it holds."""

    size: int = 0
    checksum: int = 0

    @classmethod
    def of(cls, path: Path, size: int | None = None) -> "Grown":
        """The length and checksum of a file.

        Args:
            path: Of the file.
            size: Of its first bytes that count; ``None``: all.
        """
        found = cls()
        with path.open("rb") as file:
            for chunk in _chunks(file, path.stat().st_size if size is None else size):
                found = found.after(chunk)
        return found

    def after(self, text: bytes) -> "Grown":
        """With ``text`` at its end."""
        return Grown(self.size + len(text), zlib.crc32(text, self.checksum))

    def cut(self, path: Path) -> None:
        """Cut a file back to this.

        Args:
            path: Of the file.

        Raises:
            DamagedError: If it does not begin so.
        """
        if not path.exists() or path.stat().st_size < self.size:
            raise DamagedError.of_size(path, self.size)
        if Grown.of(path, self.size) != self:
            raise DamagedError(path)
        os.truncate(path, self.size)


class _Hashed:
    """A file whose digest is taken while it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest = file, hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


def save_sealed(value: dict[str, Any], file: BinaryIO) -> None:
    """Save as torch does, with a checksum in the comment that a zip archive may have at its end.

    Args:
        value: What torch can save.
        file: Empty, open to be read and written.
    """
    hashed = _Hashed(file)
    torch.save(value, hashed)  # type: ignore[arg-type]  # it asks for no more than these two
    comment = SEAL + hashed.digest.hexdigest().encode()
    file.seek(-2, os.SEEK_END)  # the length of the comment, 0
    file.write(struct.pack("<H", len(comment)) + comment)


def load_sealed(path: Path) -> dict[str, Any]:
    """Load what :func:`save_sealed` saved.

    Args:
        path: Of the file.

    Raises:
        DamagedError: If it is anything else.
    """
    length = len(SEAL) + 64
    with path.open("rb") as file:
        body = path.stat().st_size - length - 2
        digest = hashlib.sha256()
        for chunk in _chunks(file, max(body, 0)):
            digest.update(chunk)
        digest.update(bytes(2))
        size, comment = file.read(2), file.read()
    if not comment.startswith(SEAL):
        raise DamagedError(
            path, "has no checksum: it is damaged, or an earlier version of fedbolic wrote it"
        )
    if (size, comment) != (struct.pack("<H", length), SEAL + digest.hexdigest().encode()):
        raise DamagedError(path)
    try:
        return torch.load(path, weights_only=True)
    except pickle.UnpicklingError as error:
        raise DamagedError(path, f"holds what no checkpoint does: {error}") from error


def _chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The first ``size`` bytes of a file, a mebibyte at a time."""
    while size and (chunk := file.read(min(size, 2**20))):
        size -= len(chunk)
        yield chunk
