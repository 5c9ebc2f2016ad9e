"""FedStar: an encoder of structure for all clients, next to personal layers for features."""

import itertools
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from scipy import sparse
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.types import Meta, Tree
from fedbolic.data import Client, Graph
from fedbolic.federated.contract.jagged import Jagged
from fedbolic.federated.contract.sharing import Sharing
from fedbolic.nn.layers.dropout import Dropout
from flatland.graphs.blocks import GraphBlock
from flatland.graphs.graph_method import GraphMethod
from flatland.graphs.model import (
    ConvolutionalNetwork,
    Flat,
    FlatHead,
    GraphNetwork,
    SpaceLinear,
    per_client,
)
from flatland.graphs.readout import GraphReadout
from flatland.graphs.weak_cache import derived

STRUCTURE: Sharing = {"structure.*": "shared", "*": "personal"}
"""Sharing table of FedStar: clients have the encoder of structure in common."""


@dataclass(frozen=True)
class StructureGIN(ConvolutionalNetwork):
    r"""Convolutions of features that also read an encoder of structure, which reads no features.

    .. math::
        x' = \mathrm{drop}\Bigl(\sigma\Bigl(\mathrm{MLP}\Bigl(
        \sum_{j \in N(i) \cup i} x_j \,\Vert\, s_j \Bigr)\Bigr)\Bigr), \qquad
        s' = \tanh\bigl(D^{-1/2} (A + I) D^{-1/2} s M + b\bigr)

    from linear maps of the features and of the structure embedding: the probabilities that a random
    walk is back after 1, 2, ... steps, and the degree, as one of several classes. A linear map
    joins both ends, and a layer with an activation and a linear head follow. Where graphs are
    classified, ``GraphReadout`` reads them out behind the linear map; the paper takes the sum.

    Args:
        widths: Output width of each convolution, at least one; both channels are equally wide.
        walks: Largest number of steps of a walk, at least 1.
        degrees: Number of classes of degrees, at least 1; the last one is for all larger ones.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Tan et al. (2023), Secs. 4.1 and 4.2, arXiv:2211.13009.

    Example:
        >>> StructureGIN((16, 16)).walks
        16
    """

    walks: int = 16
    degrees: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        check.at_least(1, walks=self.walks, degrees=self.degrees)

    @override
    def build(self, meta: Meta) -> nn.Module:
        sizes = self.widths[0], *self.widths
        width = meta.input_shape[0]
        return _StructureNetwork(width, self.walks + self.degrees, sizes, meta.num_classes, self)


class _StructureNetwork(Flat):
    """Both channels; parameters with the prefix ``structure.`` read no features."""

    def __init__(
        self,
        width: int,
        num_encodings: int,
        sizes: tuple[int, ...],
        num_classes: int,
        of: StructureGIN,
    ) -> None:
        head = FlatHead(sizes[-1], num_classes)
        super().__init__((2 * sizes[0], *sizes[1:]), head, of.dropout, of.activation)
        pairs = list(itertools.pairwise(sizes))
        self.features = SpaceLinear(width, sizes[0])
        self.body = nn.ModuleList(
            nn.ModuleList((FlatHead(2 * start, end), FlatHead(end, end))) for start, end in pairs
        )
        self.structure = nn.ModuleList(
            (SpaceLinear(num_encodings, sizes[0]), *(SpaceLinear(*pair) for pair in pairs))
        )
        self.joined, self.last = FlatHead(2 * sizes[-1], sizes[-1]), FlatHead(sizes[-1], sizes[-1])
        self.dropout = nn.ModuleList(Dropout(of.dropout) for _ in sizes)

    @override
    def forward(self, block: GraphBlock) -> Float[Tensor, "clients n classes"]:
        """One logit per class for each node or, behind a readout, for each graph."""
        x, s = self._embedded(block)
        counts = block.num_neighbours.unsqueeze(-1).to(x.dtype)
        _, *convolutions = cast("list[SpaceLinear]", list(self.structure))
        for features, structural, drop in zip(self.body, convolutions, self.dropout, strict=False):
            first, second = cast("nn.ModuleList", features)
            around = block.gather(block.mean, torch.cat((x, s), -1)) * counts
            x = drop(self.activation(second(self.activation(first(around)))))
            s = torch.tanh(
                block.gather(block.symmetric, s @ structural.space) + per_client(structural.bias)
            )
        x = self.joined(torch.cat((x, s), -1))
        x = x if self.readout is None else self.readout(x, block)
        return self.head(self.dropout[-1](self.activation(self.last(x))))

    def _embedded(self, block: GraphBlock) -> tuple[Tensor, Tensor]:
        """Both channels' first vectors; encodings are the last columns of the features."""
        of, encodings = self.features, cast("SpaceLinear", self.structure[0])
        (width, k), rows = of.space.shape[-2:], encodings.space.shape[-2]
        both = pad(of.space, (0, k, 0, rows)) + pad(encodings.space, (k, 0, width, 0))
        found = block.map_features(both) + per_client(torch.cat((of.bias, encodings.bias), -1))
        return found[..., :k], found[..., k:]


@dataclass(frozen=True)
class FedStar(GraphMethod):
    r"""Federated averaging of an encoder of structure; all that reads features is personal.

    Clients whose graphs are of different domains still have degrees and walks in common. A client
    computes the structure embedding of its nodes once, from its own edges.

    Args:
        network: A ``StructureGIN``, or a ``GraphReadout`` of one.
        sharing: Map of name patterns to ``shared``, ``personal`` or ``fixed``; first match wins.

    Raises:
        ValueError: If a value is outside its range, or the network is another.

    References:
        Tan et al. (2023), Algorithm 1, arXiv:2211.13009.

    Example:
        >>> FedStar(StructureGIN((16, 16))).sharing["structure.*"]
        'shared'
    """

    network: GraphNetwork = field(default_factory=StructureGIN)
    sharing: Sharing = field(default_factory=lambda: dict(STRUCTURE))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self._encoder, StructureGIN):
            raise ValueError(
                "FedStar needs a StructureGIN, or a GraphReadout of one, as its network, got "
                f"{type(self._encoder).__name__}"
            )

    @property
    def _encoder(self) -> GraphNetwork:
        return self.network.network if isinstance(self.network, GraphReadout) else self.network

    @override
    def received(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        local, context = super().received(message, client, client_state)
        (graph,), of = context["own"]["graph"].parts, self._encoder
        assert isinstance(of, StructureGIN)  # checked when the method was made
        whole = derived(graph, with_structure, of.walks, of.degrees)
        graphs = Jagged((whole,), (len(whole),), GraphBlock)
        return local, {**context, "own": {**context["own"], "graph": graphs}}


def with_structure(graph: Graph, walks: int, degrees: int) -> Graph:
    """The graph with the structure embeddings of its nodes as further columns of the features.

    A walk never comes back to a node without neighbours, which has the first class of degrees.

    Args:
        graph: Graph of a client, or a union of several.
        walks: Largest number of steps of a walk.
        degrees: Number of classes of degrees: 1, 2, ..., and all larger ones.

    Example:
        >>> labels = torch.zeros(2, dtype=torch.int64)
        >>> edge = Graph(torch.ones(2, 1), torch.tensor([[0, 1], [1, 0]]), labels)
        >>> with_structure(edge, walks=2, degrees=3).features[0].tolist()
        [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    """
    start, end = graph.edges.cpu().numpy()
    shares = 1 / np.bincount(start, minlength=len(graph))[start]
    step = sparse.csr_array((shares, (start, end)), shape=(len(graph), len(graph)))
    powers = itertools.accumulate(itertools.repeat(step, walks), lambda power, one: power @ one)
    back = torch.from_numpy(np.stack([power.diagonal() for power in powers], axis=1))
    classes = one_hot(graph.degrees.clamp(1, degrees) - 1, degrees)
    x = graph.features
    added = torch.cat((back.to(x.device, x.dtype), classes.to(x.device, x.dtype)), dim=1)
    if x.is_sparse:
        return replace(graph, features=torch.cat((x, added.to_sparse()), dim=1).coalesce())
    return replace(graph, features=torch.cat((x, added), dim=1))
