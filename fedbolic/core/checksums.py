"""Checksums that detect files that were altered, truncated or taken from another run."""

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import torch

from fedbolic.core.reading import open_file, read_bytes
from fedbolic.core.torch_files import load_torch

SEAL = b"fedbolic SHA-256 "
"""Prefix of the zip comment of a checkpoint; the digest of all preceding bytes follows it."""


_MOST_BYTES = 2**20
"""Maximum size of a table of facts."""


class DamagedError(ValueError):
    """Error about a file whose content is not what was written.

    Args:
        file: The damaged file.
        fault: Predicate of the message, which follows the file's name.
    """

    def __init__(self, file: Path, fault: str = "is damaged: it is not what was written") -> None:
        super().__init__(f"{file} {fault}; restore a copy, or start over with --overwrite")

    @classmethod
    def of_size(cls, file: Path, before: int) -> "DamagedError":
        """Error about a file that is shorter than when it was saved."""
        size = file.stat().st_size if file.exists() else 0
        return cls(file, f"has {size} bytes, but had {before} when the run was saved")


@dataclass(frozen=True)
class Grown:
    """Length and CRC-32 of an append-only file."""

    size: int = 0
    checksum: int = 0

    @classmethod
    def of(cls, path: Path, size: int | None = None) -> "Grown":
        """Length and checksum of a file.

        Args:
            path: The file.
            size: Number of bytes to read from its beginning; ``None`` for all.
        """
        found = cls()
        with _opened(path) as file:
            for chunk in _chunks(file, path.stat().st_size if size is None else size):
                found = found.after(chunk)
        return found

    def after(self, text: bytes) -> "Grown":
        """Length and checksum after ``text`` is appended."""
        return Grown(self.size + len(text), zlib.crc32(text, self.checksum))

    def cut(self, path: Path) -> None:
        """Truncate a file to this length after verifying the checksum.

        Args:
            path: The file.

        Raises:
            DamagedError: If the file is too short, or its beginning has another checksum.
        """
        if not path.exists() or path.stat().st_size < self.size:
            raise DamagedError.of_size(path, self.size)
        if Grown.of(path, self.size) != self:
            raise DamagedError(path)
        os.truncate(path, self.size)


class _Hashed:
    """A writable file that hashes everything written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        self.digest.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def text_digest(content: bytes) -> str:
    """SHA-256 of a configuration in hexadecimal, by which a later edit is detected.

    Args:
        content: The file's bytes.
    """
    return hashlib.sha256(content).hexdigest()


def refuse_edited(config: Path, digest: object) -> None:
    """Refuse a configuration that was edited after its run had started.

    Args:
        config: File of the configuration.
        digest: Its :func:`text_digest` when the run started; ``None`` if an earlier version of
            fedbolic wrote none.

    Raises:
        ValueError: If it was edited.
    """
    if digest is not None and text_digest(config.read_bytes()) != digest:
        raise ValueError(
            f"{config} was edited after the run had started: undo the edit, or start a new "
            f"run with it: `fedbolic run --config {config} --name NAME`"
        )


def save_sealed(value: dict[str, Any], file: BinaryIO) -> None:
    """Save with ``torch.save`` and add a checksum as the comment of the zip archive.

    Args:
        value: Anything that ``torch.load`` can read with ``weights_only=True``.
        file: Empty binary file, open for reading and writing.

    Raises:
        OSError: If the file cannot be written, because the disk is full, for example.
    """
    hashed = _Hashed(file)
    try:
        torch.save(value, hashed)  # type: ignore[arg-type]  # it calls write and flush only
    except RuntimeError as error:  # of torch, about positions in a file that was cut short
        if hashed.error is not None:
            raise hashed.error from error
        raise
    comment = SEAL + hashed.digest.hexdigest().encode()
    file.seek(-2, os.SEEK_END)  # where the length of the empty comment stands
    file.write(struct.pack("<H", len(comment)) + comment)


def load_sealed(
    path: Path,
    *,
    numbers: Mapping[str, Sequence[str]] = MappingProxyType({}),
    device: str | None = None,
) -> dict[str, Any]:
    """Load a file written by :func:`save_sealed` after verifying its checksum.

    Args:
        path: The file.
        numbers: Names of the integers that an entry of the file has.
        device: Device to load tensors to; ``None`` for the one on which they were saved.

    Raises:
        DamagedError: If the checksum is missing or wrong, the file holds more than tensors and
            values of Python's basic types, or ``numbers`` are missing.
    """
    length = len(SEAL) + 64
    with _opened(path) as file:
        body = path.stat().st_size - length - 2
        digest = hashlib.sha256()
        for chunk in _chunks(file, max(body, 0)):
            digest.update(chunk)
        digest.update(bytes(2))
        size, comment = file.read(2), file.read(length + 1)
    if not comment.startswith(SEAL):
        raise DamagedError(
            path, "has no checksum: it is damaged, or an earlier version of fedbolic wrote it"
        )
    if (size, comment) != (struct.pack("<H", length), SEAL + digest.hexdigest().encode()):
        raise DamagedError(path)
    try:
        found = load_torch(path, device=device)
    except ValueError as error:
        raise DamagedError(path, f"holds {error}") from error
    if not isinstance(found, dict):
        raise DamagedError(path, f"holds a {type(found).__name__}, which no checkpoint is")
    for entry, names in numbers.items():
        of_name = found.get(entry)
        if not isinstance(of_name, dict) or any(type(of_name.get(n)) is not int for n in names):
            raise DamagedError(
                path, f"lacks the {entry} of {', '.join(names)}, or is from an earlier version"
            )
    return found


def read_table(file: Path) -> dict[str, Any]:
    """A table of facts about a run, written as JSON.

    Raises:
        OSError: If the file is missing or cannot be opened.
        DamagedError: If the file holds anything else.
    """
    try:
        table = json.loads(read_bytes(file, _MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise DamagedError(file, f"is damaged: {error}") from error
    if not isinstance(table, dict):
        raise DamagedError(file, "is damaged: it holds no table")
    return table


def _opened(path: Path) -> BinaryIO:
    try:
        return open_file(path)
    except ValueError as error:
        raise DamagedError(path, "is no regular file") from error


def _chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Read the first ``size`` bytes of a file in chunks of a mebibyte."""
    while size and (chunk := file.read(min(size, 2**20))):
        size -= len(chunk)
        yield chunk
