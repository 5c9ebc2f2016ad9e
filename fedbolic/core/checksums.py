"""Checksums that detect files that were altered, truncated or taken from another run."""

import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from fedbolic.core.reading import open_file, read_bytes

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
        with open_checked(path) as file:
            for chunk in file_chunks(file, path.stat().st_size if size is None else size):
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


def open_checked(path: Path) -> BinaryIO:
    """Open a file of a run.

    Raises:
        OSError: If the file is missing or cannot be opened.
        DamagedError: If it is a folder, a pipe or a device.
    """
    try:
        return open_file(path)
    except ValueError as error:
        raise DamagedError(path, "is no regular file") from error


def open_as_folder(file: Path, mode: str) -> BinaryIO:
    """Open a file that, if it is new, may be read and written by whoever may do so in its folder.

    Args:
        file: The file.
        mode: ``r+b``, ``wb`` or ``wb+``, as of :func:`open`.
    """
    allowed = file.parent.stat().st_mode & 0o666
    flags = os.O_RDWR | (0 if mode == "r+b" else os.O_CREAT | os.O_TRUNC)
    return cast(BinaryIO, os.fdopen(os.open(file, flags, allowed), mode))


def file_chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Read the first ``size`` bytes of a file in chunks of a mebibyte."""
    while size and (chunk := file.read(min(size, 2**20))):
        size -= len(chunk)
        yield chunk
