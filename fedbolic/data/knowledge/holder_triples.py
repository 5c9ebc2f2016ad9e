"""A federation of holders, each with triples in a separate file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.data.contract.client import FederatedData
from fedbolic.data.contract.source import Source
from fedbolic.data.files.published_files import files_of_holders, find_given
from fedbolic.data.hierarchies.vocabulary import ENDING, Vocabulary, digest_of, read_key
from fedbolic.data.knowledge.partitioned_triples import federation
from fedbolic.data.knowledge.triple_files import TRIPLE_ENDINGS, named_triples
from fedbolic.data.knowledge.triples import NamedTriple, Triples


@dataclass(frozen=True)
class HolderTriples(Source):
    r"""Triples of several holders, one file and one client each.

    Entities and relations of one name are one. Where the files of all holders are in one place,
    names are those in the files, and no held-out triple is a training triple of another holder.
    Where every holder has its own machine, all name the same files of agreed ``entities`` and
    ``relations``; a node gives its own file in ``holders``, and the server none. A holder writes
    the names in its file by :func:`~fedbolic.data.write_triple_names`, and
    :func:`~fedbolic.data.agree_names` unites those of all holders before the first round.

    Args:
        holders: A folder with one file a holder, which is named by the file without its ending; or
            the file of every holder, by its name. Files as for
            :func:`~fedbolic.data.knowledge.triple_files.named_triples`.
        entities: File of the agreed names of entities; ``None`` for the names in the files.
        relations: File of the agreed names of relations, likewise.
        key: File of the key with which the holders hash names; ``None`` if names are public.
        validation_rate: Share of the triples to hold out for validation, in [0, 1).
        test_rate: Share to hold out for the test, in [0, 1).
        root: Folder of relative paths; by default, the folder named by the environment variable
            FEDBOLIC_DATA, then the working directory.

    Raises:
        ValueError: If a rate is out of range; when loaded, if a file is damaged or a name is not
            among the agreed ones.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name, line in (("a", "aspirin\ttreats\tpain"), ("b", "flu\tcauses\tpain")):
        ...         _ = (Path(folder) / f"{name}.tsv").write_text(line)
        ...     source = HolderTriples(Path(folder), validation_rate=0.0, test_rate=0.0)
        ...     data = source.load(Rng(0))
        >>> data.meta.num_clients, data.sizes, data.holdout.test.entities
        (2, (1, 1), ('aspirin', 'flu', 'pain'))
    """

    holders: Path | str | Mapping[str, Path | str] = field(default_factory=dict)
    entities: Path | str | None = None
    relations: Path | str | None = None
    key: Path | str | None = None
    validation_rate: float = 0.05
    test_rate: float = 0.05
    root: Path | None = None

    def __post_init__(self) -> None:
        rates = {"validation_rate": self.validation_rate, "test_rate": self.test_rate}
        check.rate(below_one=True, **rates)

    @override
    def load(self, rng: Rng) -> FederatedData:
        own = [list(dict.fromkeys(named_triples(path))) for path in self._files()]
        every = list(dict.fromkeys(triple for part in own for triple in part))
        key = None if self.key is None else read_key(self._found(self.key))
        ends = sorted({name for head, _, tail in every for name in (head, tail)})
        kinds = sorted({relation for _, relation, _ in every})
        entities = self._vocabulary(self.entities, ends, key)
        relations = self._vocabulary(self.relations, kinds, key)
        names, entity = entities.named(ends, key)
        kinds, relation = relations.named(kinds, key)
        rows = [[entity[h], relation[r], entity[t]] for h, r, t in every]
        triples = torch.tensor(rows, dtype=torch.int64).reshape(-1, 3)
        graph = Triples(names, kinds, triples, triples[:0], triples[:0])
        if every:
            graph = graph.held_out(rng.at("held out"), self.validation_rate, self.test_rate)
        holds = [set(part) for part in own]
        named = graph.names(graph.all)
        held = [torch.tensor([t in part for t in named], dtype=torch.bool) for part in holds]
        return federation(graph, held, digest_of([entities.digest, relations.digest]))

    def _vocabulary(
        self, file: Path | str | None, known: Sequence[str], key: bytes | None
    ) -> Vocabulary:
        if file is not None:
            return Vocabulary.read(self._found(file))
        if not known:
            raise ValueError("there are no names: give holders with files, or the agreed names")
        return Vocabulary.of(known, key)

    def _files(self) -> list[Path]:
        """The files of the holders, in ascending order of their names."""
        others = {self._found(path) for path in (self.entities, self.relations, self.key) if path}
        return files_of_holders(
            self.holders, self.root, kind="triples", endings=TRIPLE_ENDINGS, others=others
        )

    def _found(self, path: Path | str) -> Path:
        return find_given(Path(path), self.root, kind="file of triples or names").resolve()


def write_triple_names(
    paths: Sequence[Path], entities: Path, relations: Path, *, key: Path | None = None
) -> tuple[Vocabulary, Vocabulary]:
    """Write the names of entities and of relations in some files of triples, a file for each.

    :func:`~fedbolic.data.agree_names` unites such files of several holders.

    Args:
        paths: Files as for :func:`~fedbolic.data.knowledge.triple_files.named_triples`.
        entities: File to write, which ends in ``.names``.
        relations: File to write, which ends in ``.names``.
        key: File of the key of the hashes, as for :func:`~fedbolic.data.agree_names`; ``None`` for
            the names themselves.

    Raises:
        ValueError: If a file is damaged, or those to write have another ending or are one.
    """
    if entities == relations or {entities.suffix, relations.suffix} != {ENDING}:
        raise ValueError(f"{entities} and {relations} must end in {ENDING} and differ")
    secret = None if key is None else read_key(key)
    triples: list[NamedTriple] = [triple for path in paths for triple in named_triples(path)]
    ends = [name for head, _, tail in triples for name in (head, tail)]
    found = Vocabulary.of(ends, secret), Vocabulary.of([r for _, r, _ in triples], secret)
    for vocabulary, file in zip(found, (entities, relations), strict=True):
        vocabulary.write(file)
    return found
