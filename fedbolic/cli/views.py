"""Pages about hierarchies, from a run, a taxonomy file or the file of an embedding."""

from pathlib import Path
from typing import Literal

from fedbolic.data import HierarchyFile
from fedbolic.hierarchies import Embedding, TreeLayout
from fedbolic.hierarchies.embedding_tables import is_table
from fedbolic.hierarchies.view import write_view
from fedbolic.run.configuration import SetupError
from fedbolic.run.loading import load

WAYS = ("sectors", "gaps")
"""Layouts in the plane."""

EMBEDDINGS = (".npz", ".safetensors", ".parquet")
"""Endings of the files of embeddings; a ``.csv`` is one by its header."""


def view(
    source: Path,
    to: Path,
    *,
    way: Literal["sectors", "gaps"] = "sectors",
    title: str | None = None,
) -> None:
    """Write a page to look at a hierarchy: of a run, a taxonomy file, or an embedding.

    Args:
        source: Folder of a run; a file of ``Embedding.save``, ``to_csv`` or ``to_parquet``; or a
            taxonomy as :class:`~fedbolic.data.HierarchyFile` reads it, which is laid out in the
            plane.
        to: HTML file to write.
        way: Layout of a taxonomy: ``sectors`` around the origin, or ``gaps``.
        title: Heading of the page; by default the name of the source.

    Raises:
        SetupError: If the run has no embedding.
        OSError: If a file is missing or cannot be written.
        ValueError: If a file is damaged, or its places cannot be shown in the plane.
    """
    write_view(_embedding(source, way), to, title=title or source.resolve().name.partition(".")[0])


def _embedding(source: Path, way: Literal["sectors", "gaps"]) -> Embedding:
    if source.is_dir():
        found = load(source)
        if isinstance(found, Embedding):
            return found
        raise SetupError(f"{source} is a run of a model without nodes: only hierarchies are shown")
    if source.suffix in EMBEDDINGS or (source.suffix == ".csv" and is_table(source)):
        return Embedding.load(source)
    hierarchy = HierarchyFile(source).read(None, download=False)
    return Embedding.of(hierarchy, TreeLayout(way).place(hierarchy))
