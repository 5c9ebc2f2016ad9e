"""Graphs of some clients as one: sparse matrices with the clients' own along the diagonal."""

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int, Int32, Int64
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from fedbolic.data import Graph

Mixing = Literal["symmetric", "mean"]
"""How a flat convolution weighs neighbours: as Kipf and Welling do, or all alike."""


@dataclass(frozen=True, eq=False)
class Sparse:
    """A sparse matrix by its rows, whose numbers are not trained.

    The columns of all entries stand in a list; those of row i begin at ``start[i]`` and end before
    ``start[i + 1]``.

    Args:
        start: Where every row begins, and the number of entries.
        column: Of every entry.
        value: Of every entry.
        width: Number of columns.

    Example:
        >>> eye = Sparse.of(torch.ones(2, dtype=torch.int64), torch.arange(2), torch.ones(2), 2)
        >>> eye.times(torch.tensor([[1.0], [2.0]])).tolist()
        [[1.0], [2.0]]
    """

    start: Int32[Tensor, " rows_and_one"]
    column: Int32[Tensor, " entries"]
    value: Float[Tensor, " entries"]
    width: int

    @classmethod
    def of(
        cls,
        counts: Int64[Tensor, " n"],
        column: Int[Tensor, " entries"],
        value: Float[Tensor, " entries"],
        width: int,
    ) -> "Sparse":
        """The matrix with so many entries in every row."""
        start = functional.pad(counts.cumsum(0), (1, 0))
        return cls(start.int(), column.int(), value, width)

    @property
    def counts(self) -> Int64[Tensor, " n"]:
        """Entries of every row."""
        return self.start.long().diff()

    @functools.cached_property
    def transposed(self) -> "Sparse":
        """The same numbers by columns."""
        num_rows = len(self.start) - 1
        row = torch.arange(num_rows, device=self.start.device).repeat_interleave(self.counts)
        order = self.column.argsort(stable=True)
        counts = torch.bincount(self.column, minlength=self.width)
        return Sparse.of(counts, row[order], self.value[order], num_rows)

    @functools.cached_property
    def csr(self) -> Tensor:
        """The same as torch has it."""
        with warnings.catch_warnings():  # that the layout is new
            warnings.simplefilter("ignore", UserWarning)
            shape = len(self.start) - 1, self.width
            return torch.sparse_csr_tensor(self.start, self.column, self.value, shape)

    def times(self, x: Float[Tensor, "width k"]) -> Float[Tensor, "n k"]:
        """The product with a dense matrix, neither of which is ever blown up."""
        return _Product.apply(x, self)


class _Product(torch.autograd.Function):
    """A sparse product whose way back is one, too: torch's own sorts the entries every time."""

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, matrix: Sparse) -> Tensor:
        ctx.matrix = matrix
        return _gathered(matrix, x)

    @staticmethod
    @override
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, None]:
        return _gathered(ctx.matrix.transposed, grad[0]), None


def _gathered(matrix: Sparse, x: Tensor) -> Tensor:
    if x.dtype == torch.float64 and x.device.type == "cpu":  # twice as fast there, and there alone
        return torch.sparse.mm(matrix.csr, x.contiguous(), "sum")
    return functional.embedding_bag(
        matrix.column,
        x.contiguous(),
        matrix.start,
        mode="sum",
        per_sample_weights=matrix.value,
        include_last_offset=True,
    )


@dataclass(frozen=True, eq=False)
class GraphBlock:
    """Graphs of some clients as one, each filled up to the nodes of the largest.

    Nodes that fill up have no features and no neighbour, themselves included.

    Args:
        features: Of every node: a row of a matrix with the clients' own along its diagonal, or of
            dense ones side by side.
        norms: Lengths of the features.
        neighbours: The mean over the neighbours of a node and itself, in float64.
        symmetric: The same with the weights of Kipf and Welling (2017), Eq. (2).
    """

    features: Sparse | Float[Tensor, "clients n width"]
    norms: Float[Tensor, "clients n 1"]
    neighbours: Sparse
    symmetric: Sparse

    @property
    def shape(self) -> tuple[int, int]:
        """Clients, and nodes of the largest."""
        return self.norms.shape[0], self.norms.shape[1]

    def map_features(self, weight: Float[Tensor, "*clients width k"]) -> Tensor:
        """Every client's features times its own matrix."""
        if isinstance(self.features, Tensor):
            return self.features @ weight
        return self.features.times(weight.reshape(-1, weight.shape[-1])).unflatten(0, self.shape)

    @functools.cached_property
    def mean(self) -> Sparse:
        """``neighbours``, in the dtype of the features."""
        return replace(self.neighbours, value=self.neighbours.value.to(self.norms.dtype))

    @functools.cached_property
    def _mixed(self) -> dict[str, Tensor]:
        return {}

    def mixed(self, mixing: Mixing) -> Float[Tensor, "clients n width"] | None:
        """Dense features with those of neighbours mixed in, once and for all; of sparse ones none.

        Args:
            mixing: Which of the block's matrices mixes them.
        """
        if isinstance(self.features, Tensor) and mixing not in self._mixed:
            self._mixed[mixing] = self.gather(getattr(self, mixing), self.features)
        return self._mixed.get(mixing)

    def gather(self, matrix: Sparse, x: Float[Tensor, "clients n k"]) -> Tensor:
        """Aggregated features of every node's neighbours; ``matrix`` is one of the block's own."""
        return matrix.times(x.flatten(0, 1)).unflatten(0, self.shape)


_ALONE: WeakKeyDictionary[Graph, GraphBlock] = WeakKeyDictionary()
"""The block of each single graph, as long as somebody holds the graph."""


def graph_block(graphs: tuple[Graph, ...]) -> GraphBlock:
    """The block of some graphs, which are of one device, dtype and kind of features.

    Args:
        graphs: By client.

    Example:
        >>> labels = torch.zeros(1, dtype=torch.int64)
        >>> lonely = Graph(torch.ones(1, 2), labels.expand(2, 0), labels)
        >>> graph_block((lonely, lonely)).shape
        (2, 1)
    """
    first, *others = graphs
    if others:
        return _joined(graphs)
    if first not in _ALONE:
        _ALONE[first] = _alone(first)
    return _ALONE[first]


@functools.lru_cache(maxsize=4)  # the same clients go together in every round
def _joined(graphs: tuple[Graph, ...]) -> GraphBlock:
    parts = [graph_block((graph,)) for graph in graphs]
    n = max(map(len, graphs))
    features = [part.features for part in parts]
    first = features[0]
    return GraphBlock(
        torch.cat([_filled(cast("Tensor", x), n) for x in features])
        if isinstance(first, Tensor)
        else _diagonal(features, n, first.width),
        torch.cat([_filled(part.norms, n) for part in parts]),
        _diagonal([part.neighbours for part in parts], n, n),
        _diagonal([part.symmetric for part in parts], n, n),
    )


def _filled(rows: Float[Tensor, "1 m k"], n: int) -> Float[Tensor, "1 n k"]:
    return functional.pad(rows, (0, 0, 0, n - rows.shape[1]))


def _diagonal(parts: Sequence[Any], n: int, width: int) -> Sparse:
    """Matrices along a diagonal, every one of ``width`` columns and filled up to ``n`` rows."""
    counts = [functional.pad(part.counts, (0, n - len(part.counts))) for part in parts]
    columns = [i * width + part.column for i, part in enumerate(parts)]
    value = torch.cat([part.value for part in parts])
    return Sparse.of(torch.cat(counts), torch.cat(columns), value, len(parts) * width)


def _alone(graph: Graph) -> GraphBlock:
    column, counts = graph.neighbours, graph.degrees + 1
    features, norms = _rows(graph.features)
    share = counts.to(graph.features.dtype).rsqrt()
    symmetric = share[column] * share.repeat_interleave(counts)
    mean = (1 / counts.double()).repeat_interleave(counts)
    return GraphBlock(
        features,
        norms.reshape(1, -1, 1),
        Sparse.of(counts, column, mean, len(graph)),
        Sparse.of(counts, column, symmetric, len(graph)),
    )


def _rows(features: Float[Tensor, "n width"]) -> tuple[Sparse | Tensor, Float[Tensor, " n"]]:
    """The features of one graph as a block holds them, and their lengths."""
    if not features.is_sparse:
        return features.unsqueeze(0), features.norm(dim=1)
    (row, column), value = features.indices(), features.values()
    counts = torch.bincount(row, minlength=len(features))
    squares = torch.zeros(len(features), dtype=value.dtype, device=value.device)
    norms = squares.index_add(0, row, value * value).sqrt()
    return Sparse.of(counts, column, value, features.shape[1]), norms
