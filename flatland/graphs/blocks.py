"""Graphs of several clients as one graph, with block-diagonal sparse matrices."""

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, Int, Int32, Int64
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from fedbolic.data import Graph
from flatland.graphs.weak_cache import WeakCache, derived

Mixing = Literal["symmetric", "mean"]
"""Neighbour weights of a Euclidean convolution: those of Kipf and Welling, or equal ones."""


@dataclass(frozen=True, eq=False)
class Sparse:
    """Constant sparse matrix in compressed row format (CSR).

    The entries of row i have the positions from ``start[i]`` up to, but excluding,
    ``start[i + 1]``.

    Args:
        start: Position of the first entry of each row, then the number of entries.
        column: Column of each entry.
        value: Value of each entry; receives no gradient.
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
        """Build a matrix from the number of entries in each row."""
        start = functional.pad(counts.cumsum(0), (1, 0))
        return cls(start.int(), column.int(), value, width)

    @property
    def counts(self) -> Int64[Tensor, " n"]:
        """Number of entries in each row."""
        return self.start.long().diff()

    @functools.cached_property
    def transposed(self) -> "Sparse":
        """The transposed matrix."""
        num_rows = len(self.start) - 1
        row = torch.arange(num_rows, device=self.start.device).repeat_interleave(self.counts)
        order = self.column.argsort(stable=True)
        counts = torch.bincount(self.column, minlength=self.width)
        return Sparse.of(counts, row[order], self.value[order], num_rows)

    @functools.cached_property
    def csr(self) -> Tensor:
        """The matrix as a sparse CSR tensor of PyTorch."""
        with warnings.catch_warnings():  # PyTorch warns that the layout is in beta
            warnings.simplefilter("ignore", UserWarning)
            shape = len(self.start) - 1, self.width
            return torch.sparse_csr_tensor(self.start, self.column, self.value, shape)

    def times(self, x: Float[Tensor, "width k"]) -> Float[Tensor, "n k"]:
        """Product with a dense matrix, without a dense copy of the sparse one.

        Half types, which automatic casts give, are summed in the type of the sparse matrix.
        """
        return _Product.apply(x.to(torch.promote_types(x.dtype, self.value.dtype)), self)


class _Product(torch.autograd.Function):
    """Sparse product with a cached transpose: PyTorch's backward sorts the entries every time."""

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
    on_cpu = x.device.type == "cpu" and not torch.compiler.is_compiling()
    if on_cpu and x.dtype == torch.float64:  # twice as fast, but only in this case
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
    """Graphs of several clients, each padded to the node count of the largest.

    Padding nodes have zero features and no neighbours, not even themselves.

    Args:
        features: Node features: one block-diagonal sparse matrix, or a stack of dense matrices.
        norms: Euclidean norms of the feature vectors.
        neighbours: Matrix of the mean over a node and its neighbours, in float64.
        symmetric: Matrix of the weights of Kipf and Welling (2017), Eq. (2).
        members: Matrix of the sum over the nodes of each graph, in float64, where a client holds
            several graphs; ``None`` otherwise. Clients with fewer graphs have empty ones.
    """

    features: Sparse | Float[Tensor, "clients n width"]
    norms: Float[Tensor, "clients n 1"]
    neighbours: Sparse
    symmetric: Sparse
    members: Sparse | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of clients, and of nodes in the largest graph."""
        return self.norms.shape[0], self.norms.shape[1]

    def map_features(self, weight: Float[Tensor, "*clients width k"]) -> Tensor:
        """Features of each client times that client's matrix."""
        if isinstance(self.features, Tensor):
            return self.features @ weight
        return self.features.times(weight.reshape(-1, weight.shape[-1])).unflatten(0, self.shape)

    @functools.cached_property
    def mean(self) -> Sparse:
        """``neighbours`` in the dtype of the features."""
        return replace(self.neighbours, value=self.neighbours.value.to(self.norms.dtype))

    @functools.cached_property
    def _mixed(self) -> dict[str, Tensor]:
        return {}

    def mixed(self, mixing: Mixing) -> Float[Tensor, "clients n width"] | None:
        """Dense features averaged over neighbours, computed once; ``None`` for sparse features.

        Args:
            mixing: Name of the matrix that averages them.
        """
        if isinstance(self.features, Tensor) and mixing not in self._mixed:
            self._mixed[mixing] = self.gather(getattr(self, mixing), self.features)
        return self._mixed.get(mixing)

    def gather(self, matrix: Sparse, x: Float[Tensor, "clients n k"]) -> Tensor:
        """Weighted sums of ``x`` over the neighbours of each node.

        Args:
            matrix: Weights: a matrix of this block, or its transpose.
            x: One vector per node.
        """
        return matrix.times(x.flatten(0, 1)).unflatten(0, self.shape)

    def pool(self, x: Float[Tensor, "clients n k"]) -> Float[Tensor, "clients graphs k"]:
        """Sums of ``x`` over the nodes of each graph of a client, in float64.

        Args:
            x: One vector per node.

        Raises:
            ValueError: If the clients do not hold several graphs.
        """
        if self.members is None:
            raise ValueError(
                "a readout needs graphs as examples, and each client holds one graph: use the "
                "source fedbolic.data.GraphClassification, or a network without a readout"
            )
        return self.members.times(x.double().flatten(0, 1)).unflatten(0, (len(x), -1))

    @functools.cached_property
    def num_nodes(self) -> Int64[Tensor, " clients"]:
        """Number of nodes of each client; every one is its own neighbour, unlike padding."""
        return (self.neighbours.counts > 0).view(self.shape).sum(dim=1)

    @functools.cached_property
    def graph_sizes(self) -> Float[Tensor, "clients graphs 1"]:
        """Number of nodes of each graph, in float64; 1 for an empty one."""
        ones = torch.ones(*self.shape, 1, dtype=torch.float64, device=self.norms.device)
        return self.pool(ones).clamp(min=1)


def graph_block(graphs: tuple[Graph, ...]) -> GraphBlock:
    """Block of graphs that share a device, a dtype and a kind of features (sparse or dense).

    Args:
        graphs: One graph per client.

    Example:
        >>> labels = torch.zeros(1, dtype=torch.int64)
        >>> lonely = Graph(torch.ones(1, 2), labels.expand(2, 0), labels)
        >>> graph_block((lonely, lonely)).shape
        (2, 1)
    """
    first, *others = graphs
    return _joined(graphs) if others else derived(first, _alone)


def _join(graphs: tuple[Graph, ...]) -> GraphBlock:
    """Block of several graphs, each padded to the node count of the largest."""
    parts = [graph_block((graph,)) for graph in graphs]
    n = max(map(len, graphs))
    features = [part.features for part in parts]
    first = features[0]
    members = [part.members for part in parts if part.members is not None]
    return GraphBlock(
        torch.cat([_filled(cast("Tensor", x), n) for x in features])
        if isinstance(first, Tensor)
        else block_diagonal(features, n, first.width),
        torch.cat([_filled(part.norms, n) for part in parts]),
        block_diagonal([part.neighbours for part in parts], n, n),
        block_diagonal([part.symmetric for part in parts], n, n),
        block_diagonal(members, max(len(of.counts) for of in members), n) if members else None,
    )


_joined = WeakCache(_join, size=4)
"""Result of :func:`_join`, as an engine groups the same clients in every round."""


def _filled(rows: Float[Tensor, "1 m k"], n: int) -> Float[Tensor, "1 n k"]:
    return functional.pad(rows, (0, 0, 0, n - rows.shape[1]))


def block_diagonal(parts: Sequence[Any], n: int, width: int) -> Sparse:
    """Block-diagonal matrix of ``parts``, each with ``width`` columns and padded to ``n`` rows.

    Args:
        parts: Sparse matrices of at most ``n`` rows and ``width`` columns.
        n: Number of rows of each block.
        width: Number of columns of each block.
    """
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
        None if graph.batch is None else _members(graph.batch),
    )


def _members(batch: Int64[Tensor, " n"]) -> Sparse:
    """Matrix of the sum over the nodes of each graph, which are consecutive."""
    nodes = torch.arange(len(batch), device=batch.device)
    ones = torch.ones(len(batch), dtype=torch.float64, device=batch.device)
    return Sparse.of(batch.bincount(), nodes, ones, len(batch))


def _rows(features: Float[Tensor, "n width"]) -> tuple[Sparse | Tensor, Float[Tensor, " n"]]:
    """Features of one graph in the format of a block, and their norms."""
    if not features.is_sparse:
        return features.unsqueeze(0), features.norm(dim=1)
    (row, column), value = features.indices(), features.values()
    counts = torch.bincount(row, minlength=len(features))
    squares = torch.zeros(len(features), dtype=value.dtype, device=value.device)
    norms = squares.index_add(0, row, value * value).sqrt()
    return Sparse.of(counts, column, value, features.shape[1]), norms
