"""Federated graph classification: every client holds separate graphs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.data.contract.client import HOLDOUT, Client, FederatedData, Meta
from fedbolic.data.contract.partition import Partition
from fedbolic.data.contract.source import Source
from fedbolic.data.graphs.graph import Graph
from fedbolic.data.graphs.graph_families import GraphFamily, TreesAndRings
from fedbolic.data.graphs.graphs import Scale, scaled
from fedbolic.data.graphs.node_roles import TEST, TRAIN, VALIDATION, check_split, random_roles
from fedbolic.data.graphs.whole_graphs import (
    WholeGraphs,
    check_widths,
    graph_labels,
    pick_graphs,
    unite_graphs,
)

NodeFeatures = Literal["given", "degrees"]


@dataclass(frozen=True)
class GraphClassification(Source):
    """Classification of whole graphs, of which every client holds some.

    Without a partition there is one client per family, such as one data set or one domain each;
    with a partition, the graphs of every family are split among that many clients. The server's own
    test set holds the test graphs of all clients. Use methods of ``flatland`` with a network in a
    ``GraphReadout``; other methods see the mean features of a graph.

    Args:
        families: Data sets of graphs, at least one.
        partition: Partition of the graphs of each family by their labels; ``None`` for one client
            per family.
        features: Features of the nodes: those ``given``, or one-hot ``degrees``, the only ones that
            data sets with different features have in common.
        most_degree: Degree from which nodes have the same one-hot feature, at least 1.
        train_rate: Fraction of a client's graphs used for training, in (0, 1).
        test_rate: Fraction of a client's graphs used for testing, in [0, 1); the rest is for
            validation.
        scale: Scaling of each client's features, as in :class:`Graphs`.
        root: Folder to read from; by default the one named by the environment variable
            FEDBOLIC_DATA. Nothing is downloaded.

    Raises:
        ValueError: If there is no family, a rate is out of range or the rates sum to more than 1.

    References:
        Xie et al. (2021), arXiv:2106.13423, for one data set or several.

    Example:
        >>> from fedbolic.data.contract.partition import IID
        >>> data = GraphClassification(partition=IID(3)).load(Rng(0))
        >>> data.meta.num_clients, data.sizes, len(data.holdout.test)
        (3, (12, 12, 12), 12)
    """

    families: tuple[GraphFamily, ...] = field(default_factory=lambda: (TreesAndRings(),))
    partition: Partition | None = None
    features: NodeFeatures = "degrees"
    most_degree: int = 15
    train_rate: float = 0.6
    test_rate: float = 0.2
    scale: Scale = "none"
    root: Path | None = None

    def __post_init__(self) -> None:
        if not self.families:
            raise ValueError("families is empty: name at least one data set of graphs")
        check.one_of(get_args(NodeFeatures), features=self.features)
        check.one_of(get_args(Scale), scale=self.scale)
        check.at_least(1, most_degree=self.most_degree)
        check_split("random", train_rate=self.train_rate, test_rate=self.test_rate)

    @override
    def load(self, rng: Rng) -> FederatedData:
        unions = [
            self._with_features(family.read(rng.at("family", i), self.root), family)
            for i, family in enumerate(self.families)
        ]
        remedy = "use features='degrees', which all graphs have"
        check_widths(self.families, unions, remedy)
        parts = [
            pick_graphs(union, index)
            for i, union in enumerate(unions)
            for index in self._parts(union, rng.at("partition", i))
        ]
        meta = Meta(
            num_classes=max(int(union.labels.max()) for union in unions) + 1,
            input_shape=tuple(parts[0].features.shape[1:]),
            num_clients=len(parts),
        )
        splits = [self._splits(part, i, rng.at("split", i)) for i, part in enumerate(parts)]
        clients = tuple(Client(i, *of, meta=meta) for i, of in enumerate(splits))
        return FederatedData(clients, meta, _holdout([test for *_, test in splits], meta))

    def _with_features(self, union: Graph, family: GraphFamily) -> Graph:
        if self.features == "degrees":
            degrees = union.degrees.clamp(max=self.most_degree)
            found = one_hot(degrees, self.most_degree + 1).float()
        elif not union.features.shape[1]:
            raise ValueError(f"{family} has no features: use features='degrees'")
        else:
            found = union.features
        return Graph(found, union.edges, union.labels, batch=union.batch)

    def _parts(self, union: Graph, rng: Rng) -> Sequence[Tensor]:
        """Graphs of every client of a family."""
        labels = graph_labels(union)
        if self.partition is None:
            return (torch.arange(len(labels)),)
        return self.partition.split(labels, rng)

    def _splits(
        self, part: Graph, client_id: int, rng: Rng
    ) -> tuple[WholeGraphs, WholeGraphs, WholeGraphs]:
        """Training, validation and test graphs of a client."""
        num_graphs = len(graph_labels(part))
        rates = {"train_rate": self.train_rate, "test_rate": self.test_rate}
        roles = random_roles(num_graphs, rng, **rates)
        if not bool((roles == TRAIN).any()):
            raise ValueError(
                f"client {client_id} has {num_graphs} graphs but none for training: use fewer "
                "clients or a larger train_rate"
            )
        features = scaled(part.features, self.scale)
        graph = Graph(features, part.edges, part.labels, batch=part.batch)
        train, validation, test = (
            WholeGraphs(graph, (roles == role).nonzero().flatten())
            for role in (TRAIN, VALIDATION, TEST)
        )
        return train, validation, test


def _holdout(tests: Sequence[WholeGraphs], meta: Meta) -> Client | None:
    """The server's test set: the union of the clients' test graphs."""
    held = [pick_graphs(test.graph, test.places) for test in tests if len(test)]
    if not held:
        return None
    whole = unite_graphs(held)
    empty = WholeGraphs(whole, torch.arange(0))
    everything = WholeGraphs(whole, torch.arange(len(graph_labels(whole))))
    return Client(HOLDOUT, empty, empty, everything, meta)
