"""Knowledge graphs as triples of a head, a relation and a tail."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from fedbolic.core import check
from fedbolic.core.rng import Rng

NamedTriple = tuple[str, str, str]
"""A head, a relation and a tail by name."""


@dataclass(frozen=True, eq=False)
class Triples:
    """A knowledge graph: named entities and relations, and triples of their numbers.

    Args:
        entities: Names of the entities, at least two, all different.
        relations: Names of the relations, at least one, all different.
        train: Head, relation and tail of every training triple; no repetitions.
        validation: Triples for model selection; empty if none are held out.
        test: Test triples.

    Raises:
        ValueError: If names are missing or repeated, or triples have another shape or dtype, name
            something that does not exist, or are repeated.

    Example:
        >>> graph = Triples.named([("lion", "is_a", "cat"), ("cat", "eats", "fish")])
        >>> graph.entities, graph.relations, graph.train.tolist()
        (('cat', 'fish', 'lion'), ('eats', 'is_a'), [[2, 1, 0], [0, 0, 1]])
    """

    entities: tuple[str, ...]
    relations: tuple[str, ...]
    train: Int64[Tensor, "n 3"]
    validation: Int64[Tensor, "m 3"]
    test: Int64[Tensor, "k 3"]

    def __post_init__(self) -> None:
        for kind, names, least in (
            ("entities", self.entities, 2),
            ("relations", self.relations, 1),
        ):
            if len(set(names)) < max(len(names), least):
                raise ValueError(f"{kind} need at least {least} different names, none repeated")
        every = torch.cat((self.train, self.validation, self.test))
        if every.dtype != torch.int64 or every.ndim != 2 or every.shape[1] != 3:
            raise ValueError(
                f"triples must be int64 of shape (n, 3), got {every.dtype} of {tuple(every.shape)}"
            )
        most = torch.tensor([len(self.entities), len(self.relations), len(self.entities)])
        outside = ((every < 0) | (every >= most)).any(dim=1)
        if bool(outside.any()):
            number = every[outside][0].tolist()
            raise ValueError(f"an entity or relation of the triple {number} does not exist")
        if len(every.unique(dim=0)) < len(every):
            raise ValueError("triples are repeated: drop repetitions with triples.unique(dim=0)")

    @classmethod
    def named(
        cls,
        train: Iterable[NamedTriple],
        validation: Iterable[NamedTriple] = (),
        test: Iterable[NamedTriple] = (),
    ) -> "Triples":
        """The graph of named triples; names are numbered in ascending order.

        Of repeated triples the first stays.

        Args:
            train: Training triples.
            validation: Triples for model selection.
            test: Test triples.
        """
        seen: set[NamedTriple] = set()
        parts: list[list[NamedTriple]] = []
        for given in (train, validation, test):
            new = dict.fromkeys(t for t in given if t not in seen)
            seen |= set(new)
            parts.append(list(new))
        entities = tuple(sorted({name for head, _, tail in seen for name in (head, tail)}))
        relations = tuple(sorted({relation for _, relation, _ in seen}))
        entity, relation = ({n: i for i, n in enumerate(names)} for names in (entities, relations))
        numbers = (
            torch.tensor(
                [[entity[h], relation[r], entity[t]] for h, r, t in part], dtype=torch.int64
            ).reshape(-1, 3)
            for part in parts
        )
        return cls(entities, relations, *numbers)

    @property
    def all(self) -> Int64[Tensor, "total 3"]:
        """Training, validation and test triples, in this order."""
        return torch.cat((self.train, self.validation, self.test))

    def held_out(self, rng: Rng, validation_rate: float, test_rate: float) -> "Triples":
        """The same graph with some training triples held out.

        Every entity and every relation keeps a training triple. Triples whose two entities are
        related in any other way stay, too: the other triple would give them away, as inverse
        relations did in WN18.

        Args:
            rng: Source of the choice.
            validation_rate: Share of all triples for validation, in [0, 1).
            test_rate: Share of all triples for the test, in [0, 1).

        Raises:
            ValueError: If a rate is out of range, or too few triples may be held out.

        References:
            Toutanova and Chen (2015), Sec. 4, doi:10.18653/v1/W15-4007; Dettmers et al. (2018),
            Sec. 5, arXiv:1707.01476, for such leaks.
        """
        check.rate(below_one=True, validation_rate=validation_rate, test_rate=test_rate)
        order = torch.randperm(len(self.train), generator=rng.generator())
        triples = self.train[order]
        pairs = triples[:, [0, 2]].sort(dim=1).values
        _, place, times = pairs.unique(dim=0, return_inverse=True, return_counts=True)
        free = times[place] == 1
        rows = torch.arange(len(triples))
        free[_first(triples[:, 1], rows)] = False
        free[_first(triples[:, [0, 2]].flatten(), rows.repeat_interleave(2))] = False
        found = free.nonzero().flatten()
        sizes = [round(rate * len(triples)) for rate in (validation_rate, test_rate)]
        if sum(sizes) > len(found):
            raise ValueError(
                f"{sum(sizes)} of {len(triples)} triples were to be held out, but only "
                f"{len(found)} may be: use lower rates"
            )
        validation, test = found[: sum(sizes)].split(sizes)
        kept = torch.ones(len(triples), dtype=torch.bool)
        kept[found[: sum(sizes)]] = False
        parts = order[kept].sort().values, order[validation], order[test]
        train, more, last = (self.train[part] for part in parts)
        validation, test = torch.cat((self.validation, more)), torch.cat((self.test, last))
        return dataclasses.replace(self, train=train, validation=validation, test=test)

    def cut(self, num_entities: int) -> "Triples":
        """The training triples among the entities with the most of them.

        Of entities with equally many triples those with the smaller numbers stay. Entities without
        a triple among the others are left out, so there may be fewer.

        Args:
            num_entities: Number of entities, at least 2.
        """
        check.at_least(2, num_entities=num_entities)
        counts = torch.bincount(self.train[:, [0, 2]].flatten(), minlength=len(self.entities))
        kept = torch.zeros(len(self.entities), dtype=torch.bool)
        kept[counts.argsort(descending=True, stable=True)[:num_entities]] = True
        inside = self.train[kept[self.train[:, 0]] & kept[self.train[:, 2]]]
        return Triples.named(self.names(inside))

    def without_inverses(self) -> "Triples":
        """The training triples without those that another one of the same relation inverts.

        Of two such triples the first stays.
        """
        ends = self.train[:, [0, 2]].sort(dim=1).values
        keys = torch.cat((ends, self.train[:, 1:2]), dim=1)
        _, place = keys.unique(dim=0, return_inverse=True)
        first = _first(place, torch.arange(len(place)))
        return dataclasses.replace(self, train=self.train[first.sort().values])

    def names(self, triples: Int64[Tensor, "n 3"]) -> list[NamedTriple]:
        """Names of some triples.

        Args:
            triples: Heads, relations and tails by number.
        """
        return [
            (self.entities[h], self.relations[r], self.entities[t]) for h, r, t in triples.tolist()
        ]


def _first(values: Int64[Tensor, " n"], rows: Int64[Tensor, " n"]) -> Int64[Tensor, " m"]:
    """The first row in which every value comes, the smallest value first.

    Args:
        values: Numbers.
        rows: Row of each number.
    """
    different, place = values.unique(return_inverse=True)
    first = torch.full((len(different),), len(values), dtype=torch.int64)
    return first.scatter_reduce(0, place, rows, "amin")
