"""FED-PUB: per-client averaging over functionally similar models, and private weight masks."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data import Client, Graph
from fedbolic.data.graphs.graph import simple_edges
from fedbolic.federated.aggregators.update import AggregatedUpdate
from fedbolic.federated.contract.sharing import Sharing
from fedbolic.nn.network.model import Model
from flatland.graphs.blocks import GraphBlock, graph_block
from flatland.graphs.model import ConvolutionalNetwork, Flat, FlatHead, SpaceLinear, widths_of
from flatland.rivals.personal_means import PersonalMeans

MASKS: Sharing = {"*.mask": "personal", "*": "shared"}
"""Sharing table of FED-PUB: masks stay at the client, everything else is shared."""

BLOCKS, BLOCK_SIZE, RATE = 5, 100, 0.1
"""Random graph on which networks are compared: blocks, nodes per block, and edge probability."""


@dataclass(frozen=True)
class MaskedGCN(ConvolutionalNetwork):
    r"""``GCN`` with a trainable mask that multiplies each weight matrix elementwise.

    .. math:: H' = \mathrm{drop}(\sigma(D^{-1/2} (A + I) D^{-1/2} H (M \odot \mu) + b))

    Masks are initialized to 1. In evaluation mode, entries of absolute value below ``threshold``
    are treated as 0.

    Args:
        threshold: Least absolute value of a mask entry in evaluation mode, at least 0.

    References:
        Baek et al. (2023), arXiv:2206.10206.
    """

    threshold: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative(threshold=self.threshold)

    @override
    def build(self, meta: Meta) -> nn.Module:
        sizes = widths_of(meta, self.widths)
        layer = functools.partial(MaskedLinear, threshold=self.threshold)
        head = MaskedHead(sizes[-1], meta.num_classes, threshold=self.threshold)
        return Flat(sizes, head, self.dropout, self.activation, layer)


class MaskedLinear(SpaceLinear):
    """Linear layer whose matrix is multiplied elementwise by a trainable mask."""

    def __init__(self, in_features: int, out_features: int, *, threshold: float) -> None:
        super().__init__(in_features, out_features)
        self.mask = nn.Parameter(torch.ones(in_features, out_features))
        self.threshold = threshold

    @property
    @override
    def matrix(self) -> Float[Tensor, "*clients width out"]:
        mask = self.mask
        if not self.training:
            mask = mask.where(mask.abs() >= self.threshold, 0.0)
        return self.space * mask


class MaskedHead(FlatHead, MaskedLinear):
    """Classification head with a masked linear layer."""


class GraphEmbedding(nn.Module):
    """Embedding of a graph: the mean of a network's last convolution over the nodes.

    Args:
        network: Network that embeds the graph.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, graph_block: GraphBlock) -> Float[Tensor, "clients width"]:
        """One vector for each graph."""
        return cast("Flat", self.network).convolved(graph_block).mean(dim=-2)


@dataclass(frozen=True)
class FedPub(PersonalMeans):
    r"""Similarity-weighted averaging of client models, with private masks.

    The server keeps a separate model for each client. Every client embeds the same random graph
    with its network, and the server averages the networks by the similarity of these embeddings:

    .. math:: \alpha_{ij} = \frac{\exp(\tau \cos(h_i, h_j))}{\sum_k \exp(\tau \cos(h_i, h_k))},
        \qquad \bar\theta_i = \sum_j \alpha_{ij} \theta_j

    The client multiplies this average by its private mask and trains both:

    .. math:: f_i(\theta \odot \mu_i) + \lambda_1 \|\mu_i\|_1
        + \tfrac{\text{proximal}}{2} \|\theta - \bar\theta_i\|^2

    A client that has not taken part yet receives the unweighted mean of the last round's networks.
    A client that misses a round keeps its previous average. The server needs each client's network
    individually, so this method cannot run under secure aggregation.

    Departs from the paper: ``sparsity`` and ``proximal``, its lambda 1 and twice its lambda 2, are
    0 by default. The authors' code sets both lambdas to 0.001 but computes the terms from detached
    tensors, so they have no gradient. With a gradient, the sparsity term outweighs the loss under
    Adam, and masks shrink until they fall below the threshold.

    Args:
        network: Masked graph network.
        temperature: The paper's tau, at least 0; 0 gives all clients the same mean, and 3 is the
            value of the authors' script for Cora.
        sparsity: Coefficient lambda 1 of the masks' L1 norm, at least 0.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Baek et al. (2023), arXiv:2206.10206, and its authors' code.

    Example:
        >>> FedPub(temperature=10.0).network.threshold
        0.001
    """

    weights: ClassVar[Literal["size"]] = "size"  # type: ignore[override]  # no mean reads them
    network: MaskedGCN = MaskedGCN()
    sharing: Sharing = field(default_factory=lambda: dict(MASKS))
    temperature: float = 3.0
    sparsity: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative(temperature=self.temperature, sparsity=self.sparsity)

    @override
    def received(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        local, context = super().received(message, client, client_state)
        return local, {**context, "shared": {**context["shared"], "seed": message["seed"]}}

    @override
    def regularised(self, gradients: Params, parameters: Params, context: Tree) -> Params:
        gradients = super().regularised(gradients, parameters, context)
        if not self.sparsity:
            return gradients
        masks = [name for name in gradients if name.endswith(".mask")]
        thin = {n: gradients[n] + self.sparsity * parameters[n].sign() for n in masks}
        return {**gradients, **thin}

    @override
    def additions(
        self, local: Tree, clients: Sequence[Client], context: Tree
    ) -> tuple[Params, Tree]:
        """Embeddings of the random graph under the clients' networks."""
        like, meta = clients[0].no_inputs, clients[0].meta
        seed, (width,) = context["shared"]["seed"], meta.input_shape
        block = graph_block((random_graph(seed, width, like.device, like.dtype),) * len(clients))
        known = {**local["parameters"], **context["own"]["fixed"]}
        parameters, buffers = (
            {f"network.{name}": value for name, value in values.items()}
            for values in (known, local["buffers"])
        )
        with torch.no_grad():
            found, _ = _embedding(self.network, meta)(parameters, buffers, block)
        return {"embedding": found}, {}

    @override
    def template(self, message: Tree) -> Tree:
        like, *_ = message["parameters"].values()
        embedding = like.new_zeros(self.network.widths[-1])
        return {"delta": message["parameters"], "embedding": embedding}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        embeddings = torch.stack([one["embedding"] for one in total.payload.values()])
        shares = similarity(embeddings.double(), self.temperature)
        common = torch.full_like(shares[0], 1 / len(shares))
        return self.with_means(server_state, total, shares=shares, common=common)


def similarity(
    embeddings: Float[Tensor, "clients width"], temperature: float
) -> Float[Tensor, "clients clients"]:
    """Weights with which each client (row) averages all networks; each row sums to 1.

    Args:
        embeddings: One embedding per client.
        temperature: Factor tau of the cosine similarity, at least 0.

    Example:
        >>> similarity(torch.eye(2), temperature=0.0)
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
    """
    directions = nn.functional.normalize(embeddings, dim=1)
    return (temperature * directions @ directions.T).softmax(dim=1)


@functools.cache
def _embedding(network: MaskedGCN, meta: Meta) -> Model:
    return Model(lambda: GraphEmbedding(network.build(meta)))


@functools.lru_cache(maxsize=4)  # all clients of a run use the same graph
def random_graph(seed: int, num_features: int, device: torch.device, dtype: torch.dtype) -> Graph:
    """Graph of 5 disconnected random blocks of 100 nodes each, with Gaussian features."""
    rng, num_nodes = Rng(seed).at("proxy"), BLOCKS * BLOCK_SIZE
    part = torch.arange(num_nodes) // BLOCK_SIZE
    coins = torch.rand(num_nodes, num_nodes, generator=rng.at("edges").generator())
    pairs = ((coins < RATE) & (part[:, None] == part)).triu(diagonal=1).nonzero().T
    features = torch.randn(num_nodes, num_features, generator=rng.at("features").generator())
    return Graph(features, simple_edges(pairs, num_nodes), part).to(device, dtype)
