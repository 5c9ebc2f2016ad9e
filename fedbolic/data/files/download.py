"""Downloads with checksums and mirrors; the only file that imports pooch."""

import sys
from collections.abc import Sequence
from pathlib import Path

from fedbolic.core.imports import extra

with extra("data", "a download"):
    import pooch


def cache() -> Path:
    """The user's cache folder."""
    return Path(pooch.os_cache("fedbolic"))


def fetch(urls: Sequence[str], checksum: str | None, *, name: str) -> Path:
    """A file in the user's cache, downloaded if it is missing or damaged.

    A download is written under a temporary name and renamed only after its checksum is verified.

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
                progressbar=sys.stderr.isatty(),
            )
        except (OSError, ValueError) as error:  # errors of requests are OSErrors
            response = getattr(error, "response", None)
            if response is not None:
                response.close()  # pooch does not close the connection after an HTTP error
            failures.append((url, error))
        else:
            return path
    told = "; ".join(f"{url}: {error}" for url, error in failures)
    wrong = any(not isinstance(error, OSError) for _, error in failures)
    raise (ValueError if wrong else ConnectionError)(
        f"cannot download {name}: try again, or set root to a folder that contains it ({told})"
    )
