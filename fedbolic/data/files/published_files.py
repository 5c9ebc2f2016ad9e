"""Lookup of published files on disk, and of files in archives."""

import hashlib
import os
import tarfile
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbolic.core.reading import open_file, read_all, read_member


@dataclass(frozen=True)
class RemoteFile:
    """A published file: its path, checksum and download mirrors.

    Args:
        path: Path below a data folder, in the layout of the data set's usual loader.
        checksum: MD5 or SHA-256 digest of 32 or 64 hexadecimal digits. ``None`` if none is
            published; such a file must be read without running code in it.
        urls: Download mirrors, the preferred one first.
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
    """Find the published file and verify its checksum, or find the files unpacked from it.

    Args:
        published: The file to look for first, because its checksum can be verified.
        unpacked: Alternative sets of paths below a data folder. A set is accepted if one folder
            contains all of its files.
        root: As for :meth:`fedbolic.data.Dataset.read`.
        download: As for :meth:`fedbolic.data.Dataset.read`.

    Raises:
        FileNotFoundError: If nothing is found and downloading is not allowed.
        ValueError: If the checksum of the published file is wrong.
    """
    folders = search_path(root)
    for folder in folders:
        if (file := folder / published.path).is_file():
            verify(file, published.checksum)
            return (file,)
        for names in unpacked:
            paths = tuple(folder / name for name in names)
            if all(path.is_file() for path in paths):
                return paths
    if root is None:
        # imported here so that local files can be read without pooch
        from fedbolic.data.files.download import cache

        if download:
            try:
                return (_downloaded(published),)
            except ConnectionError as error:
                if not folders:
                    raise
                raise FileNotFoundError(
                    f"{_missing(published, unpacked, folders)}, the location given by "
                    "FEDBOLIC_DATA, and the download failed, too: place it there"
                ) from error
        if (kept := cache() / published.path).is_file():
            verify(kept, published.checksum)
            return (kept,)
        folders = (*folders, cache())
    advice = "drop root to download it" if root else "set download to fetch it"
    missing = _missing(published, unpacked, folders)
    raise FileNotFoundError(f"{missing}: {advice}, or place it there")


def _downloaded(published: RemoteFile) -> Path:
    from fedbolic.data.files.download import fetch

    known = published.checksum
    checksum = None if known is None else f"{algorithm(known)}:{known}"
    return fetch(published.urls, checksum, name=published.path)


def _missing(
    published: RemoteFile, unpacked: Sequence[Sequence[str]], folders: Sequence[Path]
) -> str:
    others = "".join(f", nor {', '.join(names)}" for names in unpacked)
    return f"{published.path} is not in {' or '.join(map(str, folders))}{others}"


def search_path(root: Path | None) -> tuple[Path, ...]:
    """Folders to search before the cache: ``root`` alone, or those given by ``FEDBOLIC_DATA``."""
    if root is not None:
        return (root,)
    named = os.environ.get("FEDBOLIC_DATA")
    return (Path(named), Path(named) / "torchvision") if named else ()


def find_given(path: Path, root: Path | None, *, kind: str) -> Path:
    """Find a file given by the user; without a root, in the working directory last.

    Args:
        path: The file, or its path below one of the folders.
        root: The only folder to search; ``None`` for those given by ``FEDBOLIC_DATA`` and the
            working directory.
        kind: Description of such a file in the error.

    Raises:
        FileNotFoundError: If no folder contains it; the message names the folders.
    """
    folders = search_path(root) if root else (*search_path(None), Path())
    for folder in folders:
        if (folder / path).is_file():
            return folder / path
    raise FileNotFoundError(
        f"{path} is not in {' or '.join(str(folder.absolute()) for folder in folders)}: give the "
        f"path of an existing {kind}, or set FEDBOLIC_DATA"
    )


def files_of_holders(
    holders: Path | str | Mapping[str, Path | str],
    root: Path | None,
    *,
    kind: str,
    endings: Sequence[str],
    others: Collection[Path] = (),
) -> list[Path]:
    """One file a holder, in ascending order of the holders' names.

    Args:
        holders: Folder with the files, named after the holders; or files by holder.
        root: As for :func:`find_given`.
        kind: Contents of such a file, in errors.
        endings: Endings of the files' names; a folder's other files are passed over.
        others: Files of the folder that belong to no holder.

    Raises:
        FileNotFoundError: If there is no such folder or file, or no holder in the folder.
        ValueError: If two files are of one holder.
    """
    if not isinstance(holders, Path | str):
        given = (Path(path) for _, path in sorted(holders.items()))
        return [find_given(path, root, kind=kind).resolve() for path in given]
    bases = search_path(root) if root else (*search_path(None), Path())
    folder = next((base / holders for base in bases if (base / holders).is_dir()), None)
    if folder is None:
        raise FileNotFoundError(f"there is no folder {holders}: place one file a holder there")
    found: dict[str, Path] = {}
    for path in sorted(folder.resolve().iterdir()):
        ending = next((ending for ending in endings if path.name.endswith(ending)), "")
        if not ending or path.name.startswith(".") or path in others:
            continue
        if (holder := path.name.removesuffix(ending)) in found:
            raise ValueError(f"{found[holder]} and {path} are files of one holder: unite them")
        found[holder] = path
    if not found:
        raise FileNotFoundError(
            f"the folder {folder} holds no {kind}: place one file a holder there, which ends in "
            f"one of {', '.join(endings)}"
        )
    return [path for _, path in sorted(found.items())]


def algorithm(checksum: str) -> str:
    """Name of the hash function of a checksum, inferred from the length."""
    return {32: "md5", 64: "sha256"}[len(checksum)]


def verify(path: Path, checksum: str | None) -> None:
    """Check a file against its checksum; ``None`` skips the check.

    Raises:
        ValueError: If the checksum differs; the message names the file and both checksums.
    """
    if checksum is None:
        return
    kind = algorithm(checksum)
    with open_file(path) as file:
        found = hashlib.file_digest(
            file, lambda: hashlib.new(kind, usedforsecurity=False)
        ).hexdigest()
    if found != checksum:
        raise ValueError(
            f"{path} is damaged or another file: expected {kind} {checksum}, found {found}; delete "
            "it and download it again"
        )


def members(archive: Path, names: Sequence[str]) -> list[bytes | bytearray]:
    """Read some members of a .zip or .tar.gz archive into memory.

    Raises:
        ValueError: If the archive is damaged or too large, or a member is missing.
    """
    contents: dict[str, bytes | bytearray] = {}
    try:
        with open_file(archive) as raw:
            if archive.suffix == ".zip":
                with zipfile.ZipFile(raw) as packed:
                    for info in packed.infolist():
                        if info.filename in names:
                            contents[info.filename] = read_member(packed, info)
            else:
                with tarfile.open(fileobj=raw, mode="r:gz") as unpacked:
                    # in the archive's own order: seeking back would decompress from the start again
                    for member in unpacked:
                        if member.name in names and (file := unpacked.extractfile(member)):
                            contents[member.name] = read_all(file, member.name)
    except Exception as error:  # a damaged archive may raise anything
        reason = " ".join(str(error).split())
        raise ValueError(f"{archive} is damaged ({reason}): download it again") from error
    missing = [name for name in names if name not in contents]
    if missing:
        raise ValueError(f"{archive} lacks {', '.join(missing)}: download it again")
    return [contents[name] for name in names]
