"""Families of small labelled graphs: the TU data sets, and generated ones."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic import check
from fedbolic.data.files import search_path
from fedbolic.data.graph import Graph, simple_edges
from fedbolic.data.graph_sets import joined_tu_graphs
from fedbolic.rng import Rng

TU_SITE = "https://www.chrsmrrs.com/graphkerneldatasets"
"""Site of the TU data sets: one ``.zip`` each."""


class GraphFamily(ABC):
    """A data set of labelled graphs."""

    @abstractmethod
    def read(self, rng: Rng, root: Path | None) -> Graph:
        """Read or generate all graphs, as one union with a ``batch``.

        Every node has the label of its graph. Features of width 0 mean that there are none.

        Args:
            rng: Random stream; used by generated families only.
            root: The only folder to read from; ``None`` for the folder named by the environment
                variable ``FEDBOLIC_DATA``.

        Raises:
            FileNotFoundError: If a file is missing; the message says where to get it.
            ValueError: If the data are damaged, or not for classification.
        """


@dataclass(frozen=True)
class TUFamily(GraphFamily):
    """A TU data set for graph classification, such as MUTAG, PROTEINS or IMDB-BINARY.

    The folder is ``NAME/raw``, as PyG's ``TUDataset`` leaves it, or ``NAME``, as the unpacked
    archive of the site has it, in the root or in ``tu`` below it. Node attributes and one-hot node
    labels are the features; attributes and labels of edges are not used.

    Args:
        name: Name of the data set.

    References:
        Morris et al. (2020), arXiv:2007.08663.
    """

    name: str

    @override
    def read(self, rng: Rng, root: Path | None) -> Graph:
        folder = self._folder(root)
        try:
            data, slices = joined_tu_graphs(folder, self.name)
        except Exception as error:  # PyG raises many kinds for a damaged file
            raise ValueError(f"{folder} is damaged ({error!r}): unpack it again") from error
        if not isinstance(data.y, Tensor) or data.y.is_floating_point():
            raise ValueError(f"{folder} has no graph labels: take a data set for classification")
        # without features PyG keeps the sizes elsewhere
        sizes = slices["x"].diff() if "x" in slices else torch.tensor(data._num_nodes)
        batch = torch.arange(len(sizes)).repeat_interleave(sizes)
        if not bool(sizes.all()):
            raise ValueError(f"{folder} has a graph without nodes: leave it out")
        features = torch.zeros(len(batch), 0) if data.x is None else data.x.float()
        starts = (sizes.cumsum(0) - sizes).repeat_interleave(slices["edge_index"].diff())
        edges = simple_edges(cast("Tensor", data.edge_index) + starts, len(batch))
        return Graph(features, edges, data.y[batch], batch=batch)

    def _folder(self, root: Path | None) -> Path:
        places = [Path(part) for part in (f"{self.name}/raw", self.name)]
        bases = [base / below for base in search_path(root) for below in ("", "tu")]
        for folder in (base / place for base in bases for place in places):
            if (folder / f"{self.name}_A.txt").is_file():
                return folder
        raise FileNotFoundError(
            f"{self.name}_A.txt is not in {self.name}/raw or {self.name} of "
            f"{' or '.join(map(str, bases)) or 'any folder, as FEDBOLIC_DATA is not set'}: unpack "
            f"{TU_SITE}/{self.name}.zip there"
        )


@dataclass(frozen=True)
class TreesAndRings(GraphFamily):
    """Generated random trees (label 0) and rings with chords (label 1), without features.

    A tree is a uniform recursive tree; a ring with n nodes has about ``n / 4`` random chords. Some
    edges are then replaced by random ones, so that the classes overlap.

    Args:
        num_graphs: Number of graphs, at least 2; every other one is a ring.
        least: Least number of nodes, at least 3.
        most: Largest number of nodes; the number is uniform.
        rewired: Probability that an edge is replaced, in [0, 1].

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> union = TreesAndRings(num_graphs=4, least=5, most=5, rewired=0.0).read(Rng(0), None)
        >>> union.labels.tolist()[::5], int(union.degrees[:5].sum()) // 2
        ([0, 1, 0, 1], 4)
    """

    num_graphs: int = 60
    least: int = 6
    most: int = 14
    rewired: float = 0.2

    def __post_init__(self) -> None:
        check.at_least(2, num_graphs=self.num_graphs)
        check.at_least(3, least=self.least)
        check.at_least(self.least, most=self.most)
        check.rate(rewired=self.rewired)

    @override
    def read(self, rng: Rng, root: Path | None) -> Graph:
        numbers = rng.at("sizes").numpy().integers(self.least, self.most + 1, size=self.num_graphs)
        sizes = torch.from_numpy(numbers)
        starts = (sizes.cumsum(0) - sizes).tolist()
        edges = [
            start + self._edges(i % 2, n, rng.at("graph", i))
            for i, (n, start) in enumerate(zip(sizes.tolist(), starts, strict=True))
        ]
        batch = torch.arange(self.num_graphs).repeat_interleave(sizes)
        everything = simple_edges(torch.cat(edges, dim=1), len(batch))
        return Graph(torch.zeros(len(batch), 0), everything, batch % 2, batch=batch)

    def _edges(self, label: int, n: int, rng: Rng) -> Tensor:
        """Edges of one graph in one direction, possibly with repetitions or self loops."""
        generator = rng.generator()
        nodes = torch.arange(n)
        if label:
            chords = torch.randint(n, (2, n // 4), generator=generator)
            edges = torch.cat((torch.stack((nodes, (nodes + 1) % n)), chords), dim=1)
        else:
            above = (torch.rand(n - 1, generator=generator) * nodes[1:]).long()
            edges = torch.stack((nodes[1:], above))
        others = torch.randint(n, edges.shape, generator=generator)
        return torch.where(
            torch.rand(edges.shape[1], generator=generator) < self.rewired, others, edges
        )
