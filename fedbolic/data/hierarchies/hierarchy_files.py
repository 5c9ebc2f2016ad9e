"""Hierarchies read from files: tables of pairs, parents in JSON, ontologies."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64

from fedbolic.core.log import logger
from fedbolic.data.hierarchies.hierarchy import Hierarchy
from fedbolic.data.hierarchies.named_pairs import NodeNames, PairColumns, named_pairs


class HierarchySet(ABC):
    """A data set that is one hierarchy."""

    @abstractmethod
    def read(self, root: Path | None, *, download: bool) -> Hierarchy:
        """Read the whole hierarchy.

        Args:
            root: As for :meth:`fedbolic.data.Dataset.read`.
            download: Likewise.

        Raises:
            FileNotFoundError: If a file is missing and may not be downloaded.
            ValueError: If a file is damaged.
        """


def read_hierarchy(
    path: Path, *, columns: PairColumns = (0, 1), header: bool | None = None
) -> Hierarchy:
    r"""Read the hierarchy in a file with a descendant and an ancestor on every line.

    The pairs stay as they are in the file; use :meth:`Hierarchy.closure` if they are direct edges.
    Nodes are numbered in ascending order of their names, so the order of lines does not matter to
    their numbers. Repeated pairs are dropped, and so are pairs of a node with itself, which
    reflexive closures contain; such a node is kept. A warning counts both. Empty lines are skipped.

    Args:
        path: A file in UTF-8 that ends in ``.tsv`` (tabs, no quotes), ``.csv`` (commas, names in
            double quotes allowed) or ``.json`` (one object, the parent of every name, a list of
            parents, or null), or in one of these and ``.gz``; or an ontology, with the extra
            ``ontologies``: ``.obo``, or SKOS in ``.ttl``, ``.rdf`` or ``.nt``.
        columns: Columns of the descendant and of the ancestor in a table: positions from 0, or
            names in the first line.
        header: Whether the first line of a table holds the names of the columns, as it does if
            ``columns`` has a name; ``None``: if these are usual ones, such as ``child,parent``.

    Raises:
        MissingExtraError: If the file is an ontology and its reader is not installed.
        ValueError: If a line has more or fewer columns than the first, an empty name, or damaged
            text, the message names the file and the line; if a column does not exist, the file has
            another ending or no pairs, or the pairs form a cycle; if a compressed file is larger
            than a file may be.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "cats.csv"
        ...     _ = path.write_text("id1,id2,weight\nlion,cat,1\ncat,mammal,1\n")
        ...     cats = read_hierarchy(path)
        >>> cats.names, cats.pairs.tolist()
        (('cat', 'lion', 'mammal'), [[1, 0], [0, 2]])
    """
    names, pairs = _numbered(named_pairs(path, columns, header=header))
    if not names:
        raise ValueError(f"{path} has no pairs: it is empty or truncated")
    try:
        return Hierarchy(names, torch.from_numpy(_without_repetitions(pairs, len(names), path)))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _without_repetitions(
    pairs: Int64[np.ndarray, "n 2"], num_nodes: int, path: Path
) -> Int64[np.ndarray, "m 2"]:
    """The different pairs of different nodes, in their order; a warning counts the others."""
    different = pairs[pairs[:, 0] != pairs[:, 1]]
    # the first of equal lines stays
    first = np.unique(different[:, 0] * num_nodes + different[:, 1], return_index=True)[1]
    num_loops, num_repeated = len(pairs) - len(different), len(different) - len(first)
    if num_loops or num_repeated:
        logger.warning(
            "%s: dropped %d pairs of a node with itself and %d repeated pairs",
            *(path, num_loops, num_repeated),
        )
    return different[np.sort(first)]


def _numbered(named: Iterable[NodeNames]) -> tuple[tuple[str, ...], Int64[np.ndarray, "n 2"]]:
    """All names in ascending order, and the pairs as positions among them."""
    number: dict[str, int] = {}
    ends = array("q")
    for names in named:
        numbers = [number.setdefault(name, len(number)) for name in names]
        if len(numbers) == 2:
            ends.extend(numbers)
    names = tuple(sorted(number))
    place = np.empty(len(names), dtype=np.int64)  # of every name in ascending order
    place[[number[name] for name in names]] = np.arange(len(names))
    return names, place[np.frombuffer(ends, dtype=np.int64).reshape(-1, 2)]
