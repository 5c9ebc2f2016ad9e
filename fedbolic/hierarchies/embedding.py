"""An embedded hierarchy: places of its nodes by name."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from fedbolic.core import check
from fedbolic.core.figure import DiscFigure
from fedbolic.core.near_names import near_names
from fedbolic.core.rng import Rng
from fedbolic.data import Hierarchy
from fedbolic.data.hierarchies.direct_pairs import direct_pairs
from fedbolic.hierarchies.disc import disc
from fedbolic.hierarchies.embedding_files import load_embedding, save_embedding
from fedbolic.hierarchies.embedding_tables import read_csv, read_parquet, write_csv, write_parquet
from fedbolic.hierarchies.outward import outward, radii
from fedbolic.hierarchies.scored_places import ScoredPlaces
from fedbolic.hierarchies.scores import check_sample, ranking_scores
from fedbolic.manifolds import ManifoldPlaces, Places
from fedbolic.search import HyperbolicIndex


@dataclass(frozen=True, eq=False, repr=False)
class Embedding:
    """Places of the nodes of a hierarchy, by name.

    Args:
        names: Names of the nodes, all different.
        places: One place for every name, in the same order.
        parents: A node and its parent in every row, by number; ``None`` if parents are unknown.

    Raises:
        ValueError: If names and places differ in number, a name is empty or repeated, or
            ``parents`` are no pairs of two nodes or form a cycle.

    Example:
        >>> from fedbolic.manifolds import Poincare
        >>> points = torch.tensor([[0.0, 0.0], [0.5, 0.0], [0.8, 0.1], [0.8, -0.1]])
        >>> cats = Embedding(
        ...     ("cat", "big cat", "lion", "tiger"),
        ...     ManifoldPlaces(Poincare(), points),
        ...     torch.tensor([[1, 0], [2, 1], [3, 1]]),
        ... )
        >>> [name for name, distance in cats.nearest("lion", 2)]
        ['tiger', 'big cat']
        >>> cats.ancestors("lion")
        ['big cat', 'cat']
        >>> round(cats.distance("cat", "big cat"), 4)
        1.0986
    """

    names: tuple[str, ...]
    places: Places
    parents: Int64[Tensor, "m 2"] | None = None

    def __post_init__(self) -> None:
        if len(self.names) != len(self.places):
            raise ValueError(
                f"every name needs one place, got {len(self.names)} names and {len(self.places)} "
                "places"
            )
        if "" in self.names:
            raise ValueError(f"a name is empty: that of node {self.names.index('')}")
        _ = self.hierarchy  # checks names and parents

    @classmethod
    def of(
        cls, hierarchy: Hierarchy, places: Places, nodes: Int64[Tensor, " m"] | None = None
    ) -> "Embedding":
        """The embedding of a hierarchy, with its names and direct pairs; no pairs: no parents.

        Args:
            hierarchy: Direct pairs, the closure, or anything in between.
            places: One place for every node.
            nodes: The nodes that have the places, by number; ``None`` for all in their order.
        """
        if nodes is not None:
            number = torch.full((len(hierarchy),), -1)
            number[nodes] = torch.arange(len(nodes))
            pairs = number[hierarchy.pairs]
            names = tuple(hierarchy.names[node] for node in nodes.tolist())
            hierarchy = Hierarchy(names, pairs[(pairs >= 0).all(dim=1)])
        pairs = direct_pairs(hierarchy) if hierarchy.num_pairs else None
        return cls(hierarchy.names, places, pairs)

    def __repr__(self) -> str:
        kind, dim = type(self.places).__name__, self.places.dim
        return f"Embedding of {len(self)} nodes in {dim} dimensions ({kind})"

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self.names)

    @functools.cached_property
    def hierarchy(self) -> Hierarchy:
        """The direct pairs as a hierarchy; without pairs if parents are unknown."""
        none = torch.empty(0, 2, dtype=torch.int64)
        return Hierarchy(self.names, none if self.parents is None else self.parents)

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def number(self, name: str) -> int:
        """The number of a node.

        Raises:
            ValueError: If there is no such name; the message gives the names most like it.
        """
        if name in self._numbers:
            return self._numbers[name]
        like = ", ".join(map(repr, near_names(name, self.names)))
        raise ValueError(
            f"there is no node {name!r:.80} among {len(self)}"
            + (f": did you mean {like:.400}?" if like else "")
        )

    def place(self, name: str) -> Places:
        """The place of a node.

        Raises:
            ValueError: If there is no such name.
        """
        return self.places[torch.tensor([self.number(name)])]

    def nearest(self, query: str | Places, k: int = 10) -> list[tuple[str, float]]:
        """The nearest nodes and their distances, the nearest first.

        All distances are computed, so the answer is exact. Of equally distant nodes, the one with
        the smaller number comes first.

        Args:
            query: Name of a node, which is left out of the answer; or one place, such as
                :meth:`place_under` gives.
            k: Number of nodes, at least 1; all if there are fewer.

        Raises:
            ValueError: If there is no such name, ``k`` is below 1, or the query is not one place.
        """
        check.at_least(1, k=k)
        distances = self._place(query).cdist(self.places)[0]
        order = distances.argsort(stable=True)
        if isinstance(query, str):
            order = order[order != self.number(query)]
        order = order[:k]
        return [
            (self.names[number], distance)
            for number, distance in zip(order.tolist(), distances[order].tolist(), strict=True)
        ]

    def distance(self, a: str | Places, b: str | Places) -> float:
        """Distance of two nodes or places.

        Args:
            a: Name of a node, or one place.
            b: Name of a node, or one place.

        Raises:
            ValueError: If there is no such name.
        """
        return float(self._place(a).dist(self._place(b)))

    def ancestors(self, name: str) -> list[str]:
        """The nodes above a node, its parents first; in the given hierarchy, not by distances.

        Raises:
            ValueError: If there is no such name, or parents are unknown.
        """
        self._require_parents("ancestors")
        above, level = dict[int, None](), [self.number(name)]
        while level:
            level = [p for node in level for p in self._above(node) if p not in above]
            above |= dict.fromkeys(level)
        return [self.names[number] for number in above]

    def place_under(self, parent: str) -> Places:
        """A place for something new below a node, to search its neighbours.

        It lies in the direction of the parent, farther out by as much as the parent's children are
        on average; by as much as all children are from their parents if it has none.

        Its neighbours are no better than those of the parent's own place: a table in ``README.md``.

        Args:
            parent: Name of the node.

        Raises:
            ValueError: If there is no such name, or parents are unknown.
            TypeError: If the places are of a kind that has no direction outward.
        """
        self._require_parents("place_under")
        node, pairs = self.number(parent), self.hierarchy.pairs
        below = pairs[pairs[:, 1] == node]
        child, above = (pairs if len(below) == 0 else below).T
        steps = radii(self.places[child]) - radii(self.places[above])
        return outward(self.place(parent), float(steps.mean()) if len(steps) else 0.0)

    def scores(self, sample: int | None = None, *, seed: int = 0) -> dict[str, float]:
        """Mean rank and MAP of all ancestors of every node among all nodes, by distance.

        Args:
            sample: Nodes whose ancestors are ranked, at least 2, drawn at random; ``None`` for all,
                which takes time with the square of the number of nodes.
            seed: Seed of the draws.

        Returns:
            See :func:`~fedbolic.hierarchies.scores.ranking_scores`.

        Raises:
            ValueError: If the sample is too small, or parents are unknown.

        Example:
            >>> from fedbolic.data import balanced_tree
            >>> from fedbolic.hierarchies import TreeLayout
            >>> tree = balanced_tree(3, 4)
            >>> Embedding.of(tree, TreeLayout().place(tree)).scores()["map"]
            1.0
        """
        self._require_parents("scores")
        check_sample(sample)
        pairs, rng = self.hierarchy.closure().pairs, Rng(seed)
        return ranking_scores(self._distances, pairs, len(self), rng=rng, sample=sample)

    def index(self) -> HyperbolicIndex:
        """An index for many queries; it answers by the numbers of nodes.

        Raises:
            ValueError: If the places are not in a hyperbolic space, or scores are no distances.

        Example:
            >>> from fedbolic.manifolds import PolarPlaces
            >>> places = PolarPlaces(torch.tensor([0, 2**60, 2**62]), torch.ones(3).double())
            >>> embedding = Embedding(("lion", "tiger", "trout"), places)
            >>> _, numbers, _ = embedding.index().search([0], k=2)
            >>> [embedding.names[number] for number in numbers[0]]
            ['lion', 'tiger']
        """
        if isinstance(self.places, ScoredPlaces):
            raise ValueError(f"scores of {self.places.table} are no distances: use nearest")
        return HyperbolicIndex(self.places)

    def to_numpy(self, dtype: type[np.floating] = np.float64) -> np.ndarray:
        """The points in the Poincaré ball, one row for every node.

        Args:
            dtype: ``numpy.float64`` or ``numpy.float32``.

        Raises:
            ValueError: If the dtype is another, or cannot tell the points apart there.
        """
        name = np.dtype(dtype).name
        check.one_of(("float32", "float64"), dtype=name)
        return self.places.to_poincare(getattr(torch, name)).detach().cpu().numpy()

    def to_csv(self, file: Path | str, *, formulas: bool = False) -> None:
        """Write a table of names, parents and coordinates: see :func:`write_csv`.

        Args:
            file: New file.
            formulas: Whether to write names that a spreadsheet takes for formulas as they are.
        """
        write_csv(Path(file), *self._parts, formulas=formulas)

    def to_parquet(self, file: Path | str) -> None:
        """Write the same table as Parquet: see :func:`write_parquet`; needs the extra ``parquet``.

        Args:
            file: New file.
        """
        write_parquet(Path(file), *self._parts)

    def save(self, file: Path | str, card: Mapping[str, Any] | None = None) -> None:
        """Write a file that :meth:`load` reads.

        Args:
            file: A file that ends in ``.npz``, or in ``.safetensors`` with the extra ``export``.
            card: Plain values to keep in it, such as its origin.

        Raises:
            ValueError: If the file has another ending, or the places are of an unknown kind.
        """
        save_embedding(Path(file), *self._parts, card=card or {})

    @classmethod
    def load(cls, file: Path | str) -> "Embedding":
        """Read a file of :meth:`save`, :meth:`to_csv` or :meth:`to_parquet`; it runs no code.

        A ``.csv`` does not say the curvature of a ball or what biases are for; such places are
        refused.

        Args:
            file: The file.

        Raises:
            OSError: If the file is missing.
            ValueError: If the file is damaged or holds something else.
        """
        readers = {".csv": read_csv, ".parquet": read_parquet}
        try:
            return cls(*readers.get(Path(file).suffix, load_embedding)(Path(file)))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            why = f"it lacks {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{file} holds no embedding that can be read: {why}") from error

    @property
    def _parts(self) -> tuple[tuple[str, ...], Places, Tensor | None]:
        return self.names, self.places, self.parents

    def figure(self) -> DiscFigure:
        """The nodes of a plane and the geodesics to their parents, coloured by branch.

        Raises:
            ValueError: If the places have other than two dimensions, or lie too far out.
        """
        if self.places.dim != 2:
            raise ValueError(f"a disc has two dimensions, and the places have {self.places.dim}")
        c = self.places.manifold.c if isinstance(self.places, ManifoldPlaces) else 1.0
        return disc(self.places.to_lorentz(), self.hierarchy.closure(), c=float(c))

    def _distances(self, nodes: Tensor) -> Tensor:
        return self.places[nodes].cdist(self.places)

    def _above(self, node: int) -> list[int]:
        start, end = self.hierarchy.offsets[node : node + 2].tolist()
        return self.hierarchy.ancestors[start:end].tolist()

    def _place(self, query: str | Places) -> Places:
        if isinstance(query, str):
            return self.place(query)
        if not isinstance(query, Places):
            raise TypeError(f"a query is a name or a place, got {query!r:.80}")
        if len(query) != 1:
            raise ValueError(f"a query is one place, got {len(query)}")
        return query

    def _require_parents(self, asked: str) -> None:
        if self.parents is None:
            raise ValueError(
                f"{asked} needs the parents, which are unknown here: make the embedding with "
                "Embedding.of(hierarchy, places)"
            )
