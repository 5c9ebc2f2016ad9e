"""Hierarchies to train on: generated trees, and files of pairs that a user has."""

from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from fedbolic.core.check import at_least
from fedbolic.data.hierarchies.hierarchy import Hierarchy
from fedbolic.data.hierarchies.hierarchy_files import HierarchySet, read_hierarchy
from fedbolic.data.hierarchies.trees import balanced_tree


@dataclass(frozen=True)
class BalancedTree(HierarchySet):
    """Closure of the tree in which every node above the leaves has equally many children.

    Args:
        branching: Number of children of a node that is no leaf, at least 1.
        depth: Depth of the leaves, at least 1.

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> len(BalancedTree(2, 8).read(None, download=False))
        511
    """

    branching: int = 2
    depth: int = 8

    def __post_init__(self) -> None:
        at_least(1, branching=self.branching, depth=self.depth)

    @override
    def read(self, root: Path | None, *, download: bool) -> Hierarchy:
        return balanced_tree(self.branching, self.depth)


@dataclass(frozen=True)
class HierarchyFile(HierarchySet):
    """Closure of the pairs in a user's file, direct edges or more.

    Args:
        path: File as for :func:`~fedbolic.data.read_hierarchy`, such as a ``.tsv`` or ``.csv`` with
            a descendant and an ancestor on every line.
        columns: Columns of the descendant and of the ancestor in a table: positions from 0, or
            names in the first line.
        header: Whether the first line of a table holds the names of the columns; ``None``: if they
            are usual ones.

    Raises:
        ValueError: When read, as :func:`~fedbolic.data.read_hierarchy`.
    """

    path: Path
    columns: tuple[int | str, int | str] = (0, 1)
    header: bool | None = None

    @override
    def read(self, root: Path | None, *, download: bool) -> Hierarchy:
        path = Path(self.path)  # a notebook may give a string
        given = read_hierarchy(path, columns=self.columns, header=self.header)
        try:
            return given.closure()
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
