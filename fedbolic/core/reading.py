"""Bounded reading of files: kind, size and types are checked before memory is taken for them."""

import csv
import gzip
import io
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from typing_extensions import Buffer

if TYPE_CHECKING:  # members of archives are declared as IO, whose check at run time gzip breaks
    Stream = IO[bytes] | io.BufferedIOBase
else:
    Stream = io.BufferedIOBase

LIMIT = "FEDBOLIC_MAX_BYTES"
"""Environment variable with the maximum size of a decoded file in bytes."""

DEFAULT_LIMIT = 2**33
"""Maximum size of a decoded file in bytes without the variable :data:`LIMIT`."""

LONGEST_ROW = 2**22
"""Maximum number of bytes in a row of a table."""

_CHUNK = 2**20


def size_limit() -> int:
    """Maximum size of a decoded file in bytes.

    Raises:
        ValueError: If the environment variable :data:`LIMIT` is no positive integer.
    """
    given = os.environ.get(LIMIT, str(DEFAULT_LIMIT))
    if not (given.isdecimal() and int(given)):
        raise ValueError(f"{LIMIT} must be a number of bytes above 0, got {given!r:.80}")
    return int(given)


def refuse_larger(size: int, name: object, most: int | None = None) -> None:
    """Refuse a size above the maximum.

    Args:
        size: Size in bytes.
        name: Name of the file in the error.
        most: Maximum; ``None`` for :func:`size_limit`.

    Raises:
        ValueError: If the size is larger.
    """
    if most is not None and size > most:
        raise ValueError(f"{name} has {size} bytes, but such a file has at most {most}: replace it")
    if size > (most := size_limit()):
        raise ValueError(
            f"{name} takes {size} bytes once it is decoded, more than {most}: divide it, or set "
            f"{LIMIT} if the memory suffices"
        )


def open_file(path: Path) -> io.BufferedReader:
    """Open a regular file for reading: a pipe would be waited for, and a device may have no end.

    Raises:
        OSError: If the file is missing or cannot be opened.
        ValueError: If it is a folder, a pipe, a socket or a device.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path} is a folder, a pipe or a device: give a regular file")
    # the file may have been replaced since: opening a pipe without this flag waits for a writer
    flag = getattr(os, "O_NONBLOCK", 0)
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | flag))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError(f"{path} is a folder, a pipe or a device: give a regular file")
    return file


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Content of a file.

    Args:
        path: The file.
        most: Maximum size in bytes; ``None`` for :func:`size_limit`.

    Raises:
        OSError: If the file is missing or cannot be opened.
        ValueError: If it is no regular file, or is too large.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        refuse_larger(size, path, most)
        return file.read(size)


def read_text(path: Path, most: int | None = None) -> str:
    """Content of a text file in UTF-8.

    Args:
        path: The file.
        most: Maximum size in bytes; ``None`` for :func:`size_limit`.

    Raises:
        OSError: If the file is missing or cannot be opened.
        ValueError: If it is no regular file, is too large, or is not UTF-8.
    """
    try:
        return read_bytes(path, most).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text in UTF-8: {error}") from error


def gunzip(data: Buffer, name: str, most: int | None = None) -> bytearray:
    """Decompress the content of a gzip file.

    Args:
        data: Content of the file.
        name: Name of the file in errors.
        most: Maximum size of the result in bytes; ``None`` for :func:`size_limit`.

    Raises:
        ValueError: If the file is truncated or damaged, or its content is too large.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            return read_all(stream, name, most)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{name} is truncated or damaged ({error}): download it again") from error


def read_all(stream: Stream, name: str, most: int | None = None) -> bytearray:
    """Content of a stream, in memory that grows with what is there, whatever a header declares.

    Args:
        stream: The stream.
        name: Name of the stream in errors.
        most: Maximum size in bytes; ``None`` for :func:`size_limit`.

    Raises:
        ValueError: If the content is too large.
    """
    data, bound = bytearray(), size_limit() if most is None else most
    while chunk := stream.read(_CHUNK):
        data += chunk
        if len(data) > bound:
            refuse_larger(len(data), name, most)
    return data


def lines(stream: Stream, name: str) -> Iterator[str]:
    """Lines of a text in UTF-8 with their ends.

    Args:
        stream: The text, with or without a byte order mark.
        name: Name of the text in errors.

    Raises:
        ValueError: If a line is not UTF-8, or a line or the text is too long.
    """
    size, bound, number = 0, size_limit(), 0
    try:
        while line := stream.readline(LONGEST_ROW + 1):
            size, number = size + len(line), number + 1
            if len(line) > LONGEST_ROW:
                raise _long_row(name, number)
            if size > bound:
                refuse_larger(size, name)
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            yield from io.StringIO(text, newline="") if "\r" in text else (text,)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name}, line {number}: the text is not UTF-8 ({error.reason}): save it as UTF-8"
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{name} is truncated or damaged ({error}): download it again") from error


def table_rows(
    texts: Iterator[str], name: str, *, delimiter: str, quoted: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every row that is not empty.

    Args:
        texts: Lines of the table, as :func:`lines` gives them.
        name: Name of the table in errors.
        delimiter: Delimiter of the cells.
        quoted: Whether cells may stand in double quotes, and then hold delimiters and line ends.

    Raises:
        ValueError: If a row is too long, or its quotes are wrong.
    """
    taken = 0

    def counted() -> Iterator[str]:
        nonlocal taken
        for line in texts:
            taken += len(line)
            if taken > LONGEST_ROW:
                raise _long_row(name, reader.line_num + 1)
            yield line

    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader(counted(), delimiter=delimiter, quoting=quoting, strict=True)
    try:
        for row in reader:
            taken = 0
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise ValueError(f"{name}, line {reader.line_num}: {error}") from error


def _long_row(name: str, number: int) -> ValueError:
    return ValueError(
        f"{name}, line {number}: a row has more than {LONGEST_ROW} bytes: is it a table?"
    )


def read_arrays(path: Path, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Arrays of a ``.npz`` file by name.

    Args:
        path: The file.
        names: Names of the arrays to read, if they are there; ``None`` for all.

    Raises:
        OSError: If the file is missing or cannot be opened.
        ValueError: If it is no regular file or damaged, or an array is too large or holds objects,
            which are pickles.
    """
    with open_file(path) as raw:
        try:
            with zipfile.ZipFile(raw) as archive:
                members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
                named = {info.filename.removesuffix(".npy"): info for info in members}
                wanted = {n: info for n, info in named.items() if names is None or n in names}
                refuse_larger(sum(info.file_size for info in wanted.values()), path)
                return {n: _array(read_member(archive, info), n) for n, info in wanted.items()}
        except Exception as error:  # a damaged archive may raise anything
            reason = " ".join(str(error).split())
            raise ValueError(
                f"{path} is damaged or not an .npz of plain arrays ({reason}): save numbers with "
                "numpy.savez"
            ) from error


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytearray:
    """Content of a member of a zip archive, stored or deflated.

    Raises:
        ValueError: If it is compressed otherwise, or too large.
        zipfile.BadZipFile: If it is damaged.
    """
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # other decompressors of the standard library expand a block as a whole
        raise ValueError(f"{info.filename} is compressed by method {info.compress_type}")
    with archive.open(info) as stream:
        return read_all(stream, info.filename)


def _array(data: bytearray, name: str) -> np.ndarray:
    """The array in the content of an ``.npy`` file, without a copy."""
    stream = io.BytesIO(memoryview(data)[: 2**16])
    version = np.lib.format.read_magic(stream)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"{name} has the format {version}, but numbers need 1.0 or 2.0")
    shape, by_columns, dtype = readers[version](stream)
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which are pickles: it is not read")
    if min(shape, default=0) < 0 or (not dtype.itemsize and math.prod(shape)):
        raise ValueError(f"{name} has the shape {shape} of {dtype}")
    # an axis of length 0 hides the others, which are sizes of networks later
    refuse_larger(math.prod(max(n, 1) for n in shape) * dtype.itemsize, name)
    size, start = math.prod(shape) * dtype.itemsize, stream.tell()
    if len(data) != start + size:
        raise ValueError(f"{name} has {len(data) - start} bytes for {dtype} of shape {shape}")
    flat = np.frombuffer(data, dtype, offset=start) if size else np.empty(0, dtype)
    return np.require(flat, requirements="A").reshape(shape, order="F" if by_columns else "C")
