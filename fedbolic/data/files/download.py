"""Downloads with checksums and mirrors; the only file that imports pooch."""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from fedbolic.core.imports import extra

with extra("data", "a download"):
    import pooch
    import requests
    from tqdm import tqdm

TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as broken."""

_CHUNK = 2**16


def cache() -> Path:
    """The user's cache folder."""
    return Path(pooch.os_cache("fedbolic"))


def fetch(urls: Sequence[str], checksum: str | None, *, name: str) -> Path:
    """A file in the user's cache, downloaded if it is missing or damaged.

    A download is written under a temporary name and renamed only after its checksum is verified. If
    the checksum is known and the connection breaks, the part remains in the cache, and the next
    attempt or the next mirror continues after it.

    Args:
        urls: Mirrors, tried in order until one succeeds.
        checksum: Algorithm and digits, such as ``"md5:5d41..."``; ``None`` if unknown.
        name: Path of the file below the cache folder.

    Raises:
        ConnectionError: If no mirror could be reached.
        ValueError: If no mirror succeeded and at least one sent a file with a wrong checksum.
    """
    path = cache() / name
    failures: list[tuple[str, Exception]] = []
    for url in urls:
        try:
            pooch.retrieve(
                url,
                known_hash=checksum,
                fname=path.name,
                path=path.parent,
                progressbar=sys.stderr.isatty() if checksum is None else False,
                downloader=None if checksum is None else _Resuming(path),  # pyright: ignore[reportArgumentType]
            )
        except (OSError, ValueError) as error:  # errors of requests are OSErrors
            response = getattr(error, "response", None)
            if response is not None:
                response.close()  # pooch does not close the connection after an HTTP error
            failures.append((url, error))
        else:
            return path
    reasons = "; ".join(f"{url}: {error}" for url, error in failures)
    wrong = any(not isinstance(error, OSError) for _, error in failures)
    raise (ValueError if wrong else ConnectionError)(
        f"cannot download {name}: try again, or set root to a folder that contains it ({reasons})"
    )


class _Resuming:
    """Download that continues as long as each connection brings something, for :mod:`pooch`.

    Args:
        path: The file in the cache; its part lies next to it.
    """

    def __init__(self, path: Path) -> None:
        self.part = path.with_name(f"{path.name}.part")

    def __call__(self, url: str, output: str, _: object) -> None:
        """Download to a file, which the part becomes until the end: other processes have theirs."""
        file = Path(output)
        with contextlib.suppress(FileNotFoundError):
            self.part.replace(file)
        try:
            while True:
                before = file.stat().st_size
                try:
                    return _continue(url, file, before)
                except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError):
                    if file.stat().st_size <= before:
                        raise
        except BaseException:
            if file.stat().st_size:
                file.replace(self.part)
            raise


def _continue(url: str, output: Path, start: int) -> None:
    """Request the rest of a file after its first bytes; a server may send all of it again."""
    # compressed on the way, it could not be continued
    asked = {"Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
    with requests.get(url, headers=asked, stream=True, timeout=TIMEOUT) as reply:
        if start and reply.status_code == requests.codes.requested_range_not_satisfiable:
            output.write_bytes(b"")  # it is complete but wrong, or longer than the file
            return _continue(url, output, 0)
        reply.raise_for_status()
        start = start if reply.status_code == requests.codes.partial_content else 0
        total = start + int(reply.headers.get("Content-Length", 0)) or None
        with (
            output.open("ab" if start else "wb") as file,
            tqdm(total=total, initial=start, unit="B", unit_scale=True, disable=None) as bar,
        ):
            for chunk in reply.iter_content(_CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
    return None
