"""Rounds of graph convolutions: beside a loop in PyG, and on a made graph as large as ogbn-arxiv.

*loop*: 20 clients with graphs of 90 to 153 nodes, two convolutions of width 128 and a linear head,
the whole graph in every step, Adam. The loop has one model, dense features and PyG's scatter; its
edge weights are computed beforehand. Timed rounds are interleaved; a ratio above 1 means faster.
*arxiv*: each method runs in a separate process.
"""

import copy
import json
import statistics
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from benchmarks.flatland.made_arxiv import METHODS
from benchmarks.script import alone
from benchmarks.table import head, line, middle
from benchmarks.timing import Clock
from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data import Client, Graph, GraphSplit
from fedbolic.data.graphs.graph import simple_edges
from fedbolic.data.graphs.graph_sets import compact_features
from fedbolic.federated import Batched, Engine, LocalTraining, Sequential
from fedbolic.federated.contract.engine import Exchange
from flatland import GCN, FlatLand

NUM_CLIENTS, NUM_CLASSES, WIDTH = 20, 7, 128

WORK = {
    "1433 sparse features, E = 1": (1433, 1),
    "1433 sparse features, E = 3": (1433, 3),
    "64 dense features, E = 3": (64, 3),
}
"""Features and local epochs; with more than 100 features, 1.3 % of them are nonzero."""

GOALS = {"1433 sparse features, E = 1": 1.7, "1433 sparse features, E = 3": 1.7,
         "64 dense features, E = 3": 2.5}  # fmt: skip


def clients(num_features: int, seed: int = 0) -> list[Client]:
    """Random graphs with about the degrees of Cora; a fifth of the nodes is labelled."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(90, 154, (NUM_CLIENTS,), generator=generator).tolist()
    meta = Meta(NUM_CLASSES, (num_features,), len(sizes))
    made = []
    for i, n in enumerate(sizes):
        edges = torch.randint(n, (2, 2 * n), generator=generator)
        if num_features > 100:
            x = (torch.rand(n, num_features, generator=generator) < 0.013).float()
            x = compact_features(x / x.sum(1, keepdim=True).clamp(min=1))
        else:
            x = torch.randn(n, num_features, generator=generator)
        labels = torch.randint(NUM_CLASSES, (n,), generator=generator)
        graph = Graph(x, simple_edges(edges, n), labels)
        nodes = torch.randperm(n, generator=generator)[: n // 5]
        none = GraphSplit(graph, torch.arange(0))
        made.append(Client(i, GraphSplit(graph, nodes), none, none, meta))
    return made


class Plain(nn.Module):
    """The same network of PyG's layers."""

    def __init__(self, num_features: int, rate: float) -> None:
        super().__init__()
        self.first = GCNConv(num_features, WIDTH, normalize=False)
        self.second = GCNConv(WIDTH, WIDTH, normalize=False)
        self.head, self.rate = nn.Linear(WIDTH, NUM_CLASSES), rate

    def forward(self, x: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
        """One logit per class for every node."""
        for layer in (self.first, self.second):
            x = dropout(layer(x, edges, weights).relu(), self.rate, self.training)
        return self.head(x)


def plain_round(members: list[Client], epochs: int, rate: float) -> Callable[[], None]:
    """A round of the loop; every client's Adam continues from its last round."""
    model = Plain(members[0].meta.input_shape[0], rate)
    global_parameters = copy.deepcopy(model.state_dict())
    adam = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-5)
    states: list = [None] * len(members)
    listed = []
    for client in members:
        graph = client.train.graph  # type: ignore[attr-defined]
        x = graph.features.to_dense() if graph.features.is_sparse else graph.features
        edges, weights = gcn_norm(graph.edges, num_nodes=len(graph))
        nodes = client.train.nodes  # type: ignore[attr-defined]
        listed.append((x, edges, weights, nodes, graph.labels[nodes]))

    def run() -> None:
        for i, (x, edges, weights, nodes, labels) in enumerate(listed):
            model.load_state_dict(global_parameters)
            adam.state.clear()
            if states[i] is not None:
                adam.state.update(states[i])
            for _ in range(epochs):
                adam.zero_grad()
                cross_entropy(model(x, edges, weights)[nodes], labels).backward()
                adam.step()
            states[i] = dict(adam.state)
            tree.subtract({n: p.detach() for n, p in model.named_parameters()}, global_parameters)

    return run


def our_round(
    engine: Engine, members: list[Client], epochs: int, rate: float
) -> Callable[[], None]:
    """A round of an engine with the same steps; Adam's moments are kept as client state."""
    network = GCN((WIDTH, WIDTH), dropout=rate)
    method = FlatLand(network, sharing={"*": "shared"}, local=LocalTraining(epochs, None))
    server_state = method.init(members[0].meta, Rng(0))
    client_states: dict[int, dict] = {}

    def run() -> None:
        messages = {client.id: method.broadcast(server_state, client.id) for client in members}
        exchange = Exchange(method, messages, members, client_states, Rng(1))
        for client, _, client_state in engine.run(exchange):
            client_states[client.id] = client_state

    return run


def measure(num_features: int, epochs: int, rate: float, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of every timed round, by candidate, after one warm-up round each."""
    members = clients(num_features)
    candidates = {
        "loop in PyG": plain_round(members, epochs, rate),
        "Sequential": our_round(Sequential(), members, epochs, rate),
        "Batched": our_round(Batched(), members, epochs, rate),
    }
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds + 1):
        for name, run in candidates.items():
            clock = Clock()
            run()
            if turn:
                found[name].append(clock.lap())
    return found


def compare_loop(rounds: int) -> None:
    """Print CPU times of engines beside the loop in PyG, with the goals."""
    columns = "candidate", "CPU ms of a round", "times the loop", "goal"
    print(head("work", "dropout", *columns))
    for work, (num_features, epochs) in WORK.items():
        for rate in (0.0, 0.5):
            found = measure(num_features, epochs, rate, rounds)
            plain = found["loop in PyG"]
            for name, seconds in found.items():
                speed = middle([p / s for p, s in zip(plain, seconds, strict=True)])
                goal = GOALS[work] if name == "Batched" and rate == 0 else ""
                taken = f"{1000 * statistics.median(seconds):.0f}"
                print(line(work, rate, name, taken, speed, goal), flush=True)


def compare_methods(rounds: int) -> None:
    """Print the cost of methods on the made graph, each in a process of its own."""
    seconds, megabytes = ("load", "first round", "round"), ("megabytes loaded", "megabytes at most")
    columns = (*(f"{name}, s" for name in seconds), "loaded, MB", "at most, MB")
    print(f"\n{head('', 'edges kept', *columns)}")
    for name in METHODS:
        found = json.loads(alone("flatland", "speed", "--alone", name, "--rounds", rounds))
        cells = [f"{found['edges kept']:,}", *(f"{found[key]:,.1f}" for key in seconds)]
        print(line(name, *cells, *(f"{found[key]:,.0f}" for key in megabytes)), flush=True)
