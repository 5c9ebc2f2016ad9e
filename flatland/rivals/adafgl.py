"""AdaFGL: federated averaging, then personal propagation by what the common model predicts."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, one_hot, relu
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data import Client, Graph, GraphSplit
from fedbolic.federated.aggregators.update import AggregatedUpdate
from fedbolic.federated.contract.jagged import Jagged
from fedbolic.federated.contract.method import Method
from fedbolic.federated.contract.sharing import Sharing
from fedbolic.nn.layers.dropout import Dropout
from flatland.graphs.blocks import GraphBlock
from flatland.graphs.graph_method import GraphMethod, forward
from flatland.graphs.model import ACTIVATIONS, GCN, Activation, ConvolutionalNetwork, FlatHead

LABEL_STEPS = 10
"""Steps of the label propagation behind the confidence score, as in the authors' code."""


@dataclass(frozen=True)
class PersonalPropagation(ConvolutionalNetwork):
    r"""Perceptrons on features smoothed over a graph that the common model's predictions complete.

    .. math::
        \tilde A = \alpha A + (1 - \alpha) \, 1[\cos(p_i, p_j) > t], \qquad
        X_k = (D^{-1/2} (\tilde A + I) D^{-1/2})^k X

    with soft predictions p of the common model, which is trained no more. One perceptron reads
    :math:`X_0 \Vert \dots \Vert X_K` for neighbours of one class; three others, of one layer
    more, are for neighbours that differ: on X, on the smoothed features, and on them with signed
    messages between all nodes. The prediction is

    .. math:: h \, \tfrac12 (q + p) + (1 - h) \, \tfrac13 (q_x + q_s + q_m)

    with softmax outputs q, and the confidence h of the client: the accuracy of label propagation
    from every second of its training nodes to the others.

    Args:
        widths: Width of the hidden layer of every perceptron, one number.
        dropout: Dropout probability of hidden layers, in [0, 1).
        activation: Activation of hidden layers.
        steps: Largest power K, at least 1.
        alpha: Share of the client's own edges, also that of a step of label propagation, in [0, 1].
        threshold: Cosine t of predictions above which two nodes are joined, in [0, 1].

    Raises:
        ValueError: If a value is outside its range.

    Example:
        >>> PersonalPropagation(steps=2).widths
        (64,)
    """

    widths: tuple[int, ...] = (64,)
    steps: int = 3
    alpha: float = 0.5
    threshold: float = 0.999

    def __post_init__(self) -> None:
        super().__post_init__()
        check.at_least(1, steps=self.steps)
        check.rate(alpha=self.alpha, threshold=self.threshold)
        if len(self.widths) != 1:
            raise ValueError(f"widths must be one width of all hidden layers, got {self.widths}")

    @override
    def build(self, meta: Meta) -> nn.Module:
        return _Propagation(meta.input_shape[0], meta.num_classes, self)


class _Perceptron(nn.Module):
    """Linear layers with activation and dropout between them."""

    def __init__(self, sizes: Sequence[int], dropout: float, activation: Activation) -> None:
        super().__init__()
        self.layers = nn.ModuleList(FlatHead(*size) for size in itertools.pairwise(sizes))
        self.dropout = nn.ModuleList(Dropout(dropout) for _ in sizes[2:])
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of the last layer."""
        *hidden, last = self.layers
        for layer, drop in zip(hidden, self.dropout, strict=True):
            x = drop(self.activation(layer(x)))
        return last(x)


class _Propagation(nn.Module):
    """The perceptrons; features of a block are those of :func:`with_predictions`."""

    def __init__(self, width: int, num_classes: int, of: PersonalPropagation) -> None:
        super().__init__()
        self.width, self.num_classes = width, num_classes
        (hidden,), smoothed = of.widths, (of.steps + 1) * width
        ends = hidden, num_classes
        self.similar = _Perceptron((smoothed, *ends), of.dropout, of.activation)
        self.features, self.smoothed, self.signed = (
            _Perceptron((start, hidden, *ends), of.dropout, of.activation)
            for start in (width, smoothed, smoothed)
        )

    def forward(self, block: GraphBlock) -> Float[Tensor, "clients n outputs"]:
        """Log probabilities of nodes; in training all logits, p and a 1 for every real node."""
        assert isinstance(block.features, Tensor)  # with_predictions makes them dense
        x = block.features
        known, soft, confidence = x.tensor_split((-self.num_classes - 1, -1), dim=-1)
        valid = (block.num_neighbours > 0).unsqueeze(-1).to(x.dtype)
        message = signed_messages(self.signed(known), valid)
        others = self.features(x[..., : self.width]), self.smoothed(known), message
        similar = self.similar(known)
        if self.training:
            return torch.cat((similar, *others, soft, valid), dim=-1)
        near = (similar.softmax(-1) + soft) / 2
        far = torch.stack(others).softmax(-1).mean(dim=0)
        return (confidence * near + (1 - confidence) * far).log()


def signed_messages(
    x: Float[Tensor, "*clients n k"], valid: Float[Tensor, "*clients n 1"]
) -> Float[Tensor, "*clients n k"]:
    r"""Outputs with messages from nodes of similar outputs, less those from nodes that differ.

    .. math::
        \tfrac12 \bigl(x + \operatorname{softmax}(\operatorname{relu}(R) \, x)
        - \operatorname{softmax}(\operatorname{relu}(-R) \, x)\bigr)

    The relation R has ones on its diagonal. Elsewhere it is the cosine s of soft outputs with the
    mean m and the maximum M over all pairs: :math:`(s - m) / (M - m)` above the mean, and
    :math:`-s / m` below it, as in the authors' code.

    Args:
        x: Outputs of the nodes.
        valid: 1 for a node, 0 for padding.
    """
    soft = normalize(x.softmax(-1), dim=-1) * valid
    ones = torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)
    cosines = soft @ soft.mT * (1 - ones)
    pairs = valid.sum(dim=(-2, -1), keepdim=True).square().clamp(min=1)
    mean = cosines.sum(dim=(-2, -1), keepdim=True) / pairs
    top = cosines.amax(dim=(-2, -1), keepdim=True)
    above = (cosines - mean) / (top - mean).clamp(min=1e-9)
    relation = torch.where(cosines > mean, above, -cosines / mean.clamp(min=1e-9))
    relation = relation * valid * valid.mT + ones
    near, far = ((relu(sign * relation) @ x).softmax(-1) for sign in (1, -1))
    return (near - far + x) / 2


@dataclass(frozen=True)
class AdaFgl(GraphMethod):
    """Federated averaging, then rounds in which every client trains a personal propagation.

    In the personal rounds, the last ones, clients send zeros in place of a delta, so that sums and
    privacy go on, at the traffic and the epsilon of a delta. They are scored with the common model
    until the first personal round, and a client without a personal turn then with its initial
    perceptrons. The first round is never personal.

    Departs from the authors' code: perceptrons have relu in place of PReLU; label propagation knows
    the labels of its sources alone, there also those of nodes in no split, and its sources are
    every second training node, not a random half; both stages have the same optimiser; predictions
    p are scored as they are, and not after a second softmax.

    Args:
        network: Network of the common model.
        rounds: Communication rounds of both stages, at least 1.
        propagation: Network of the personal stage.
        personal_share: Share of the rounds that are personal, above 0 and below 1.

    Raises:
        ValueError: If a value is outside its range, or the common model is not wholly shared.

    References:
        Li et al. (2024), Secs. III and IV, arXiv:2401.11750, and its authors' code in OpenFGL.

    Example:
        >>> AdaFgl(rounds=30, personal_share=0.5).num_common
        15
    """

    network: GCN = GCN()
    propagation: PersonalPropagation = PersonalPropagation()
    personal_share: float = 0.4

    models = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(personal_share=self.personal_share)
        check.rate(below_one=True, personal_share=self.personal_share)
        if set(self.sharing.values()) != {"shared"}:
            raise ValueError(f"the common model of AdaFgl must be shared, got {self.sharing}")

    @property
    def num_common(self) -> int:
        """Number of rounds in which the common model is trained."""
        return max(1, self.rounds - round(self.personal_share * self.rounds))

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return {**super().init(meta, rng), "round": 0}

    @override
    def phase(self, server_state: Tree) -> Method:
        if server_state["round"] < self.num_common:
            return self
        return PersonalStage(
            self.propagation,
            self.rounds,
            self.local,
            self.lr,
            self.optimizer,
            self.weight_decay,
            weights=self.weights,
            extractor=self,
        )

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        state = super().server_update(server_state, total)
        return {**state, "round": server_state["round"] + 1}

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        if message["round"] <= self.num_common:  # no perceptron is trained yet
            return super().evaluate(message, client, client_state, rng)
        return self.phase(message).evaluate(message, client, client_state, rng)


@dataclass(frozen=True)
class PersonalStage(GraphMethod):
    """The personal rounds of :class:`AdaFgl`, in which nothing is learned in common.

    Args:
        network: Network of the personal stage.
        sharing: All parameters are personal.
        extractor: The method whose common model predicts.
    """

    network: PersonalPropagation = PersonalPropagation()
    sharing: Sharing = field(default_factory=lambda: {"*": "personal"})
    extractor: GraphMethod = field(default_factory=AdaFgl)

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        local, context = self.received(message, client, client_state)
        kept = client_state.get("personal", {})
        optimizer = kept.get("optimizer") or self.optimizer.init(local["parameters"])
        return {**local, "optimizer": optimizer}, context

    @override
    def received(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        kept = client_state.get("personal", {})
        local, context = super().received({**message, "parameters": {}}, client, kept)
        common, given = self.extractor.received(message, client, {})
        with torch.no_grad():
            model = self.extractor.model(client.meta)
            logits, _ = forward(model, common["parameters"], common["buffers"], given)
            whole = with_predictions(self.network, client, logits[0].softmax(-1))
        graphs = Jagged((whole,), (len(whole),), GraphBlock)
        shared = {**context["shared"], "common": message["parameters"]}
        return local, {"shared": shared, "own": {**context["own"], "graph": graphs}}

    @override
    def losses(self, outputs: Tensor, batch: Params) -> Tensor:
        """Cross-entropies of all perceptrons, and how far the first is from the predictions p."""
        *parts, soft = outputs[:, :-1].chunk(5, dim=-1)
        valid = outputs[:, -1]
        gaps = (parts[0] - soft).square().mean(dim=-1)
        kept = (gaps * valid).sum() / valid.sum()
        at, y = batch["node"], batch["y"]
        return kept + torch.stack([cross_entropy(x[at], y, reduction="none") for x in parts]).sum(0)

    @override
    def personal_state(self, local: Tree) -> Tree:
        return {"personal": super().personal_state(local)}

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        of_clients = local["parameters"]["similar.layers.0.bias"].shape[:-1]
        common: Params = context["shared"]["common"]
        zeros = {n: x.new_zeros(*of_clients, *x.shape) for n, x in common.items()}
        return {"delta": zeros}, self.personal_state(local)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        return {**server_state, "round": server_state["round"] + 1}


def with_predictions(
    network: PersonalPropagation, client: Client, soft: Float[Tensor, "n classes"]
) -> Graph:
    """A client's graph with all powers of the features, p and the confidence as features.

    Args:
        network: Settings of the propagation.
        client: The client.
        soft: Predictions p of its nodes.
    """
    split = client.split_of(GraphSplit)
    graph = split.graph
    adjacency = soft.new_zeros(len(graph), len(graph))
    adjacency[graph.edges[0], graph.edges[1]] = 1
    cosines = normalize(soft, dim=-1) @ normalize(soft, dim=-1).T
    ones = torch.eye(len(graph), dtype=soft.dtype, device=soft.device)
    joined = (cosines * (1 - ones) > network.threshold).to(soft.dtype)
    step = _normalised(network.alpha * adjacency + (1 - network.alpha) * joined)
    powers = [graph.features.to_dense()]
    for _ in range(network.steps):
        powers.append(step @ powers[-1])
    h = confidence(_normalised(adjacency), split.nodes, split.labels, soft.shape[1], network.alpha)
    column = soft.new_full((len(graph), 1), h)
    return replace(graph, features=torch.cat((*powers, soft, column), dim=1))


def confidence(
    step: Float[Tensor, "n n"],
    nodes: Int64[Tensor, " m"],
    labels: Int64[Tensor, " m"],
    num_classes: int,
    alpha: float,
) -> float:
    """Accuracy of label propagation from every second node to the others; 1/2 without others.

    Args:
        step: Normalised adjacency matrix.
        nodes: Numbers of the training nodes.
        labels: Their labels.
        num_classes: Number of classes.
        alpha: Share of the neighbours in a step.
    """
    sources, asked = nodes[::2], nodes[1::2]
    if not len(asked):
        return 0.5
    first = step.new_full((len(step), num_classes), 1 / num_classes)
    first[sources] = one_hot(labels[::2], num_classes).to(step.dtype)
    found, added = first, torch.zeros_like(first)
    added[sources] = first[sources]
    for _ in range(LABEL_STEPS):
        found = alpha * (step @ found) + (1 - alpha) * first + added
    return float((found[asked].argmax(dim=1) == labels[1::2]).double().mean())


def _normalised(a: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """``D^{-1/2} (A + I) D^{-1/2}``."""
    a = a + torch.eye(len(a), dtype=a.dtype, device=a.device)
    share = a.sum(dim=1).rsqrt()
    return share[:, None] * a * share
