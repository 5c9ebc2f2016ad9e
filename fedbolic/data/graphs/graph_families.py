"""Families of small labelled graphs: the TU data sets, and generated ones."""

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.reading import lines, open_file
from fedbolic.core.rng import Rng
from fedbolic.data.files.published_files import search_path
from fedbolic.data.graphs.graph import Graph, simple_edges

TU_SITE = "https://www.chrsmrrs.com/graphkerneldatasets"
"""Site of the TU data sets: one ``.zip`` each."""

MOST_NODE_LABELS = 2**12
"""Maximum number of integers that labels of nodes span, each of which is a feature."""


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
            return self._graphs(folder)
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"{folder} is damaged ({error}): unpack it again") from error

    def _graphs(self, folder: Path) -> Graph:
        """The union of all graphs in the files of a folder."""
        if not (folder / f"{self.name}_graph_labels.txt").is_file():
            raise ValueError("it has no graph labels: take a data set for classification")
        edges, places, labels = (
            _whole(_table(folder, self.name, part), part)
            for part in ("A", "graph_indicator", "graph_labels")
        )
        batch = places[:, 0] - 1
        if edges.shape[1] != 2:
            raise ValueError(f"edges have {edges.shape[1]} ends")
        if not torch.equal(batch.unique(), torch.arange(len(labels))):
            raise ValueError(
                f"there are {len(labels)} labels of graphs, but nodes are in the graphs "
                f"{batch.unique()[:10].tolist()}, counted from 0: leave a graph without nodes out"
            )
        widths: list[Tensor] = []
        if (folder / f"{self.name}_node_attributes.txt").is_file():
            widths += [torch.from_numpy(_table(folder, self.name, "node_attributes")).float()]
        if (folder / f"{self.name}_node_labels.txt").is_file():
            codes = _whole(_table(folder, self.name, "node_labels"), "node_labels")
            widths += [_one_hot(column) for column in codes.unbind(dim=1)]
        if any(len(values) != len(batch) for values in widths):
            raise ValueError(f"there are {len(batch)} nodes, but other numbers of features")
        features = torch.cat([torch.zeros(len(batch), 0), *widths], dim=1)
        y = labels[:, 0].unique(return_inverse=True)[1]
        ends = simple_edges(edges.T - 1, len(batch))
        return Graph(features, ends, y[batch], batch=batch)

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


def _table(folder: Path, name: str, part: str) -> NDArray[np.float64]:
    """Numbers of a text file, one row per line, with commas between them."""
    file = folder / f"{name}_{part}.txt"
    with open_file(file) as opened:
        rows = lines(opened, str(file))
        first = next(rows, "")
        if not first.strip():
            raise ValueError(f"{file} is empty")
        found = np.loadtxt(itertools.chain([first], rows), np.float64, delimiter=",", ndmin=2)
    if not np.isfinite(found).all():
        raise ValueError(f"{file} holds numbers that are not finite")
    return found


def _whole(values: NDArray[np.float64], part: str) -> Int64[Tensor, "n width"]:
    if (np.abs(values) >= 2**53).any() or (values % 1 != 0).any():
        raise ValueError(f"{part} holds numbers that are no integers")
    return torch.from_numpy(values.astype(np.int64))


def _one_hot(labels: Int64[Tensor, " n"]) -> Float[Tensor, "n width"]:
    """One column for every integer from the smallest label to the largest."""
    width = int(labels.max() - labels.min()) + 1
    if width > MOST_NODE_LABELS:
        raise ValueError(
            f"labels of nodes span {width} integers, but {MOST_NODE_LABELS} is the maximum"
        )
    ones = torch.zeros(len(labels), width)
    return ones.scatter_(1, (labels - labels.min())[:, None], 1.0)


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
