"""Hierarchies read from files: pairs of names in TSV or CSV, and WordNet's closures."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from typing_extensions import override

from fedbolic.core.check import at_least
from fedbolic.core.reading import lines, open_file, table_rows
from fedbolic.data.files.published_files import RemoteFile, locate
from fedbolic.data.hierarchies.hierarchy import Hierarchy

DELIMITERS = {".tsv": "\t", ".csv": ","}

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

MAMMALS = RemoteFile(
    "hierarchies/mammal_closure.tsv",
    "38d9e1f10180d39c4215e4a1576f203dddeea81736e920d26a3e66316694ed5e",
    (
        "https://raw.githubusercontent.com/lateral/poincare-embeddings/"
        "3a63ede68d12a5cbf59e5de2abeea74ffa01c515/wordnet/mammal_closure.tsv",
    ),
)
"""The closure of WordNet's mammals as published with lateral's implementation."""

NOUNS = RemoteFile("hierarchies/noun_closure.tsv", None, ())
"""The closure of WordNet's nouns, which its script writes and nobody publishes."""

NOUNS_CSV = "hierarchies/noun_closure.csv"
"""The same closure as written by newer versions of the script, with columns id1, id2, weight."""


class HierarchySet(ABC):
    """A data set that is one hierarchy."""

    @abstractmethod
    def read(self, root: Path | None, *, download: bool) -> Hierarchy:
        """Read the whole hierarchy.

        Args:
            root: The only folder to read from; ``None``: first the folder named by the environment
                variable ``FEDBOLIC_DATA``, then the user's cache.
            download: Whether to download a missing file into the cache; ignored if ``root`` is
                given.

        Raises:
            FileNotFoundError: If a file is missing and may not be downloaded.
            ValueError: If a file is damaged.
        """


@dataclass(frozen=True)
class Mammals(HierarchySet):
    """WordNet's mammals: 1181 nouns, and 6541 pairs of a noun and a more general one.

    The pairs are transitively closed. A local root contains ``hierarchies/mammal_closure.tsv``.

    References:
        Nickel and Kiela (2017), arXiv:1705.08039; Miller (1995), doi:10.1145/219717.219748.
    """

    @override
    def read(self, root: Path | None, *, download: bool) -> Hierarchy:
        (path,) = locate(MAMMALS, root=root, download=download)
        return read_hierarchy(path)


@dataclass(frozen=True)
class Nouns(HierarchySet):
    """WordNet's nouns with all pairs of a noun and a more general one, read from a local file.

    The file is ``hierarchies/noun_closure.tsv`` or ``hierarchies/noun_closure.csv`` in a local root
    or in the cache, as written by ``wordnet/transitive_closure.py`` of the repository
    facebookresearch/poincare-embeddings. It is not published, so it has no checksum.

    References:
        Nickel and Kiela (2017), arXiv:1705.08039; Miller (1995), doi:10.1145/219717.219748.
    """

    @override
    def read(self, root: Path | None, *, download: bool) -> Hierarchy:
        try:
            (path,) = locate(NOUNS, [[NOUNS_CSV]], root=root, download=False)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{NOUNS.path} cannot be downloaded and is not in a data folder: write it with "
                "wordnet/transitive_closure.py of facebookresearch/poincare-embeddings and place "
                f"it there ({error})"
            ) from error
        return read_hierarchy(path, columns=("id1", "id2") if path.suffix == ".csv" else (0, 1))


def read_hierarchy(
    path: Path,
    *,
    columns: tuple[int | str, int | str] = (0, 1),
    header: bool = False,
) -> Hierarchy:
    r"""Read the hierarchy in a file with a descendant and an ancestor on every line.

    The pairs stay as they are in the file; use :meth:`Hierarchy.closure` if they are direct edges.
    Nodes are numbered in ascending order of their names, so the order of lines does not matter to
    their numbers. Repeated lines are dropped, and so are pairs of a node with itself, which
    reflexive closures contain; such a node is kept. Empty lines are skipped.

    Args:
        path: A file in UTF-8 that ends in ``.tsv`` (tabs, no quotes) or ``.csv`` (commas, names in
            double quotes allowed).
        columns: Columns of the descendant and of the ancestor: positions from 0, or names in the
            first line.
        header: Whether the first line holds the names of the columns; always so if ``columns`` has
            a name. Otherwise, a first line of usual names, such as ``child,parent``, is refused,
            and one of other names is read as a pair.

    Raises:
        ValueError: If a line has more or fewer columns than the first, an empty name, or damaged
            text, the message names the file and the line; if a column does not exist, the file has
            another ending or no pairs, or the pairs form a cycle.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "cats.csv"
        ...     _ = path.write_text("id1,id2,weight\nlion,cat,1\ncat,mammal,1\n")
        ...     cats = read_hierarchy(path, columns=("id1", "id2"))
        >>> cats.names, cats.pairs.tolist()
        (('cat', 'lion', 'mammal'), [[1, 0], [0, 2]])
    """
    if path.suffix not in DELIMITERS:
        raise ValueError(f"{path} must end in {' or '.join(DELIMITERS)}")
    names, pairs = _numbered(_named_pairs(path, columns, header=header))
    if not names:
        raise ValueError(f"{path} has no pairs: it is empty or truncated")
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    # the first of equal lines stays
    first = np.unique(pairs[:, 0] * len(names) + pairs[:, 1], return_index=True)[1]
    try:
        return Hierarchy(names, torch.from_numpy(pairs[np.sort(first)]))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _numbered(
    named: Iterable[tuple[str, str]],
) -> tuple[tuple[str, ...], Int64[np.ndarray, "n 2"]]:
    """All names in ascending order, and the pairs as positions among them."""
    number: dict[str, int] = {}
    ends = array("q")
    for pair in named:
        ends.extend(number.setdefault(name, len(number)) for name in pair)
    names = tuple(sorted(number))
    place = np.empty(len(names), dtype=np.int64)  # of every name in ascending order
    place[[number[name] for name in names]] = np.arange(len(names))
    return names, place[np.frombuffer(ends, dtype=np.int64).reshape(-1, 2)]


def _named_pairs(
    path: Path, columns: tuple[int | str, int | str], *, header: bool
) -> Iterator[tuple[str, str]]:
    """The descendant and the ancestor on every line of a file."""
    with open_file(path) as file:
        numbered = table_rows(
            lines(file, str(path)),
            str(path),
            delimiter=DELIMITERS[path.suffix],
            quoted=path.suffix == ".csv",
        )
        rows = ((line, [cell.strip() for cell in row]) for line, row in numbered)
        first = next(rows, None)
        if first is None:
            return
        line, cells = first
        places = [_place(column, cells, f"{path}, line {line}") for column in columns]
        if places[0] == places[1]:
            raise ValueError(f"columns must be two different ones, got {columns}")
        if not (header or any(isinstance(column, str) for column in columns)):
            _refuse_header(cells, places, f"{path}, line {line}")
            yield _pair(cells, places, f"{path}, line {line}")
        for line, row in rows:
            if len(row) != len(cells):
                raise ValueError(
                    f"{path}, line {line}: expected {len(cells)} columns, as in the first line, "
                    f"found {len(row)}"
                )
            yield _pair(row, places, f"{path}, line {line}")


def _refuse_header(cells: list[str], places: list[int], where: str) -> None:
    """Refuse a first line of usual column names, which would be a pair of two more nodes."""
    pair = tuple(cells[place] for place in places)
    if tuple(name.lower() for name in pair) in _HEADS:
        raise ValueError(
            f"{where}: {pair[0]!r} and {pair[1]!r} look like names of columns: say header=True, or "
            "move this line down if it is a pair"
        )


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
            f"{where}: there is no column {column}, as positions are 0 .. {len(cells) - 1}"
        )
    return column


def _pair(row: list[str], places: list[int], where: str) -> tuple[str, str]:
    descendant, ancestor = (row[place] for place in places)
    if not (descendant and ancestor):
        raise ValueError(
            f"{where}: expected two names, found {descendant!r:.80} and {ancestor!r:.80}"
        )
    return descendant, ancestor
