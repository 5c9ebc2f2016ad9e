"""FedTAD: a server that distils all clients' models on pseudo graphs, class by class."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, normalize
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data import Client, Graph, GraphSplit
from fedbolic.data.graphs.graph import simple_edges
from fedbolic.federated.aggregators.aggregator import Gather
from fedbolic.federated.aggregators.update import AggregatedUpdate, find_outside
from fedbolic.nn.network.model import Model
from flatland.graphs.blocks import GraphBlock, graph_block
from flatland.graphs.graph_method import GraphMethod
from flatland.graphs.model import GCN
from flatland.graphs.weak_cache import derived
from flatland.rivals.fedstar import with_structure
from flatland.rivals.gcfl import refuse_no_data, shares_of
from flatland.rivals.personal_means import weighted_means

EDGES_AT_ONCE = 4096
"""Edges whose features are compared at once."""

SHARE_ROUNDING = 1e-3
"""Most by which the similarities of a client's classes can sum to more than 1."""


@dataclass(frozen=True)
class Distillation:
    """Pseudo graphs of a server, and the steps of their generator and of the common model.

    Args:
        nodes: Nodes of a pseudo graph, at least the number of classes.
        noise: Width of the noise of a node, at least 1.
        widths: Widths of the generator's hidden layers.
        neighbours: Nearest nodes to which a node is joined, itself among them, at least 1.
        epochs: Pseudo graphs a round, at least 0; with 0 it is FedAvg.
        generator_steps: Steps of the generator on each, at least 1.
        model_steps: Steps of the common model on each, at least 1.
        generator_lr: Step size of the generator, above 0.
        model_lr: Step size of the common model, above 0.
        semantic: Weight of the generator's cross-entropies, at least 0.
        diversity: Weight of its diversity loss, at least 0.

    Raises:
        ValueError: If a value is outside its range.
    """

    nodes: int = 100
    noise: int = 32
    widths: tuple[int, ...] = (64, 128, 256)
    neighbours: int = 5
    epochs: int = 5
    generator_steps: int = 1
    model_steps: int = 5
    generator_lr: float = 1e-3
    model_lr: float = 1e-3
    semantic: float = 1.0
    diversity: float = 1.0

    def __post_init__(self) -> None:
        check.at_least(1, nodes=self.nodes, noise=self.noise, neighbours=self.neighbours)
        check.at_least(0, epochs=self.epochs)
        check.at_least(1, generator_steps=self.generator_steps, model_steps=self.model_steps)
        check.positive(generator_lr=self.generator_lr, model_lr=self.model_lr)
        check.not_negative(semantic=self.semantic, diversity=self.diversity)


class _Generator(nn.Module):
    """Features of nodes from their classes and noise."""

    def __init__(self, of: Distillation, width: int, num_classes: int) -> None:
        super().__init__()
        self.classes = nn.Embedding(num_classes, num_classes)
        sizes = (num_classes + of.noise, *of.widths, width)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))

    def forward(self, noise: Tensor, y: Tensor) -> Tensor:
        """One row of features per node."""
        x = torch.cat((self.classes(y), noise), dim=-1)
        *hidden, last = self.layers
        for layer in hidden:
            x = torch.tanh(layer(x))
        return last(x)


@dataclass(frozen=True)
class FedTad(GraphMethod):
    r"""Federated averaging, then steps of the common model towards all clients' models.

    A server trains a generator of features x and a graph of nearest nodes against the clients'
    models k and the common one, and the common one against the generator:

    .. math:: \min_\theta \max_g \sum_k \sum_c \phi_{kc} \frac{1}{|V_c|} \sum_{i \in V_c}
        \| f_\theta(x_i) - f_k(x_i) \|_1 / C

    where g also lowers the cross-entropies of the classes c under the clients' models, weighted in
    the same way, and a loss of diversity. The reliability :math:`\phi_{kc}` is the sum over the
    training nodes of class c of the mean similarity to their neighbours, divided by that of all
    clients. The similarity is the cosine of features with the probabilities that a random walk is
    back after 1, 2, ... steps, and 1 for the node itself.

    Departs from the authors' code: features there are the numbers of the nodes of random walks, not
    these probabilities; the last class has the remainder of the nodes there; the common model has
    dropout in its steps there; both optimisers are Adam with weight decay there and keep their
    state over rounds; negative sums of similarities count as 0 here, lest a weight is negative. In
    OpenFGL reliabilities sum to 1 over the classes of each client.

    Args:
        network: Network of all clients.
        walks: Largest number of steps of a walk, at least 1.
        distillation: Pseudo graphs and steps of the server, with the local optimiser.

    Raises:
        ValueError: If a value is outside its range, or a parameter is not shared.

    References:
        Zhu et al. (2024), IJCAI, arXiv:2404.14061, and its authors' code.

    Example:
        >>> FedTad(GCN((16, 16))).distillation.nodes
        100
    """

    network: GCN = GCN()
    walks: int = 5
    distillation: Distillation = field(default_factory=Distillation)

    aggregator = Gather()
    unsent = "generator", "sizes", "round"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.at_least(1, walks=self.walks)
        if set(self.sharing.values()) != {"shared"}:
            raise ValueError(f"the model of FedTad must be shared, got {self.sharing}")

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        check.at_least(meta.num_classes, nodes=self.distillation.nodes)
        state = super().init(meta, rng)
        generator, _ = self._generator(state["parameters"]).init(rng.at("generator").number())
        sizes = torch.ones(meta.num_clients, dtype=torch.int64)
        return {**state, "generator": generator, "sizes": sizes, "round": 0}

    def _generator(self, parameters: Params) -> Model:
        width, num_classes = len(parameters["body.0.space"]), len(parameters["head.bias"])
        return Model(lambda: _Generator(self.distillation, width, num_classes))

    @override
    def admit(self, server_state: Tree, sizes: Sequence[int]) -> Tree:
        return {**server_state, "sizes": torch.tensor(sizes)}

    @override
    def additions(
        self, local: Tree, clients: Sequence[Client], context: Tree
    ) -> tuple[Params, Tree]:
        """Similarities of the clients' classes."""
        found = [
            class_similarity(client.split_of(GraphSplit), client.meta.num_classes, self.walks)
            for client in clients
        ]
        return {"similarity": torch.stack(found)}, {}

    @override
    def template(self, message: Tree) -> Tree:
        parameters = message["parameters"]
        return {"delta": parameters, "similarity": parameters["head.bias"]}

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        fault = find_outside(payload, "similarity", 0, 1)
        if not fault and (total := float(payload["similarity"].sum())) > 1 + SHARE_ROUNDING:
            fault = f"its similarity must sum to 1 at most, got {total:g}"
        return fault or super().find_fault(message, payload, norm)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        refuse_no_data(total)
        before, sent = server_state["parameters"], total.payload
        models = [tree.add(before, one["delta"]) for one in sent.values()]
        of_models = shares_of(server_state["sizes"], total.clients, self.weights)
        mean = weighted_means(models, of_models)
        found = torch.stack([one["similarity"] for one in sent.values()])
        found = found * server_state["sizes"][list(total.clients)].to(found).unsqueeze(-1)
        shares = found / found.sum(dim=0).clamp(min=torch.finfo(found.dtype).tiny)
        rng = Rng(server_state["seed"]).at("distillation", server_state["round"])
        moved, generator = self._distilled(mean, models, shares, server_state["generator"], rng)
        known = {"parameters": moved, "generator": generator, "round": server_state["round"] + 1}
        return {**server_state, **known}

    def _distilled(
        self, common: Params, models: Sequence[Params], shares: Tensor, generator: Params, rng: Rng
    ) -> tuple[Params, Params]:
        """The common model and the generator after the steps of a round."""
        of, like = self.distillation, common["head.bias"]
        generator = tree.to(generator, like.device, like.dtype)
        network = self.model(Meta(len(like), (len(common["body.0.space"]),), 1))
        y = (torch.arange(of.nodes) * len(like) // of.nodes).to(like.device)
        makes, optimizer = self._generator(common), self.optimizer
        of_generator, of_common = optimizer.init(generator), optimizer.init(common)
        _, buffers = network.init(0)
        draws = rng.generator()

        def generated(parameters: Params) -> tuple[Tensor, GraphBlock]:
            x, _ = makes(parameters, {}, noise, y)
            return x, graph_block((pseudo_graph(x, y, of.neighbours),))

        def outputs(block: GraphBlock, parameters: Params) -> Tensor:
            return network(parameters, buffers, block)[0][0]

        def gap(ours: Tensor, theirs: Sequence[Tensor]) -> Tensor:
            return _weighted([(ours - one).abs().mean(dim=-1) for one in theirs], y, shares)

        def generator_loss(parameters: Params) -> Tensor:
            x, block = generated(parameters)
            ours, theirs = outputs(block, common), [outputs(block, one) for one in models]
            loss = -gap(ours, [one.detach() for one in theirs])
            entropies = [cross_entropy(one, y, reduction="none") for one in theirs]
            loss = loss + of.semantic * _weighted(entropies, y, shares)
            return loss + of.diversity * len(models) * diversity_loss(noise, x)

        def model_loss(parameters: Params) -> Tensor:
            return gap(outputs(block, parameters), theirs)

        for _ in range(of.epochs):
            noise = torch.randn(of.nodes, of.noise, generator=draws, dtype=torch.float64).to(like)
            for _ in range(of.generator_steps):
                found = _gradients(generator_loss, generator)
                generator, of_generator = optimizer.step(
                    generator, found, of_generator, lr=of.generator_lr
                )
            with torch.no_grad():
                _, block = generated(generator)
                theirs = [outputs(block, one) for one in models]
            for _ in range(of.model_steps):
                found = _gradients(model_loss, common)
                common, of_common = optimizer.step(common, found, of_common, lr=of.model_lr)
        return common, generator


def _gradients(loss: Callable[[Params], Tensor], parameters: Params) -> Params:
    with torch.enable_grad():
        leaves = tree.map_tensors(lambda x: x.detach().requires_grad_(), parameters)
        found = torch.autograd.grad(loss(leaves), tuple(leaves.values()))
    return dict(zip(leaves, found, strict=True))


def class_similarity(split: GraphSplit, num_classes: int, walks: int) -> Float[Tensor, " classes"]:
    """Mean over a client's training nodes of their similarity to neighbours, in parts by class.

    Args:
        split: Training nodes of the client.
        num_classes: Number of classes.
        walks: Largest number of steps of a walk.
    """
    of_nodes = derived(split.graph, _similarities, walks)[split.nodes]
    found = of_nodes.new_zeros(num_classes).index_add(0, split.labels, of_nodes)
    return (found / max(len(split), 1)).clamp(0, 1)  # cosines round to more than 1


def _similarities(graph: Graph, walks: int) -> Tensor:
    """Mean similarity of each node to its neighbours and itself."""
    x = with_structure(graph, walks, 1).features.to_dense()[:, :-1]
    near = [  # some edges at once, as each takes two dense rows
        cosine_similarity(x[start], x[end], dim=-1)
        for start, end in graph.edges.split(EDGES_AT_ONCE, dim=1)
    ]
    sums = torch.ones(len(graph), dtype=x.dtype, device=x.device)
    return sums.index_add(0, graph.edges[0], torch.cat(near)) / (graph.degrees + 1)


def pseudo_graph(x: Float[Tensor, "n width"], y: Int64[Tensor, " n"], neighbours: int) -> Graph:
    """A graph of nodes that are joined to their nearest ones by cosine.

    Args:
        x: Features.
        y: Classes.
        neighbours: Number of nearest nodes, the node itself among them.
    """
    directions = normalize(x.detach(), dim=-1)
    near = (directions @ directions.T).topk(min(neighbours, len(x)), dim=-1).indices
    start = torch.arange(len(x), device=x.device).unsqueeze(-1).expand_as(near)
    return Graph(x, simple_edges(torch.stack((start.flatten(), near.flatten())), len(x)), y)


def _weighted(values: Sequence[Tensor], y: Tensor, shares: Tensor) -> Tensor:
    """Sum over clients and classes of the reliability times the mean value of the class."""
    return (torch.stack(tuple(values)) * shares[:, y] / y.bincount()[y]).sum()


def diversity_loss(noise: Float[Tensor, "n k"], x: Float[Tensor, "n width"]) -> Float[Tensor, ""]:
    """Small if nodes with other noise have other features.

    Args:
        noise: Noise of the nodes.
        x: Their features.
    """
    apart = (noise.unsqueeze(0) - noise.unsqueeze(1)).square().mean(dim=-1)
    away = torch.cdist(x, x, p=1) / x.shape[-1]
    return (-(apart * away).mean()).exp()
