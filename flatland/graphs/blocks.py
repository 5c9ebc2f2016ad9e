"""Graphs of several clients as one graph, with block-diagonal sparse matrices."""

import copy
import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from fedbolic.data import Graph
from fedbolic.federated.batched.buckets import pad_stack
from fedbolic.federated.contract.jagged import JaggedBlock
from flatland.graphs.sparse import Sparse, block_diagonal
from flatland.graphs.weak_cache import WeakCache, derived

Mixing = Literal["symmetric", "mean"]
"""Neighbour weights of a Euclidean convolution: those of Kipf and Welling, or equal ones."""


SMALL_GRAPH = 16
"""Number of nodes up to which all graphs cost about the same in a captured step."""


class _Sizes(NamedTuple):
    """Sizes of the tensors of a block besides its number of clients.

    Args:
        nodes: Nodes of the largest graph.
        neighbours: Entries of the matrices of neighbours.
        features: Entries of sparse features.
        graphs: Largest number of graphs of a client that holds several.
        members: Entries of the matrix of the nodes of these graphs.
    """

    nodes: int
    neighbours: int
    features: int
    graphs: int
    members: int


@dataclass(frozen=True, eq=False)
class GraphBlock(JaggedBlock):
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

    @classmethod
    @override
    def kind(cls, parts: tuple[Graph, ...]) -> Hashable:
        nodes = (max(SMALL_GRAPH, *map(len, parts)) - 1).bit_length()  # equal up to a factor of 2
        x, is_one = parts[0].features, parts[0].batch is None
        return nodes, x.is_sparse, x.dtype, x.shape[1], is_one

    @classmethod
    @override
    def with_room(cls, parts: tuple[Graph, ...], num_clients: int, like: Any) -> "GraphBlock":
        sizes = _sizes(parts)
        if like is not None:
            grown = (max(old, 6 * new // 5) for old, new in zip(like.sizes, sizes, strict=True))
            sizes = _Sizes(*grown)
        return _padded(parts, num_clients, sizes)

    @functools.cached_property
    def sizes(self) -> _Sizes:
        """Sizes for which there is room."""
        x, of = self.features, self.members
        return _Sizes(
            self.shape[1],
            len(self.neighbours.column),
            0 if isinstance(x, Tensor) else len(x.column),
            0 if of is None else (len(of.start) - 1) // self.shape[0],
            0 if of is None else len(of.column),
        )

    @override
    def fits(self, parts: tuple[Graph, ...]) -> bool:
        needed = zip(_sizes(parts), self.sizes, strict=True)
        return len(parts) <= self.shape[0] and all(need <= own for need, own in needed)

    @override
    def load(self, parts: tuple[Graph, ...]) -> None:
        if vars(self).get("_loaded") != parts:
            _copy_values(self, _padded(parts, self.shape[0], self.sizes))
            vars(self)["_loaded"] = parts

    @override
    def mapped(self, function: Callable[[Tensor], Tensor]) -> "GraphBlock":
        return _mapped(self, function)

    @functools.cached_property
    def mean(self) -> Sparse:
        """``neighbours`` in the dtype of the features."""
        matrix, dtype = self.neighbours, self.norms.dtype
        found = replace(matrix, value=matrix.value.to(dtype))
        if (back := vars(matrix).get("transposed")) is not None:
            vars(found)["transposed"] = replace(back, value=back.value.to(dtype))
        return found

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
    def examples(self) -> WeakCache[Any, tuple[Tensor, Tensor, Tensor]]:
        """Padded places and labels of splits of the clients, and their numbers of examples.

        The block keeps them while an engine scores the same splits.
        """
        return WeakCache(_pad, size=8)

    @functools.cached_property
    def num_neighbours(self) -> Int64[Tensor, "clients n"]:
        """Number of neighbours of each node, itself among them; 0 for padding.

        A matrix with room for more entries has zeros in its first row, which are no neighbours.
        """
        matrix = self.neighbours
        before = functional.pad((matrix.value != 0).cumsum(0), (1, 0))
        return before[matrix.start.long()].diff().view(self.shape)

    @functools.cached_property
    def num_nodes(self) -> Int64[Tensor, " clients"]:
        """Number of nodes of each client; every one is its own neighbour, unlike padding."""
        return (self.num_neighbours > 0).sum(dim=1)

    @functools.cached_property
    def graph_sizes(self) -> Float[Tensor, "clients graphs 1"]:
        """Number of nodes of each graph, in float64; 1 for an empty one."""
        ones = torch.ones(*self.shape, 1, dtype=torch.float64, device=self.norms.device)
        return self.pool(ones).clamp(min=1)


def graph_block(graphs: tuple[Any, ...]) -> GraphBlock:
    """Block of graphs that share a device, a dtype and a kind of features (sparse or dense).

    Args:
        graphs: One graph per client, or a single block.

    Example:
        >>> labels = torch.zeros(1, dtype=torch.int64)
        >>> lonely = Graph(torch.ones(1, 2), labels.expand(2, 0), labels)
        >>> graph_block((lonely, lonely)).shape
        (2, 1)
    """
    first, *others = graphs
    if isinstance(first, GraphBlock):
        return first
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


def _sizes(graphs: tuple[Graph, ...]) -> _Sizes:
    """Sizes of the block of some graphs."""
    parts = [graph_block((graph,)) for graph in graphs]
    found = [part.sizes for part in parts]
    nodes, neighbours, features, num_graphs, members = zip(*found, strict=True)
    return _Sizes(max(nodes), sum(neighbours), sum(features), max(num_graphs), sum(members))


def _padded(graphs: tuple[Graph, ...], num_clients: int, sizes: _Sizes) -> GraphBlock:
    """Block of several graphs, in tensors of given sizes; further clients have no nodes."""
    parts, n = [graph_block((graph,)) for graph in graphs], sizes.nodes
    empty, first = num_clients - len(parts), parts[0].features

    def dense(rows: Sequence[Any]) -> Tensor:
        return functional.pad(torch.cat([_filled(x, n) for x in rows]), (0, 0, 0, 0, 0, empty))

    def sparse(of: Sequence[Sparse], rows: int, width: int, num_entries: int) -> Sparse:
        room = {"num_blocks": num_clients, "num_entries": num_entries}
        found = block_diagonal(of, rows, width, **room)
        # from those of the parts, which are known: no wait for the device
        transposed = block_diagonal([x.transposed for x in of], width, rows, **room)
        vars(found)["transposed"] = transposed
        return found

    features: Any = [part.features for part in parts]
    members = [part.members for part in parts if part.members is not None]
    return GraphBlock(
        dense(features)
        if isinstance(first, Tensor)
        else sparse(features, n, first.width, sizes.features),
        dense([part.norms for part in parts]),
        sparse([part.neighbours for part in parts], n, n, sizes.neighbours),
        sparse([part.symmetric for part in parts], n, n, sizes.neighbours),
        sparse(members, sizes.graphs, n, sizes.members) if members else None,
    )


def _copy_values(to: Any, of: Any) -> None:
    """Copy all values of a block or matrix into those of another, also the computed ones."""
    vars(to).pop("csr", None)  # only read where nothing is captured
    for name, x in vars(to).items():
        if name == "_mixed":
            for mixing, values in x.items():
                values.copy_(of.mixed(mixing))
        elif name == "_derived":
            for (compute, *given), values in x.items():
                _copy_values(values, derived(of, compute, *given))
        elif isinstance(x, Tensor):
            x.copy_(getattr(of, name))
        elif isinstance(x, Sparse):
            _copy_values(x, getattr(of, name))


def _mapped(x: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Copy of a block, of a matrix or of a dictionary with a function of every dense tensor."""
    if isinstance(x, Tensor):
        return function(x)
    if isinstance(x, dict):
        return {name: _mapped(value, function) for name, value in x.items()}
    if not isinstance(x, GraphBlock | Sparse):
        return x
    made = copy.copy(x)
    vars(made).pop("csr", None)
    vars(made).update({name: _mapped(value, function) for name, value in vars(made).items()})
    return made


def _pad(splits: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Padded places and labels of the examples of all clients, and the numbers of examples."""
    places = pad_stack([split.places for split in splits])
    labels = pad_stack([split.labels for split in splits])
    return places, labels, torch.tensor([len(split) for split in splits], device=places.device)


_joined = WeakCache(_join, size=4)
"""Result of :func:`_join`, as an engine groups the same clients in every round."""


def _filled(rows: Float[Tensor, "1 m k"], n: int) -> Float[Tensor, "1 n k"]:
    return functional.pad(rows, (0, 0, 0, n - rows.shape[1]))


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
