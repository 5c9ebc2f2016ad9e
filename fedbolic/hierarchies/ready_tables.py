"""Ready tables: published hierarchies that are laid out once and kept."""

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fedbolic.core import check
from fedbolic.core.log import logger
from fedbolic.data import GoogleProducts, HierarchySet, Nouns
from fedbolic.data.files.published_files import RemoteFile, locate
from fedbolic.hierarchies.embedding import Embedding
from fedbolic.hierarchies.embedding_files import EMBEDDING_FORMAT
from fedbolic.hierarchies.tree_layout import TreeLayout


@dataclass(frozen=True)
class ReadyTable:
    """A published hierarchy, its layout, and the file of both where it is published.

    Args:
        hierarchy: The hierarchy.
        layout: Its layout.
        checksum: SHA-256 of the published file; ``None`` if there is none.
        urls: Addresses of the published file.
    """

    hierarchy: HierarchySet
    layout: TreeLayout
    checksum: str | None = None
    urls: tuple[str, ...] = ()

    def make(self, *, download: bool = True) -> Embedding:
        """Read the hierarchy and lay it out.

        Args:
            download: As for :meth:`~fedbolic.data.HierarchySet.read`.
        """
        hierarchy = self.hierarchy.read(None, download=download)
        return Embedding.of(hierarchy, self.layout.place(hierarchy))

    def file(self, name: str) -> RemoteFile:
        """The file below a data folder, which is another one if anything about it changes.

        Args:
            name: Name of the table.
        """
        made_by = f"{self.hierarchy} {self.layout} {EMBEDDING_FORMAT}"
        digest = hashlib.sha256(made_by.encode()).hexdigest()[:8]
        return RemoteFile(f"embeddings/{name}-{digest}.npz", self.checksum, self.urls)


READY = {
    "wordnet-nouns": ReadyTable(Nouns(), TreeLayout()),
    "google-products": ReadyTable(GoogleProducts(), TreeLayout()),
}
"""Ready tables by name. None is published yet, so they are made where they are used."""


def ready(name: str, *, download: bool = True) -> Embedding:
    """A published hierarchy with places, ready for queries.

    The table is made from the public file at its first use, within seconds, and kept in the user's
    cache; where it is published, it is downloaded instead and its checksum is verified.

    Args:
        name: ``wordnet-nouns``, 82,192 nouns, or ``google-products``, 5,595 categories of products.
        download: Whether to download a file that is neither in the folder named by the environment
            variable ``FEDBOLIC_DATA`` nor in the cache.

    Raises:
        FileNotFoundError: If a file is missing and may not be downloaded.
        ValueError: If there is no such table, or a file is damaged.

    References:
        Miller (1995), doi:10.1145/219717.219748, for WordNet; Google,
        https://support.google.com/merchants/answer/6324436, for its categories.

    Example:
        >>> ready("wordnet-verbs")
        Traceback (most recent call last):
        ValueError: name must be one of wordnet-nouns, google-products, got 'wordnet-verbs'
    """
    check.one_of(READY, name=name)
    table = READY[name]
    published = table.file(name)
    try:
        (path,) = locate(published, root=None, download=download and bool(published.urls))
    except FileNotFoundError:
        path = None
    if path is not None:
        try:
            return Embedding.load(path)
        except ValueError as error:
            raise ValueError(f"{error}; delete it to have it made again") from error
    made = table.make(download=download)
    _keep(made, published)
    return made


def make_ready(name: str, to: Path) -> str:
    """Make a ready table from the public file and write it, as it would be published.

    Args:
        name: As for :func:`ready`.
        to: File that ends in ``.npz`` or ``.safetensors``.

    Returns:
        SHA-256 of the file, which may differ elsewhere by the version of zlib or rounding.

    Raises:
        FileNotFoundError: As :func:`ready`.
        ValueError: As :func:`ready`, or if the file has another ending.
    """
    check.one_of(READY, name=name)
    READY[name].make().save(to, {"name": name})
    return hashlib.sha256(to.read_bytes()).hexdigest()


def _keep(made: Embedding, published: RemoteFile) -> None:
    """Write a table into the user's cache, under its name only when it is complete."""
    from fedbolic.data.files.download import cache

    file = cache() / published.path
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made.save(Path(folder) / file.name)
            (Path(folder) / file.name).replace(file)
    except OSError as error:
        logger.warning("%s cannot be kept, and is made again next time: %s", file, error)
