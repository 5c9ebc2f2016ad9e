"""FGSSL: clients contrast views of their nodes with the received model and keep its relations."""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, softplus
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data import Client
from fedbolic.federated.contract.sharing import Sharing
from fedbolic.nn.layers.dropout import SEED, mixed_bits
from flatland.graphs.blocks import GraphBlock, Mixing
from flatland.graphs.graph_method import GraphMethod
from flatland.graphs.model import ConvolutionalNetwork, Flat, FlatHead, widths_of
from flatland.graphs.sparse import Sparse

SHORTEST = 1e-3
"""Norm below which vectors are divided by it: the cosine of a zero has no finite gradient."""

LEAST_TEMPERATURE = 0.025
"""Least temperature of relations; below it all shares of a node can underflow in float32."""

CONTRASTED: Sharing = {"received.*": "fixed", "*": "shared"}
"""Sharing table of FGSSL: the received model is constant in a round."""


@dataclass(frozen=True)
class ContrastedGCN(ConvolutionalNetwork):
    r"""A :class:`~flatland.GCN` which, in training, also reads random views of the graph.

    A view lacks a share of the edges, in both directions, and a share of the features, of all
    nodes. The network reads the strong view, the received model the weak one. The relations of node
    i are its similarities to its neighbours, by the logits z of a view:

    .. math:: s_{ij} = \frac{\exp(\cos(z_i, z_j) / \omega)}{\sum_{k \in N(i)}
        \exp(\cos(z_i, z_k) / \omega)}, \qquad
        R = \frac1n \sum_i \sum_{j \in N(i)} s_{ij}' \log \frac{s_{ij}'}{s_{ij}}

    with those of the received model, s'.

    Args:
        weak_edges: Share of the edges that the weak view lacks, in [0, 1).
        weak_features: Share of the features that the weak view lacks, in [0, 1).
        strong_edges: Share of the edges that the strong view lacks, in [0, 1).
        strong_features: Share of the features that the strong view lacks, in [0, 1).
        relation_temperature: Temperature omega, at least ``LEAST_TEMPERATURE``.

    Raises:
        ValueError: If a value is outside its range.

    Example:
        >>> ContrastedGCN((16, 16)).strong_edges
        0.8
    """

    weak_edges: float = 0.3
    weak_features: float = 0.3
    strong_edges: float = 0.8
    strong_features: float = 0.5
    relation_temperature: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check.rate(below_one=True, weak_edges=self.weak_edges, weak_features=self.weak_features)
        check.rate(below_one=True, strong_edges=self.strong_edges)
        check.rate(below_one=True, strong_features=self.strong_features)
        if self.relation_temperature < LEAST_TEMPERATURE:
            raise ValueError(
                f"relation_temperature must be at least {LEAST_TEMPERATURE}, "
                f"got {self.relation_temperature}"
            )

    @override
    def build(self, meta: Meta) -> nn.Module:
        return _Contrasted(widths_of(meta, self.widths), meta.num_classes, self)


class _Contrasted(Flat):
    """Graph convolutions next to the received ones, both with a random view."""

    def __init__(self, sizes: tuple[int, ...], num_classes: int, of: ContrastedGCN) -> None:
        super().__init__(sizes, FlatHead(sizes[-1], num_classes), of.dropout, of.activation)
        self.received = Flat(sizes, FlatHead(sizes[-1], num_classes), 0.0, of.activation)
        self.weak = View(of.weak_edges, of.weak_features, sizes[0])
        self.strong = View(of.strong_edges, of.strong_features, sizes[0])
        self.temperature = of.relation_temperature

    @override
    def forward(self, block: GraphBlock) -> Float[Tensor, "clients n outputs"]:
        """Logits; in training behind the features of both models and the gap of relations."""
        logits = super().forward(block)
        if not self.training:
            return logits
        theirs, of_theirs = _encoded(self.received, self.weak(block))
        ours, of_ours = _encoded(self, self.strong(block))
        gap = relation_gap(of_ours, of_theirs, block, self.temperature)
        return torch.cat((ours, theirs, gap.expand(*block.shape, 1), logits), dim=-1)


def _encoded(network: Flat, block: GraphBlock) -> tuple[Tensor, Tensor]:
    """Features and logits of all nodes."""
    x = network.activation(network.convolved(block))
    return x, network.head(network.dropout[-1](x))


class View(nn.Module):
    """Random parts of graphs: without some edges, and without some features of all nodes.

    Every edge and every feature has a coin, which depends on the seed of the pass alone, and not on
    the block. The seed is set and advanced like that of a dropout layer.

    Args:
        edges: Share of the edges to leave out, in [0, 1).
        features: Share of the features to leave out, in [0, 1).
        width: Number of features.
    """

    dropout_seed: Tensor

    def __init__(self, edges: float, features: float, width: int) -> None:
        super().__init__()
        self.edges, self.features, self.width = edges, features, width
        self.register_buffer(SEED, torch.randint(2**63 - 1, ()))

    def forward(self, block: GraphBlock) -> GraphBlock:
        """The block with weights of the edges that are left, of its symmetric matrix."""
        seed = self.dropout_seed
        self.dropout_seed = seed + 1
        start, (_, n), matrix = mixed_bits(seed.reshape(-1)), block.shape, block.symmetric
        row, column = matrix.row, matrix.column.long()
        pair = torch.stack((row % n, column % n))
        taken = kept(start[row // n], (pair.amax(0) << 31) + pair.amin(0), self.edges)
        taken = ((row == column) | taken) & (matrix.value != 0)  # a block is filled up with zeros
        taken = taken.to(matrix.value.dtype)
        degrees = taken.new_zeros(len(matrix.counts)).index_add(0, row, taken)
        share = degrees.clamp(min=1).rsqrt()
        left = replace(matrix, value=share[row] * taken * share[column])
        vars(left)["transposed"] = left
        codes = -1 - torch.arange(self.width, device=row.device)
        features = kept(start.unsqueeze(-1), codes, self.features)
        given = block.features, block.norms, block.neighbours, left, block.members
        return _PartialBlock(*given, features)


def kept(
    start: Int64[Tensor, "*seeds"], code: Int64[Tensor, "*codes"], rate: float
) -> Bool[Tensor, "*shape"]:
    """Coins that are false at a rate.

    Args:
        start: Random numbers of 64 bits, one or one per code.
        code: Numbers of the coins.
        rate: Share of coins that are false.
    """
    words = mixed_bits(start ^ mixed_bits(code))
    return (words & (2**32 - 1)) >= round(rate * 2**32)


@dataclass(frozen=True, eq=False)
class _PartialBlock(GraphBlock):
    """A block of which only some features are read.

    Args:
        taken: The features that are read.
    """

    taken: Bool[Tensor, "clients width"] | None = None

    @override
    def map_features(self, weight: Float[Tensor, "*clients width k"]) -> Tensor:
        assert self.taken is not None
        return super().map_features(weight * self.taken.unsqueeze(-1))

    @override
    def mixed(self, mixing: Mixing) -> None:
        return None  # the edges are others in every pass


def relation_gap(
    ours: Float[Tensor, "clients n k"],
    theirs: Float[Tensor, "clients n k"],
    block: GraphBlock,
    temperature: float,
) -> Float[Tensor, "clients 1 1"]:
    """Mean over nodes of the divergence of relations to neighbours, R of ``ContrastedGCN``.

    Args:
        ours: Logits of the client's model.
        theirs: Logits of the received model.
        block: Graphs of the clients.
        temperature: Temperature of the relations.
    """
    matrix = block.neighbours
    row, column = matrix.row, matrix.column.long()
    others = (row != column).to(ours.dtype)
    of_nodes = _sums(matrix, others)

    def log_shares(z: Tensor) -> Tensor:
        z = normalize(z, dim=-1, eps=SHORTEST).flatten(0, 1)
        scaled = ((z[row] * z[column]).sum(-1) - 1) / temperature
        total = of_nodes.times(scaled.exp().unsqueeze(-1)).squeeze(-1)
        return scaled - total.clamp(min=torch.finfo(z.dtype).tiny).log()[row]

    goal, found = log_shares(theirs), log_shares(ours)
    share = goal.exp() * others  # that of a lonely node with itself is nearly the largest number
    gaps = of_nodes.times((share * (goal - found)).unsqueeze(-1)).view(block.shape)
    return (gaps.sum(dim=1) / block.num_nodes.clamp(min=1)).view(-1, 1, 1)


def _sums(matrix: Sparse, value: Float[Tensor, " entries"]) -> Sparse:
    """Matrix of the weighted sums over the entries of each row of another matrix."""
    count = len(value)
    numbers = torch.arange(count + 1, dtype=torch.int32, device=value.device)
    found = Sparse(matrix.start, numbers[:-1], value, count)
    transposed = Sparse(numbers, matrix.row.int(), value, len(matrix.start) - 1)
    vars(found)["transposed"] = transposed
    return found


def contrasts(
    ours: Float[Tensor, "m k"],
    theirs: Float[Tensor, "m k"],
    y: Int64[Tensor, " m"],
    mask: Bool[Tensor, " m"],
    temperature: float,
) -> Float[Tensor, " m"]:
    """Contrastive losses of nodes, L of :class:`Fgssl`.

    Args:
        ours: Features of the nodes in the client's model.
        theirs: Features of the same nodes in the received model.
        y: Their classes.
        mask: The nodes that count.
        temperature: Temperature tau.
    """
    ours, theirs = (normalize(x, dim=-1, eps=SHORTEST) for x in (ours, theirs))
    cosines = ours @ theirs.T / temperature
    same = y.unsqueeze(-1) == y
    far = cosines.masked_fill(same | ~mask, torch.finfo(cosines.dtype).min / 2)
    terms = softplus(far.logsumexp(dim=-1, keepdim=True) - cosines)
    near = (same & mask).to(terms.dtype)
    return (terms * near).sum(dim=-1) / near.sum(dim=-1).clamp(min=1)


@dataclass(frozen=True)
class Fgssl(GraphMethod):
    r"""Federated averaging with a contrast of nodes and a distillation of relations.

    .. math:: \ell_i = \ell_{\mathrm{CE}, i} + \lambda_c L_i + \lambda_r R, \qquad
        L_i = -\frac{1}{|P(i)|} \sum_{p \in P(i)} \log \frac{\varphi(h_i, h_p')}
        {\varphi(h_i, h_p') + \sum_{k \in K(i)} \varphi(h_i, h_k')}, \qquad
        \varphi(a, b) = e^{\cos(a, b) / \tau}

    with features h of the client's model on a strong view of the graph, features h' of the received
    model on a weak one, training nodes P(i) of the class of i, i among them, training nodes K(i) of
    other classes, and the gap R of :class:`ContrastedGCN`. With both weights 0 it is FedAvg.

    The losses follow the abstract and summaries of the paper, which was not at hand, and depart
    from the authors' code. There the contrast is computed and not added; it has temperature 0.1,
    all nodes of the class in the denominator and features before the activation. Relations
    there are absolute differences of logits (in OpenFGL of features), edge by edge, not shares of
    the neighbours. An edge can lose one of its directions alone there, where a GCN here needs both.
    The weight of the contrast is ours, and so is its temperature.

    Args:
        network: Network with its views.
        sharing: Only the table of this method.
        contrast: Weight of the contrast, at least 0.
        distillation: Weight of the relations, at least 0.
        temperature: Temperature tau of the contrast, above 0.

    Raises:
        ValueError: If a value is outside its range, or a parameter is not shared.

    References:
        Huang et al. (2023), IJCAI, arXiv:2406.18937.

    Example:
        >>> Fgssl(ContrastedGCN((16, 16)), contrast=0.5).temperature
        0.5
    """

    network: ContrastedGCN = ContrastedGCN()
    sharing: Sharing = field(default_factory=lambda: dict(CONTRASTED))
    contrast: float = 0.1
    distillation: float = 0.1
    temperature: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative(contrast=self.contrast, distillation=self.distillation)
        check.positive(temperature=self.temperature)
        if self.sharing != CONTRASTED:
            raise ValueError(f"the sharing table of Fgssl must be {CONTRASTED}, got {self.sharing}")

    @override
    def received(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        local, context = super().received(message, client, client_state)
        fixed = {f"received.{name}": x for name, x in message["parameters"].items()}
        return local, {**context, "own": {**context["own"], "fixed": fixed}}

    @override
    def losses(self, outputs: Tensor, batch: Params) -> Tensor:
        """Cross-entropies of the nodes of a batch with both further terms."""
        width = self.network.widths[-1]
        ours, theirs, gap, logits = outputs.tensor_split((width, 2 * width, 2 * width + 1), dim=-1)
        at, y = batch["node"], batch["y"]
        entropies = cross_entropy(logits[at], y, reduction="none")
        contrast = contrasts(ours[at], theirs[at], y, batch["mask"], self.temperature)
        return entropies + self.contrast * contrast + self.distillation * gap[0]
