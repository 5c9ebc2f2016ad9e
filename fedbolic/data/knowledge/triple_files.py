"""Triples read from files: tables with three columns, and N-Triples."""

import contextlib
import gzip
import unicodedata
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from fedbolic.core.imports import extra
from fedbolic.core.reading import Stream, lines, open_file, refuse_larger, table_rows
from fedbolic.data.knowledge.triples import NamedTriple

TRIPLE_ENDINGS = (".tsv", ".txt", ".tsv.gz", ".txt.gz", ".nt")
"""Endings of the files that hold triples."""

MOST_TRIPLES = 2**25
"""Maximum number of lines of a file with a triple, which may repeat earlier ones."""


def named_triples(path: Path) -> Iterator[NamedTriple]:
    """Triples of names in a file, in its order. Names are in Unicode's form NFC.

    Args:
        path: A table with a head, a relation and a tail on every line, separated by tabs, which
            ends in ``.tsv``, ``.txt``, or one of these and ``.gz``; or N-Triples, ``.nt``, with the
            extra ``ontologies``. Triples of N-Triples with a literal or a blank node, which have no
            names, are left out.

    Raises:
        MissingExtraError: If the file is N-Triples and its reader is not installed.
        ValueError: If the file has another ending or too many lines, a line has not three columns,
            a name is empty, or the text is damaged.
    """
    if not path.name.endswith(TRIPLE_ENDINGS):
        raise ValueError(f"{path} must end in one of {', '.join(TRIPLE_ENDINGS)}")
    found = _resources(path) if path.suffix == ".nt" else _table(path)
    for number, triple in enumerate(found):
        if number >= MOST_TRIPLES:
            raise ValueError(
                f"{path} has more than {MOST_TRIPLES} triples: leave repeated ones out"
            )
        head, relation, tail = (unicodedata.normalize("NFC", name.strip()) for name in triple)
        if not (head and relation and tail):
            raise ValueError(f"{path}: triple {number + 1} has an empty name: {triple!r:.200}")
        yield head, relation, tail


def _table(path: Path) -> Iterator[NamedTriple]:
    with contextlib.ExitStack() as stack:
        file: Stream = stack.enter_context(open_file(path))
        if path.suffix == ".gz":
            file = stack.enter_context(gzip.GzipFile(fileobj=file))
        texts = lines(file, str(path))
        for line, row in table_rows(texts, str(path), delimiter="\t", quoted=False):
            if len(row) != 3:
                raise ValueError(
                    f"{path}, line {line}: expected a head, a relation and a tail, found "
                    f"{len(row)} columns"
                )
            yield row[0], row[1], row[2]


def _resources(path: Path) -> Iterator[NamedTriple]:
    with extra("ontologies", str(path), "save it as .tsv"):
        rdflib = import_module("rdflib")
    graph = rdflib.Graph()
    try:
        with open_file(path) as file:
            refuse_larger(path.stat().st_size, path)
            graph.parse(file=file, format="nt")
    except Exception as error:  # the parser raises its own errors
        text = " ".join(str(error).split())
        raise ValueError(f"{path} is damaged or no N-Triples file: {text:.300}") from error
    named = [t for t in graph if all(isinstance(name, rdflib.URIRef) for name in t)]
    yield from sorted((str(head), str(relation), str(tail)) for head, relation, tail in named)
