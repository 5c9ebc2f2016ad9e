"""Pages about hierarchies, from a run, a taxonomy file or the file of an embedding."""

from pathlib import Path
from typing import Literal

from fedbolic.data import HierarchyFile
from fedbolic.hierarchies import Embedding, TreeLayout
from fedbolic.hierarchies.embedding_tables import is_table
from fedbolic.hierarchies.view import write_view
from fedbolic.knowledge import KnowledgeGraph
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
    relation: str | None = None,
    title: str | None = None,
) -> None:
    """Write a page to look at a hierarchy: of a run, a taxonomy file, or an embedding.

    Args:
        source: Folder of a run; a file of ``Embedding.save``, ``to_csv`` or ``to_parquet``, or of
            ``KnowledgeGraph.save``; or a taxonomy as :class:`~fedbolic.data.HierarchyFile` reads
            it, which is laid out in the plane.
        to: HTML file to write.
        way: Layout of a taxonomy: ``sectors`` around the origin, or ``gaps``.
        relation: Relation of a knowledge graph, by whose known triples a tail is the parent of its
            head; ``None`` for other sources.
        title: Heading of the page; by default the name of the source.

    Raises:
        SetupError: If the run has no embedding, or a relation is missing or not asked for.
        OSError: If a file is missing or cannot be written.
        ValueError: If a file is damaged, or its places cannot be shown in the plane.
    """
    shown = _embedding(source, way) if relation is None else related(source, relation)
    write_view(shown, to, title=title or source.resolve().name.partition(".")[0])


def related(source: Path, relation: str) -> Embedding:
    """Entities of a knowledge graph, where a tail is the parent of its head by one relation.

    Args:
        source: Folder of a run, or a file of ``KnowledgeGraph.save``.
        relation: Name of the relation.

    Raises:
        SetupError: If the run is of something else.
        ValueError: If the file is, or there is no such relation, or its triples form a cycle.
    """
    graph = load(source) if source.is_dir() else KnowledgeGraph.load(source)
    if not isinstance(graph, KnowledgeGraph):
        raise SetupError(f"{source} is no knowledge graph: leave the relation out")
    known = graph.known[graph.known[:, 1] == graph.relation(relation)]
    return Embedding(graph.entities, graph.places(relation), known[:, [0, 2]])


def _embedding(source: Path, way: Literal["sectors", "gaps"]) -> Embedding:
    if source.is_dir():
        found = load(source)
        if isinstance(found, Embedding):
            return found
        if isinstance(found, KnowledgeGraph):
            raise SetupError(f"{source} is a knowledge graph: name a relation with --relation")
        raise SetupError(f"{source} is a run of a model without nodes: only hierarchies are shown")
    if source.suffix in EMBEDDINGS or (source.suffix == ".csv" and is_table(source)):
        return Embedding.load(source)
    hierarchy = HierarchyFile(source).read(None, download=False)
    return Embedding.of(hierarchy, TreeLayout(way).place(hierarchy))
