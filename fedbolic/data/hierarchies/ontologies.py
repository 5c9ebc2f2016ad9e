"""Pairs from ontologies: OBO read by fastobo, SKOS read by rdflib."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from fedbolic.core.imports import extra
from fedbolic.core.reading import open_file, refuse_larger


def obo_pairs(path: Path) -> Iterator[tuple[str, ...]]:
    """Pairs ``is_a`` of the terms of an OBO file, by their ids; obsolete terms are left out.

    Ontologies that the file imports are not read.

    Args:
        path: A file that ends in ``.obo``.

    Raises:
        MissingExtraError: If fastobo is not installed.
        ValueError: If the file is damaged or too large.
    """
    with extra("ontologies", str(path), "save it as .tsv"):
        fastobo = import_module("fastobo")
    found: list[tuple[str, ...]] = []
    try:
        with open_file(path) as file:
            refuse_larger(path.stat().st_size, path)
            for frame in fastobo.load(file):
                values = [(clause.raw_tag(), clause.raw_value()) for clause in frame]
                if (
                    isinstance(frame, fastobo.term.TermFrame)
                    and ("is_obsolete", "true") not in values
                ):
                    name = str(frame.id)
                    found.append((name,))
                    found += [(name, parent) for tag, parent in values if tag == "is_a"]
    except (ValueError, SyntaxError) as error:
        raise _damaged(path, "OBO", error) from error
    yield from found


def skos_pairs(path: Path) -> Iterator[tuple[str, ...]]:
    """Pairs ``skos:broader`` of the concepts of an RDF file, or ``skos:narrower`` turned around.

    Concepts are named by their addresses, which are unique where labels need not be.

    Args:
        path: A file that ends in ``.ttl``, ``.rdf`` (RDF/XML) or ``.nt``.

    Raises:
        MissingExtraError: If rdflib is not installed.
        ValueError: If the file is damaged or too large.
    """
    with extra("ontologies", str(path), "save it as .tsv"):
        rdflib = import_module("rdflib")
    skos = rdflib.SKOS
    graph = rdflib.Graph()
    formats = {".ttl": "turtle", ".rdf": "xml", ".nt": "nt"}
    try:
        with open_file(path) as file:
            refuse_larger(path.stat().st_size, path)
            graph.parse(file=file, format=formats[path.suffix])
    except Exception as error:  # parsers of many kinds, which raise their own errors
        raise _damaged(path, "RDF", error) from error
    found = [*graph.subject_objects(skos.broader)]
    found += [(narrow, broad) for broad, narrow in graph.subject_objects(skos.narrower)]
    concepts = graph.subjects(rdflib.RDF.type, skos.Concept, unique=True)
    yield from sorted((str(concept),) for concept in concepts)
    yield from sorted({(str(narrow), str(broad)) for narrow, broad in found})


def _damaged(path: Path, kind: str, error: Exception) -> ValueError:
    text = " ".join(str(error).split())
    return ValueError(f"{path} is damaged or no {kind} file: {text:.300}")
