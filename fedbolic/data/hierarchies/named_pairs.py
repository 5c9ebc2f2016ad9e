"""Pairs of names of a descendant and an ancestor from tables, JSON and ontologies."""

import contextlib
import gzip
import json
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from fedbolic.core.check import at_least
from fedbolic.core.reading import Stream, gunzip, lines, open_file, read_bytes, table_rows
from fedbolic.data.hierarchies.ontologies import obo_pairs, skos_pairs

NodeNames: TypeAlias = tuple[str, ...]
"""A descendant and an ancestor; a single name is a node without a pair."""

DELIMITERS = {".tsv": "\t", ".csv": ","}

ONTOLOGIES: dict[str, Callable[[Path], Iterator[NodeNames]]] = {
    ".obo": obo_pairs,
    **dict.fromkeys((".ttl", ".rdf", ".nt"), skos_pairs),
}
"""Readers of ontologies by the ending of the file."""

ENDINGS = (*DELIMITERS, ".json", *(f"{ending}.gz" for ending in (*DELIMITERS, ".json")))
"""Endings of the files that are read without an extra."""

MOST_LINES = 2**25
"""Maximum number of lines with a pair, which may repeat earlier ones."""

_HEADS = frozenset(
    pair
    for names in (
        *(("id1", "id2"), ("child", "parent"), ("descendant", "ancestor"), ("source", "target")),
        *(("hyponym", "hypernym"), ("from", "to"), ("head", "tail"), ("u", "v"), ("i", "j")),
        *(("node1", "node2"), ("src", "dst"), ("below", "above"), ("specific", "general")),
    )
    for pair in (names, names[::-1])
)
"""Usual names of the two columns, in lower case and either order."""

PairColumns: TypeAlias = tuple[int | str, int | str]


def named_pairs(
    path: Path, columns: PairColumns = (0, 1), *, header: bool | None = None
) -> Iterator[NodeNames]:
    """Pairs of names in a file, in its order, and the names of nodes without a pair.

    Names are in Unicode's form NFC.

    Args:
        path: A file as for :func:`~fedbolic.data.read_hierarchy`.
        columns: Columns of the descendant and of the ancestor; for tables.
        header: Whether the first line holds the names of the columns; for tables.

    Raises:
        ValueError: As :func:`~fedbolic.data.read_hierarchy`.
    """
    packed = path.suffix == ".gz"
    ending = Path(path.stem).suffix if packed else path.suffix
    if ending in ONTOLOGIES and not packed:
        found = ONTOLOGIES[ending](path)
    elif ending == ".json":
        found = _parents(path, packed=packed)
    elif ending in DELIMITERS:
        found = _table(path, ending, columns, header=header)
    else:
        raise ValueError(f"{path} must end in one of {', '.join((*ENDINGS, *ONTOLOGIES))}")
    for number, names in enumerate(found):
        if number >= MOST_LINES:
            raise ValueError(f"{path} has more than {MOST_LINES} pairs: leave repeated ones out")
        # holders must not differ by the bytes of an accent
        yield tuple(unicodedata.normalize("NFC", name) for name in names)


def _table(
    path: Path, ending: str, columns: PairColumns, *, header: bool | None
) -> Iterator[NodeNames]:
    with contextlib.ExitStack() as stack:
        file: Stream = stack.enter_context(open_file(path))
        if path.suffix == ".gz":
            file = stack.enter_context(gzip.GzipFile(fileobj=file))
        numbered = table_rows(
            lines(file, str(path)),
            str(path),
            delimiter=DELIMITERS[ending],
            quoted=ending == ".csv",
        )
        rows = ((line, [cell.strip() for cell in row]) for line, row in numbered)
        first = next(rows, None)
        if first is None:
            return
        line, cells = first
        places = [_place(column, cells, f"{path}, line {line}") for column in columns]
        if places[0] == places[1]:
            raise ValueError(f"columns must be two different ones, got {columns}")
        named = any(isinstance(column, str) for column in columns)
        if not (named or (_is_header(cells, places) if header is None else header)):
            yield _pair(cells, places, f"{path}, line {line}")
        for line, row in rows:
            if len(row) != len(cells):
                raise ValueError(
                    f"{path}, line {line}: expected {len(cells)} columns, as in the first line, "
                    f"found {len(row)}"
                )
            yield _pair(row, places, f"{path}, line {line}")


def _is_header(cells: list[str], places: list[int]) -> bool:
    """True for a first line of usual column names, which would be a pair of two more nodes."""
    return tuple(cells[place].lower() for place in places) in _HEADS


def _place(column: int | str, cells: list[str], where: str) -> int:
    """Position of a column that is given by its position or its name."""
    if isinstance(column, str):
        if column not in cells:
            raise ValueError(
                f"{where}: there is no column {column!r} among {', '.join(cells):.400}"
            )
        return cells.index(column)
    at_least(0, column=column)
    if column >= len(cells):
        raise ValueError(
            f"{where}: there is no column {column}, as positions are 0 .. {len(cells) - 1}: "
            "cells are separated by commas, in a .tsv by tabs"
        )
    return column


def _pair(row: list[str], places: list[int], where: str) -> NodeNames:
    descendant, ancestor = (row[place] for place in places)
    if not (descendant and ancestor):
        raise ValueError(
            f"{where}: expected two names, found {descendant!r:.80} and {ancestor!r:.80}"
        )
    return descendant, ancestor


def _parents(path: Path, *, packed: bool) -> Iterator[NodeNames]:
    """Pairs of an object in JSON that maps every name to its parent, its parents or null."""
    data = read_bytes(path)
    try:
        text = (gunzip(data, str(path)) if packed else data).decode("utf-8-sig")
        found = json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, path))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON in UTF-8: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must be an object of names and parents, got a {_kind(found)}")
    for child, given in found.items():
        parents = given if isinstance(given, list) else [] if given is None else [given]
        names = [name.strip() if isinstance(name, str) else "" for name in (child, *parents)]
        if not all(names):
            raise ValueError(
                f"{path}: {child!r:.80} must have null, a name or a list of names as parents, got "
                f"{given!r:.80}"
            )
        yield names[0], *names[1:2]
        yield from ((names[0], parent) for parent in names[2:])


def _once(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"{path}: {twice!r:.80} is given twice: list its parents in one entry")
    return found


def _kind(found: object) -> str:
    return "list" if isinstance(found, list) else type(found).__name__
