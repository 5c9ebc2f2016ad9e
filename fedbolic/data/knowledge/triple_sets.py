"""Knowledge graphs to train on: a generated one, WordNet's nouns, and files that a user has."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from fedbolic.core import check
from fedbolic.data.files.published_files import find_given
from fedbolic.data.knowledge.triple_files import named_triples
from fedbolic.data.knowledge.triples import NamedTriple, Triples

WORDNET_RELATIONS = Path("hierarchies/wordnet_relations.tsv.gz")
"""Triples of WordNet 3.1's nouns below a data folder."""


class TripleSet(ABC):
    """A data set that is one knowledge graph."""

    @abstractmethod
    def read(self, root: Path | None) -> Triples:
        """Read the whole graph.

        Args:
            root: The only folder to read from; ``None`` for those given by FEDBOLIC_DATA, then the
                working directory.

        Raises:
            FileNotFoundError: If a file is missing.
            ValueError: If a file is damaged.
        """


@dataclass(frozen=True)
class Families(TripleSet):
    """Generated families: persons who are parents, grandparents and siblings.

    A family is a balanced tree of one founder and two children of everybody above the youngest. A
    sibling pair is one triple. Grandparents and siblings follow from parents.

    Args:
        num_families: Number of families, at least 1.
        generations: Generations below the founder, at least 2.

    Example:
        >>> graph = Families(1, 2).read(None)
        >>> len(graph.entities), len(graph.train), graph.relations
        (7, 13, ('grandparent', 'parent', 'sibling'))
    """

    num_families: int = 2
    generations: int = 4

    def __post_init__(self) -> None:
        check.at_least(1, num_families=self.num_families)
        check.at_least(2, generations=self.generations)

    @override
    def read(self, root: Path | None) -> Triples:
        return Triples.named(self._triples())

    def _triples(self) -> Iterator[NamedTriple]:
        for family in range(self.num_families):
            name = f"family{family}_person{{}}".format
            for person in range(2, 2 ** (self.generations + 1)):  # as in a heap
                yield name(person), "parent", name(person // 2)
                if person >= 4:
                    yield name(person), "grandparent", name(person // 4)
                if person % 2 == 0:
                    yield name(person), "sibling", name(person + 1)


@dataclass(frozen=True)
class TripleFile(TripleSet):
    """Triples in a user's file, of which a source holds some out.

    Args:
        path: File as for :func:`~fedbolic.data.knowledge.triple_files.named_triples`.
    """

    path: Path

    @override
    def read(self, root: Path | None) -> Triples:
        path = find_given(Path(self.path), root, kind="file of triples")
        triples = list(named_triples(path))
        try:
            return Triples.named(triples)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


@dataclass(frozen=True)
class TripleFolder(TripleSet):
    """Published triples with their own split: WN18RR, FB15k-237, Kinship, UMLS or Nations.

    A test triple that is also a training triple stays in training alone.

    Args:
        path: Folder with ``train.txt``, ``valid.txt`` and ``test.txt``, each a head, a relation and
            a tail on every line, separated by tabs.

    References:
        Dettmers et al. (2018), arXiv:1707.01476, whose repository has these files.
    """

    path: Path

    @override
    def read(self, root: Path | None) -> Triples:
        files = [
            find_given(Path(self.path) / f"{part}.txt", root, kind="folder of triples")
            for part in ("train", "valid", "test")
        ]
        return Triples.named(*map(named_triples, files))


@dataclass(frozen=True)
class WordNetRelations(TripleSet):
    """Ten relations of WordNet 3.1's nouns, among the nouns with the most triples.

    Of each relation that holds in both directions, such as antonyms, one triple of a pair stays
    (:meth:`~fedbolic.data.knowledge.triples.Triples.without_inverses`). Then the graph is cut to
    the nouns with the most triples (:meth:`~fedbolic.data.knowledge.triples.Triples.cut`). A root
    contains ``hierarchies/wordnet_relations.tsv.gz``.

    Args:
        num_entities: Number of nouns before those without a triple are left out, at least 2;
            82,192 for all.

    References:
        Miller (1995), doi:10.1145/219717.219748.
    """

    num_entities: int = 10_000

    def __post_init__(self) -> None:
        check.at_least(2, num_entities=self.num_entities)

    @override
    def read(self, root: Path | None) -> Triples:
        whole = TripleFile(WORDNET_RELATIONS).read(root)
        return whole.without_inverses().cut(self.num_entities)
