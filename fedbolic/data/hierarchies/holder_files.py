"""A federation of holders, each with a hierarchy in a separate file."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data.contract.client import HOLDOUT, Client, FederatedData
from fedbolic.data.contract.source import Source
from fedbolic.data.files.published_files import files_of_holders, find_given
from fedbolic.data.hierarchies.hierarchy import Hierarchy
from fedbolic.data.hierarchies.hierarchy_files import read_hierarchy
from fedbolic.data.hierarchies.hierarchy_split import PRIVATE, HierarchySplit
from fedbolic.data.hierarchies.named_pairs import ENDINGS, ONTOLOGIES, PairColumns
from fedbolic.data.hierarchies.vocabulary import Vocabulary, read_key


@dataclass(frozen=True)
class HolderFiles(Source):
    """Hierarchies of several holders, one file and one client each.

    A client holds the pairs that follow from its file and from the ``common`` one: direct edges are
    enough. Categories of one name are one node. The server's test set holds the pairs that follow
    from all files that are read here, and says which of them some client holds. Clients are
    numbered in ascending order of the holders' names.

    Nodes are numbered in ascending order of their names, or of keyed hashes if there is a ``key``.
    Where the files of all holders are in one place, these are the names in the files. Where every
    holder has its own machine, all name one file of agreed ``names``, which
    :func:`~fedbolic.data.agree_names` writes before the first round; a node gives its own file in
    ``holders``, and the server none.

    Args:
        holders: A folder with one file a holder, which is named by the file without its ending; or
            the file of every holder, by its name. Files as for
            :func:`~fedbolic.data.read_hierarchy`.
        common: File of the pairs that everybody knows, such as the upper levels; ``None`` if there
            are none.
        names: File of the agreed names; ``None`` for the names in the files.
        key: File of the key with which the holders hash names; ``None`` if names are public.
        columns: Columns of the descendant and of the ancestor in tables.
        header: Whether tables begin with the names of their columns; ``None``: if they are usual
            ones.
        root: Folder of relative paths; by default, the folder named by the environment variable
            FEDBOLIC_DATA, then the working directory.

    Raises:
        ValueError: When loaded, if a file is damaged, files together form a cycle, or a name is not
            among the agreed ones.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for shop, line in (("a", "MacBook,laptops"), ("b", "ThinkPad,laptops")):
        ...         _ = (Path(folder) / f"{shop}.csv").write_text(line)
        ...     data = HolderFiles(Path(folder)).load(Rng(0))
        >>> data.meta.num_clients, data.sizes, data.holdout.test.hierarchy.names
        (2, (1, 1), ('MacBook', 'ThinkPad', 'laptops'))
    """

    holders: Path | str | Mapping[str, Path | str] = field(default_factory=dict)
    common: Path | str | None = None
    names: Path | str | None = None
    key: Path | str | None = None
    columns: PairColumns = (0, 1)
    header: bool | None = None
    root: Path | None = None

    @override
    def load(self, rng: Rng) -> FederatedData:
        files = self._files()
        own = [self._read(path) for path in files]
        public = [self._read(path) for path in self._public()]
        number = self._numbering(dict(zip((*files, *self._public()), (*own, *public), strict=True)))
        common = number.parents(_closed(public, str(self.common))) if public else None
        split = functools.partial(HierarchySplit, common=common, digest=number.nodes.digest)
        meta = Meta(num_classes=len(number.names), input_shape=(2,), num_clients=len(own))
        nothing = Hierarchy(number.names, torch.empty(0, 2, dtype=torch.int64))
        none = split(nothing)
        parts = [
            number(_closed([one, *public], str(path))) for path, one in zip(files, own, strict=True)
        ]
        every = [*own, *public]
        whole = number(_closed(every, "the files together")) if every else nothing
        held = torch.zeros(whole.num_pairs, dtype=torch.bool)
        for part in parts:
            held |= part.contains(*whole.pairs.T)
        clients = tuple(Client(i, split(part), none, none, meta) for i, part in enumerate(parts))
        test = split(whole, held=held)
        return FederatedData(clients, meta, Client(HOLDOUT, none, none, test, meta))

    def _numbering(self, read: Mapping[Path, Hierarchy]) -> "_Numbering":
        names = sorted({name for one in read.values() for name in one.names})
        key = None if self.key is None else read_key(self._found(self.key))
        if self.names is None:
            nodes = Vocabulary.of(names, key)
        else:
            nodes = Vocabulary.read(self._found(self.names))
        if not nodes.entries:
            raise ValueError("there are no names: give holders with files, or the agreed names")
        for path, one in read.items():
            try:
                nodes.numbers(one.names, key)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
        return _Numbering.of(nodes, names, key)

    def _public(self) -> list[Path]:
        return [] if self.common is None else [self._found(self.common)]

    def _files(self) -> list[Path]:
        """The files of the holders, in ascending order of their names."""
        others = {self._found(path) for path in (self.common, self.names, self.key) if path}
        endings = (*ENDINGS, *ONTOLOGIES)
        return files_of_holders(
            self.holders, self.root, kind="hierarchy", endings=endings, others=others
        )

    def _found(self, path: Path | str) -> Path:
        return find_given(Path(path), self.root, kind="hierarchy").resolve()

    def _read(self, path: Path) -> Hierarchy:
        return read_hierarchy(path, columns=self.columns, header=self.header)


@dataclass(frozen=True, eq=False)
class _Numbering:
    """The agreed numbers of all nodes, and of those that are known here."""

    nodes: Vocabulary
    names: tuple[str, ...]
    numbers: dict[str, int]

    @classmethod
    def of(cls, nodes: Vocabulary, known: Sequence[str], key: bytes | None) -> "_Numbering":
        return cls(nodes, *nodes.named(known, key))

    def parents(self, common: Hierarchy) -> Int64[Tensor, " n"]:
        """Primary parents of the common nodes, as :class:`HierarchySplit` has them."""
        found = torch.full((len(self.names),), PRIVATE)
        numbers = torch.tensor([self.numbers[name] for name in common.names])
        above = self(common).primary_parents  # by the agreed numbers, which decide between parents
        found[numbers] = above[numbers]
        return found

    def __call__(self, hierarchy: Hierarchy) -> Hierarchy:
        """The hierarchy with the agreed numbers, in the order of its pairs."""
        numbers = torch.tensor([self.numbers[name] for name in hierarchy.names])
        return Hierarchy(self.names, numbers[hierarchy.pairs])


def _closed(parts: Sequence[Hierarchy], where: str) -> Hierarchy:
    """The hierarchy of all pairs that follow from those of several, by their names."""
    names = tuple(sorted({name for part in parts for name in part.names}))
    number = {name: i for i, name in enumerate(names)}
    edges = [torch.tensor([number[name] for name in part.names])[part.pairs] for part in parts]
    try:
        return Hierarchy(names, torch.cat(edges).unique(dim=0)).closure()
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
