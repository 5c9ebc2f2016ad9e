"""Downloads with checksums and mirrors: the only file that imports pooch."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pooch


def cache() -> Path:
    """The user's cache folder."""
    return Path(pooch.os_cache("fedbolic"))


def fetch(urls: Sequence[str], checksum: str | None, *, name: str) -> Path:
    """A file in the user's cache, downloaded if it is not there intact.

    A download is written under a temporary name and takes its own only when its checksum is right.

    Args:
        urls: Mirrors, tried in order until one gives the file.
        checksum: Algorithm and digits, such as ``"md5:5d41..."``; ``None``: not known.
        name: Its path below the cache folder.

    Raises:
        ConnectionError: If no mirror could be reached.
        ValueError: If no mirror gave the file and one gave another file.
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
        except (OSError, ValueError) as error:  # what requests raises is an OSError
            response = getattr(error, "response", None)
            if response is not None:
                response.close()  # pooch leaves the connection of a refusal open
            failures.append((url, error))
        else:
            return path
    told = "; ".join(f"{url}: {error}" for url, error in failures)
    wrong = any(not isinstance(error, OSError) for _, error in failures)
    raise (ValueError if wrong else ConnectionError)(
        f"cannot download {name}: place it in a folder and give that as root, or try again ({told})"
    )
