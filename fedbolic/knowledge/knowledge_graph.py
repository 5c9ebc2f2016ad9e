"""A trained knowledge graph: scores of triples and places of entities by name."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn import functional

from fedbolic.core import check
from fedbolic.core.near_names import near_names
from fedbolic.core.reading import read_arrays
from fedbolic.core.types import Params
from fedbolic.data.knowledge.triple_split import TripleSplit
from fedbolic.knowledge.triple_scores import TripleScore
from fedbolic.manifolds import ManifoldPlaces, Poincare
from fedbolic.search import HyperbolicIndex

KNOWLEDGE_FORMAT = 1
"""Version of the files."""

KNOWLEDGE_HEAD = "fedbolic"
"""Name of the head in a file, a text in JSON."""


@dataclass(frozen=True, eq=False, repr=False)
class KnowledgeGraph:
    """Tables of entities and relations by name, which score triples.

    Args:
        entities: Names of the entities, all different.
        relations: Names of the relations, all different.
        scorer: Score of triples.
        tables: Tables with the names of ``scorer.initial``: a row for every entity, and rows for
            every relation and then for every inverse.
        known: Triples that are known to be true, by number.

    Raises:
        ValueError: If names are repeated or tables do not fit.

    Example:
        >>> scorer = TripleScore("DistMult", dim=1, bias="none")
        >>> tables = {
        ...     "entity": torch.tensor([[1.0], [3.0], [2.0]]),
        ...     "relation": torch.tensor([[2.0], [1.0]]),
        ... }
        >>> known = torch.tensor([[0, 0, 1]])
        >>> graph = KnowledgeGraph(("pup", "dog", "wolf"), ("grows_to",), scorer, tables, known)
        >>> graph.tails("pup", "grows_to", 2)
        [('dog', 6.0), ('wolf', 4.0)]
        >>> graph.tails("pup", "grows_to", 1, new=True)
        [('wolf', 4.0)]
    """

    entities: tuple[str, ...]
    relations: tuple[str, ...]
    scorer: TripleScore
    tables: Params
    known: Int64[Tensor, "m 3"]

    def __post_init__(self) -> None:
        for kind, names in (("entities", self.entities), ("relations", self.relations)):
            if len(set(names)) < len(names):
                raise ValueError(f"names of {kind} are repeated")
        n, m = len(self.entities), len(self.relations)
        expected = {"entity": (n, self.scorer.entity_numbers)}
        expected["relation"] = (2 * m, self.scorer.relation_numbers)
        if self.scorer.parts.curvature == "learnt":
            expected["curvature"] = (2 * m, 1)
        found = {name: tuple(table.shape) for name, table in self.tables.items()}
        if found != expected:
            raise ValueError(f"{self.scorer} of this graph has tables {expected}, got {found}")
        if bool(((self.known < 0) | (self.known >= torch.tensor([n, m, n]))).any()):
            raise ValueError("an entity or relation of a known triple does not exist")

    @classmethod
    def of(
        cls, split: TripleSplit, settings: Mapping[str, Any], tables: Params
    ) -> "KnowledgeGraph":
        """The graph of trained tables, with the names and the known triples of some data.

        Args:
            split: Triples of a client, or the server's test set.
            settings: Fields of the :class:`TripleScore`.
            tables: The trained tables.
        """
        known = torch.cat((split.triples, split.known)).unique(dim=0)
        double = {name: table.detach().double() for name, table in tables.items()}
        return cls(split.entities, split.relations, TripleScore(**settings), double, known)

    def __repr__(self) -> str:
        sizes = f"{len(self)} entities and {len(self.relations)} relations"
        return f"KnowledgeGraph of {sizes} by {self.scorer.name} in {self.scorer.dim} dimensions"

    def __len__(self) -> int:
        """The number of entities."""
        return len(self.entities)

    @functools.cached_property
    def _numbers(self) -> tuple[dict[str, int], dict[str, int]]:
        entities, relations = ({n: i for i, n in enumerate(x)} for x in self._names)
        return entities, relations

    @property
    def _names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.entities, self.relations

    def entity(self, name: str) -> int:
        """The number of an entity.

        Raises:
            ValueError: If there is no such name; the message gives the names most like it.
        """
        return self._number(name, 0)

    def relation(self, name: str) -> int:
        """The number of a relation.

        Raises:
            ValueError: If there is no such name; the message gives the names most like it.
        """
        return self._number(name, 1)

    def _number(self, name: str, kind: int) -> int:
        if name in self._numbers[kind]:
            return self._numbers[kind][name]
        like = ", ".join(map(repr, near_names(name, self._names[kind])))
        raise ValueError(
            f"there is no {('entity', 'relation')[kind]} {name!r:.80}"
            + (f": did you mean {like:.400}?" if like else "")
        )

    def score(self, head: str, relation: str, tail: str) -> float:
        """Score of a triple; greater if it is more likely.

        Raises:
            ValueError: If there is no such name.
        """
        scores = self._tail_scores(self.entity(head), self.relation(relation))
        return float(scores[self.entity(tail)])

    def tails(
        self, head: str, relation: str, k: int = 10, *, new: bool = False
    ) -> list[tuple[str, float]]:
        """The most likely tails and their scores, the most likely first.

        Args:
            head: Name of the head.
            relation: Name of the relation.
            k: Number of tails, at least 1; all if there are fewer.
            new: Whether tails of known triples are left out.

        Raises:
            ValueError: If there is no such name, or ``k`` is below 1.
        """
        return self._other_ends(0, head, relation, k, new=new)

    def heads(
        self, tail: str, relation: str, k: int = 10, *, new: bool = False
    ) -> list[tuple[str, float]]:
        """The most likely heads and their scores as tails of the inverse relation.

        Args:
            tail: Name of the tail.
            relation: Name of the relation.
            k: Number of heads, at least 1; all if there are fewer.
            new: Whether heads of known triples are left out.

        Raises:
            ValueError: If there is no such name, or ``k`` is below 1.
        """
        return self._other_ends(2, tail, relation, k, new=new)

    def _tail_scores(self, head: int, relation: int) -> Tensor:
        query = self.scorer.query_of(self.tables, torch.tensor([head]), torch.tensor([relation]))
        return self.scorer.scores(query, self.tables["entity"])[0]

    def _other_ends(
        self, column: int, name: str, relation: str, k: int, *, new: bool
    ) -> list[tuple[str, float]]:
        """Tails of a head, which is column 0 of a triple, or heads of a tail, which is column 2."""
        number, r = self.entity(name), self.relation(relation)
        check.at_least(1, k=k)
        scores = self._tail_scores(number, r if column == 0 else r + len(self.relations))
        order = scores.argsort(descending=True, stable=True)
        if new:
            held = (self.known[:, column] == number) & (self.known[:, 1] == r)
            order = order[~torch.isin(order, self.known[held, 2 - column])]
        order = order[:k]
        return [(self.entities[i], float(scores[i])) for i in order.tolist()]

    def places(self, relation: str) -> ManifoldPlaces:
        """Points of all entities as tails of a relation, in the Poincaré ball of its curvature.

        Raises:
            ValueError: If there is no such name, or the score is flat.
        """
        number = self.relation(relation)
        if self.scorer.parts.curvature == "flat":
            raise ValueError(f"{self.scorer.name} has no curvature: take to_numpy")
        c = 1.0
        if "curvature" in self.tables:
            c = float(functional.softplus(self.tables["curvature"][number, 0]))
        space = Poincare(c)
        return ManifoldPlaces(space, space.expmap0(self.tables["entity"][:, : self.scorer.dim]))

    def index(self, relation: str) -> HyperbolicIndex:
        """An index of :meth:`places`, for many queries; it answers by numbers, without biases.

        Raises:
            ValueError: If there is no such name, or the score is flat.
        """
        return HyperbolicIndex(self.places(relation))

    def to_numpy(self, dtype: type[np.floating] = np.float64) -> np.ndarray:
        """Tangents of all entities at the origin, one row each, without biases.

        Args:
            dtype: Floating-point type.
        """
        return self.tables["entity"][:, : self.scorer.dim].cpu().numpy().astype(dtype)

    def save(self, file: Path | str, card: Mapping[str, Any] | None = None) -> None:
        """Write a file that :meth:`load` reads.

        Args:
            file: A file that ends in ``.npz``.
            card: Plain values to keep in it, such as its origin.

        Raises:
            ValueError: If the file has another ending.
        """
        file = Path(file)
        if file.suffix != ".npz":
            raise ValueError(f"{file} must end in .npz")
        head = {
            "format": KNOWLEDGE_FORMAT,
            "score": dataclasses.asdict(self.scorer),
            "entities": self.entities,
            "relations": self.relations,
            "card": dict(card or {}),
        }
        tensors = {"known": self.known, **self.tables}
        arrays: dict[str, Any] = {name: x.cpu().numpy() for name, x in tensors.items()}
        with file.open("wb") as stream:
            np.savez_compressed(stream, **{KNOWLEDGE_HEAD: np.array(json.dumps(head))}, **arrays)

    @classmethod
    def load(cls, file: Path | str) -> "KnowledgeGraph":
        """Read a file of :meth:`save`; it runs no code.

        Args:
            file: The file.

        Raises:
            OSError: If the file is missing.
            ValueError: If the file is damaged or holds something else.
        """
        try:
            arrays = read_arrays(Path(file))
            head = json.loads(str(arrays.pop(KNOWLEDGE_HEAD)))
            if head["format"] != KNOWLEDGE_FORMAT:
                raise ValueError(f"its format is not {KNOWLEDGE_FORMAT}")
            known = torch.from_numpy(arrays.pop("known"))
            tables = {name: torch.from_numpy(x) for name, x in arrays.items()}
            if any(x.dtype != torch.float64 or not x.isfinite().all() for x in tables.values()):
                raise ValueError("its tables are not finite numbers in float64")
            names = tuple(head["entities"]), tuple(head["relations"])
            if known.dtype != torch.int64 or known.ndim != 2 or known.shape[1] != 3:
                raise ValueError("its known triples are no triples")
            return cls(*names, TripleScore(**head["score"]), tables, known)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise ValueError(
                f"{file} holds no knowledge graph that can be read: {error}"
            ) from error
