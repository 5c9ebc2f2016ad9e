"""A made graph of the size of ogbn-arxiv, and the cost of rounds on it.

The settings are those of ``configs/flatland/arxiv.yaml``: ten clients by METIS, three local epochs,
all clients at once. The first round is not timed. The graph is made, so scores mean nothing.
"""

import dataclasses
import itertools
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
from typing_extensions import override

from benchmarks.flatland.partition_report import graph_of
from benchmarks.timing import Clock, held_mebibytes
from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.data import Graph, Graphs, GraphSet
from fedbolic.data.graphs.graph import simple_edges
from fedbolic.federated import Evaluation, Method, Trainer
from fedbolic.run import experiment
from fedbolic.run.configuration import build
from flatland import GCN, FedGta, FlatLand

CONFIG = Path(__file__).parents[2] / "configs" / "flatland" / "arxiv.yaml"

METHODS = ("FedAvg", "FedGTA", "FlatLand")


@dataclass(frozen=True)
class MadeCitations(GraphSet):
    """A made graph with the numbers of ogbn-arxiv: classes that cite themselves, and few hubs.

    Both ends of an edge have the same class with probability ``within``, else the second one is any
    node. Second ends are drawn by the cube of a uniform number, so that some nodes have high
    degrees. Features are Gaussian around a centre of the class.

    Args:
        num_nodes: Number of nodes, at least 2.
        num_edges: Number of undirected edges, at least 0; above a tenth of all pairs they may not
            be found.
        num_features: Width of the features, at least 1.
        num_classes: Number of classes, at least 1.
        within: Probability that an edge is drawn within a class, in [0, 1].
    """

    num_nodes: int = 169_343
    num_edges: int = 1_166_243
    num_features: int = 128
    num_classes: int = 40
    within: float = 0.65

    def __post_init__(self) -> None:
        check.at_least(2, num_nodes=self.num_nodes)
        check.at_least(0, num_edges=self.num_edges)
        check.at_least(1, num_features=self.num_features, num_classes=self.num_classes)
        check.rate(within=self.within)

    @override
    def read(self, rng: Rng, root: Path | None, *, download: bool) -> Graph:
        generator = rng.generator()
        n = self.num_nodes
        labels = torch.randint(self.num_classes, (n,), generator=generator)
        order, sizes = labels.argsort(), labels.bincount(minlength=self.num_classes)
        starts = sizes.cumsum(0) - sizes
        num_draws = self.num_edges + self.num_edges // 2 + 100  # some are drawn twice
        first = torch.randint(n, (num_draws,), generator=generator)
        rank = torch.rand(num_draws, generator=generator, dtype=torch.float64) ** 3
        own = labels[first]
        inside = torch.rand(num_draws, generator=generator) < self.within
        second = torch.where(
            inside, order[starts[own] + (rank * sizes[own]).long()], (rank * n).long()
        )
        edges = simple_edges(torch.stack((first, second)), n)
        edges = edges[:, edges[0] < edges[1]]
        if edges.shape[1] < self.num_edges:
            raise ValueError(
                f"only {edges.shape[1]} of {self.num_edges} edges were found: ask for fewer edges"
            )
        kept = torch.randperm(edges.shape[1], generator=generator)[: self.num_edges]
        centres = torch.randn(self.num_classes, self.num_features, generator=generator)
        noise = torch.randn(n, self.num_features, generator=generator)
        features = 0.1 * (centres[labels] + noise)
        return Graph(features, simple_edges(edges[:, kept], n), labels)


def cost(name: str, graph: GraphSet, *, rounds: int) -> dict[str, float]:
    """CPU seconds of loading and of a round, edges within clients, and peak memory in megabytes."""
    settings = build(experiment.run, ["--config", str(CONFIG)])
    source, method, engine = (settings[part] for part in ("data", "method", "engine"))
    assert isinstance(source, Graphs)
    assert isinstance(method, FlatLand)
    clock = Clock()
    data = dataclasses.replace(source, graph=graph).load(Rng(0)).to("cpu", torch.float32)
    found = {"load": clock.lap(), "megabytes loaded": held_mebibytes()}
    found["edges kept"] = sum(graph_of(client).num_edges for client in data.clients)
    trainer = Trainer(engine, evaluation=Evaluation(every=10**9))
    run = trainer.run(named(name, method), data, Rng(0))
    clock.lap()
    seconds = [clock.lap() for _ in itertools.islice(run, rounds + 1)]
    found |= {"first round": seconds[0], "round": statistics.median(seconds[1:])}
    return {**found, "megabytes at most": held_mebibytes()}


def named(name: str, method: FlatLand) -> Method:
    """One of :data:`METHODS` with the local training of FlatLand."""
    if name == "FedAvg":
        return dataclasses.replace(method, network=GCN(), sharing={"*": "shared"}, proximal=0.0)
    if name == "FedGTA":
        same = {part: getattr(method, part) for part in ("local", "lr", "weight_decay")}
        return FedGta(GCN(), method.rounds, **same)
    return method
