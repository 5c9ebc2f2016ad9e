"""FedGTA: per-client averaging over clients whose propagated predictions have similar moments."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data import Client, GraphSplit
from fedbolic.federated.aggregators.update import AggregatedUpdate
from flatland.graphs.blocks import GraphBlock, graph_block
from flatland.graphs.graph_method import examples_of
from flatland.graphs.weak_cache import WeakCache
from flatland.rivals.personal_means import PersonalMeans

MomentKind = Literal["raw", "central", "both"]


@dataclass(frozen=True)
class FedGta(PersonalMeans):
    r"""Topology-aware averaging: each client receives a mean over clients with similar moments.

    After its local steps, a client propagates soft labels over its graph, without parameters:

    .. math::
        Y^{(l)} = (1 - \alpha) \tilde D^{-1/2} (A + I) \tilde D^{-1/2} Y^{(l - 1)} + \alpha Y^{(0)}

    They begin as the labels of the training nodes, one-hot, and the network's probabilities at all
    other nodes. With :math:`P = \mathrm{softmax}(Y^{(k)})`, where training nodes keep their labels,
    the client sends the moments M of P, means over its nodes of powers of P (raw) and of its
    differences from the mean (central), and its local smoothing confidence

    .. math::
        H = \sum_i \tilde d_i \sum_c \Bigl( \tfrac1e + p_{ic} \log p_{ic} \Bigr)

    with P at a temperature. The server keeps a separate model for each client:

    .. math::
        \theta_i \leftarrow \frac{\sum_{j \in S_i} H_j \theta_j}{\sum_{j \in S_i} H_j}, \qquad
        S_i = \{ j : \cos(M_i, M_j) \ge \epsilon \}

    A client that has not taken part yet receives the mean over all clients of the last round, by
    confidence. A client that misses a round keeps its previous mean. The server needs each client's
    network individually, so this method cannot run under secure aggregation.

    Where the description is open, the authors' code decides: the softmax after the propagation, the
    temperature of the confidence, the labels of training nodes, and moments of the last step alone.
    The defaults are those of its later version in OpenFGL. Departs from that code: labels of
    training nodes are not added again in every step; nodes in no split have predictions, where it
    takes their true labels; degrees count the node itself, so that a client without edges has a
    confidence above 0.

    Args:
        steps: Number k of steps of the propagation, at least 0.
        teleport: Weight :math:`\alpha` of the initial soft labels, in [0, 1].
        temperature: Divisor of the propagated labels in the confidence's softmax, above 0.
        orders: Largest order of a moment, at least 1, or 2 if they are ``central``.
        moments: Kind of the moments: ``raw``, ``central`` from order 2 on, or ``both``.
        threshold: Least cosine similarity :math:`\epsilon` of moments, in [-1, 1]; a client always
            counts as similar to itself.

    Raises:
        ValueError: If a value is outside its range, or the network does not classify nodes.

    References:
        Li et al. (2023), PVLDB 17(1), doi:10.14778/3617838.3617842, and its authors' code.

    Example:
        >>> FedGta(threshold=0.65, moments="raw").orders
        10
    """

    weights: ClassVar[Literal["size"]] = "size"  # type: ignore[override]  # no mean reads them
    steps: int = 5
    teleport: float = 0.5
    temperature: float = 20.0
    orders: int = 10
    moments: MomentKind = "both"
    threshold: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check.at_least(0, steps=self.steps)
        check.rate(teleport=self.teleport)
        check.positive(temperature=self.temperature)
        check.one_of(get_args(MomentKind), moments=self.moments)
        check.at_least(2 if self.moments == "central" else 1, orders=self.orders)
        if not -1 <= self.threshold <= 1:
            raise ValueError(f"threshold must lie in [-1, 1], got {self.threshold}")
        if examples_of(self.network) is not GraphSplit:
            raise ValueError(
                f"the network must classify nodes, whose labels are propagated, and "
                f"{type(self.network).__name__} does not: use a plain graph network"
            )

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return {**super().init(meta, rng), "num_classes": meta.num_classes}

    @override
    def additions(
        self, local: Tree, clients: Sequence[Client], context: Tree
    ) -> tuple[Params, Tree]:
        """Moments and confidences of the soft labels that the clients propagate."""
        meta = clients[0].meta
        block = graph_block(context["own"]["graph"].parts)
        known = {**local["parameters"], **context["own"]["fixed"]}
        splits = tuple(client.train for client in clients)
        labels, is_known = _training_labels(splits, block.shape[1], meta.num_classes)
        with torch.no_grad():
            logits, _ = self.model(meta)(known, local["buffers"], block)
            first = torch.where(is_known, labels, logits.softmax(dim=-1))
            last = propagated(block, first, steps=self.steps, teleport=self.teleport)
            sharp, soft = (
                torch.where(is_known, labels, (last / temperature).softmax(dim=-1))
                for temperature in (1.0, self.temperature)
            )
            degrees = block.num_neighbours.unsqueeze(-1)
            moments = mixed_moments(sharp, degrees > 0, orders=self.orders, kind=self.moments)
            return {"moments": moments, "confidence": smoothing_confidence(soft, degrees)}, {}

    @override
    def template(self, message: Tree) -> Tree:
        like, *_ = message["parameters"].values()
        each = {"raw": self.orders, "central": self.orders - 1, "both": 2 * self.orders - 1}
        moments = like.new_zeros(each[self.moments] * message["num_classes"])
        return {
            "delta": message["parameters"],
            "moments": moments,
            "confidence": like.new_zeros(()),
        }

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        if not payload["confidence"] > 0:
            return f"its confidence must be above 0, got {float(payload['confidence'])}"
        return super().find_fault(message, payload, norm)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        sent = total.payload.values()
        moments = torch.stack([one["moments"] for one in sent]).double()
        confidences = torch.stack([one["confidence"] for one in sent]).double()
        shares = averaging_weights(moments, confidences, threshold=self.threshold)
        common = confidences / confidences.sum()
        return self.with_means(server_state, total, shares=shares, common=common)


def propagated(
    block: GraphBlock, first: Float[Tensor, "clients n classes"], *, steps: int, teleport: float
) -> Float[Tensor, "clients n classes"]:
    r"""Labels after steps of propagation with the weights of Kipf and Welling; 0 at padding nodes.

    .. math::
        Y^{(l)} = (1 - \alpha) \tilde D^{-1/2} (A + I) \tilde D^{-1/2} Y^{(l - 1)} + \alpha Y^{(0)}

    Args:
        block: Graphs of the clients.
        first: Soft labels :math:`Y^{(0)}`; those of padding nodes are not read.
        steps: Number of steps, at least 0.
        teleport: Weight :math:`\alpha` of the first labels, in [0, 1].

    References:
        Gasteiger et al. (2019), Eq. (4), arXiv:1810.05997.
    """
    first = first * (block.num_neighbours > 0).unsqueeze(-1)
    labels = first
    for _ in range(steps):
        labels = (1 - teleport) * block.gather(block.symmetric, labels) + teleport * first
    return labels


def mixed_moments(
    labels: Float[Tensor, "clients n classes"],
    is_node: Bool[Tensor, "clients n 1"],
    *,
    orders: int,
    kind: MomentKind,
) -> Float[Tensor, "clients numbers"]:
    """Moments of every class over the nodes of each client: raw ones, then central ones.

    Raw moments have the orders from 1, central ones from 2, as the first is 0.

    Args:
        labels: Soft labels.
        is_node: False at padding nodes, which do not count.
        orders: Largest order.
        kind: Kind of the moments.

    Example:
        >>> labels = torch.tensor([[[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]]])
        >>> is_node = torch.tensor([[[True], [True], [False]]])
        >>> mixed_moments(labels, is_node, orders=2, kind="both")
        tensor([[0.5000, 0.5000, 0.5000, 0.5000, 0.2500, 0.2500]])
    """
    share = is_node / is_node.sum(dim=1, keepdim=True).to(labels.dtype)

    def powers(x: Tensor, first: int) -> list[Tensor]:
        return [(share * x**order).sum(dim=1) for order in range(first, orders + 1)]

    found = powers(labels, 1) if kind != "central" else []
    if kind != "raw":
        found += powers(labels - (share * labels).sum(dim=1, keepdim=True), 2)
    return torch.cat(found, dim=1)


def smoothing_confidence(
    labels: Float[Tensor, "clients n classes"], degrees: Tensor
) -> Float[Tensor, " clients"]:
    r"""Local smoothing confidence, large where nodes of high degree have clear labels.

    .. math:: H = \sum_i \tilde d_i \sum_c \Bigl( \tfrac1e + p_{ic} \log p_{ic} \Bigr)

    Args:
        labels: Soft labels, whose rows sum to 1.
        degrees: Degree of every node plus 1, of shape (clients, n, 1); 0 at padding nodes.

    Example:
        >>> certain, vague = torch.eye(2), torch.full((2, 2), 0.5)
        >>> smoothing_confidence(torch.stack((certain, vague)), torch.ones(2, 2, 1))
        tensor([1.4715, 0.0852])
    """
    return (degrees * (1 / math.e + torch.special.xlogy(labels, labels))).sum(dim=(1, 2))


def averaging_weights(
    moments: Float[Tensor, "clients numbers"],
    confidences: Float[Tensor, " clients"],
    *,
    threshold: float,
) -> Float[Tensor, "clients clients"]:
    """Weights with which each client (row) averages all networks; each row sums to 1.

    Args:
        moments: Moments of every client.
        confidences: Confidence of every client, above 0.
        threshold: Least cosine similarity of the moments.

    Example:
        >>> moments = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
        >>> averaging_weights(moments, torch.tensor([1.0, 3.0, 1.0]), threshold=0.5)
        tensor([[0.2500, 0.7500, 0.0000],
                [0.2500, 0.7500, 0.0000],
                [0.0000, 0.0000, 1.0000]])
    """
    directions = normalize(moments, dim=1)
    similar = directions @ directions.T >= threshold
    similar |= torch.eye(len(moments), dtype=torch.bool, device=moments.device)
    weights = similar * confidences
    return weights / weights.sum(dim=1, keepdim=True)


def _labels_of(
    splits: tuple[GraphSplit, ...], num_nodes: int, num_classes: int
) -> tuple[Tensor, Tensor]:
    """One-hot labels of the training nodes of all clients, and which nodes these are."""
    like = splits[0].graph.features
    labels = torch.zeros(len(splits) * num_nodes, num_classes, dtype=like.dtype, device=like.device)
    places = torch.cat([i * num_nodes + split.nodes for i, split in enumerate(splits)])
    labels[places, torch.cat([split.labels for split in splits])] = 1
    labels = labels.view(len(splits), num_nodes, num_classes)
    return labels, labels.any(dim=-1, keepdim=True)


_training_labels = WeakCache(_labels_of, size=4)
"""Result of :func:`_labels_of`, as an engine groups the same clients in every round."""
