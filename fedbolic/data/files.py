"""Finding published files on disk, and unpacking them in memory."""

import gzip
import hashlib
import os
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RemoteFile:
    """A file as its publisher offers it.

    Args:
        path: Where it lies below a data folder, in the layout of its usual loader.
        checksum: Its md5, or its sha256: 32 or 64 hexadecimal digits; ``None``: nobody states one,
            so that it must be read by what runs no code.
        urls: Mirrors, the best first.
    """

    path: str
    checksum: str | None
    urls: tuple[str, ...]


def locate(
    published: RemoteFile,
    unpacked: Sequence[Sequence[str]] = (),
    *,
    root: Path | None,
    download: bool,
) -> tuple[Path, ...]:
    """The published file with its checksum verified, or the files it was unpacked into.

    Args:
        published: What is looked for first, since its checksum is known.
        unpacked: Sets of paths below a data folder; a set does if all its files are in one folder.
        root: As for :meth:`fedbolic.data.Dataset.read`.
        download: As for :meth:`fedbolic.data.Dataset.read`.

    Raises:
        FileNotFoundError: If nothing is found and nothing may be downloaded.
        ValueError: If the published file has another checksum.
    """
    folders = search_path(root)
    for folder in folders:
        if (folder / published.path).is_file():
            verify(folder / published.path, published.checksum)
            return (folder / published.path,)
        for names in unpacked:
            paths = tuple(folder / name for name in names)
            if all(path.is_file() for path in paths):
                return paths
    if root is None:
        # only here: what reads local files must work on machines without pooch
        from fedbolic.data.download import cache, fetch

        if download:
            known = published.checksum
            checksum = None if known is None else f"{algorithm(known)}:{known}"
            try:
                return (fetch(published.urls, checksum, name=published.path),)
            except ConnectionError as error:
                if not folders:
                    raise
                raise FileNotFoundError(
                    f"{_missing(published, unpacked, folders)}, where FEDBOLIC_DATA sends for "
                    "it, and a download failed, too: place it there"
                ) from error
        kept = cache() / published.path
        if kept.is_file():
            verify(kept, published.checksum)
            return (kept,)
        folders = (*folders, cache())
    raise FileNotFoundError(
        f"{_missing(published, unpacked, folders)}: "
        + ("drop root to download it" if root else "set download to fetch it")
        + ", or place it there"
    )


def _missing(
    published: RemoteFile, unpacked: Sequence[Sequence[str]], folders: Sequence[Path]
) -> str:
    others = "".join(f", nor {', '.join(names)}" for names in unpacked)
    return f"{published.path} is not in {' or '.join(map(str, folders))}{others}"


def search_path(root: Path | None) -> tuple[Path, ...]:
    """Folders to look into before the cache: ``root`` alone, or those of ``FEDBOLIC_DATA``."""
    if root is not None:
        return (root,)
    named = os.environ.get("FEDBOLIC_DATA")
    return (Path(named), Path(named) / "torchvision") if named else ()


def algorithm(checksum: str) -> str:
    """Name of the hash function that a checksum is from, by its length."""
    return {32: "md5", 64: "sha256"}[len(checksum)]


def verify(path: Path, checksum: str | None) -> None:
    """Refuse a file with another checksum, if one is known.

    Raises:
        ValueError: Naming the file and both checksums.
    """
    if checksum is None:
        return
    kind = algorithm(checksum)
    with path.open("rb") as file:
        found = hashlib.file_digest(
            file, lambda: hashlib.new(kind, usedforsecurity=False)
        ).hexdigest()
    if found != checksum:
        raise ValueError(
            f"{path} is damaged or another file: expected {kind} {checksum}, found {found}; delete "
            "it and get it again"
        )


def gunzip(data: bytes, name: str) -> bytes:
    """The content of a gzip file.

    Raises:
        ValueError: If it is truncated or damaged, naming it.
    """
    try:
        return gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{name} is truncated or damaged after {len(data)} bytes ({error}): get it again"
        ) from error


def members(archive: Path, names: Sequence[str]) -> list[bytes]:
    """The content of some members of a .zip or .tar.gz archive; nothing is written to disk.

    Raises:
        ValueError: If a member is missing, naming it.
    """
    contents: dict[str, bytes] = {}
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            contents = {name: packed.read(name) for name in names if name in packed.namelist()}
    else:
        with tarfile.open(archive) as packed:
            # in the archive's own order: going back would decompress from the start again
            for member in packed:
                if member.name in names and (file := packed.extractfile(member)):
                    contents[member.name] = file.read()
    missing = [name for name in names if name not in contents]
    if missing:
        raise ValueError(f"{archive} lacks {', '.join(missing)}: get it again")
    return [contents[name] for name in names]
