"""The trivial baseline of hierarchies: the nodes that are ancestors of most others come first."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Tree
from fedbolic.data.contract.client import Client
from fedbolic.data.hierarchies.hierarchy_split import HierarchySplit
from fedbolic.federated.aggregators.aggregator import Sum
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update, find_outside
from fedbolic.federated.contract.method import Method
from fedbolic.federated.contract.traits import Traits
from fedbolic.hierarchies.scores import check_sample, score_distances
from fedbolic.nn.loss.ranking import RowDistances


@dataclass(frozen=True)
class Popularity(Method):
    r"""Ranking of all nodes by the number of their known descendants, the same for every node.

    .. math:: d(u, v) = -\sum_k |\{w : (w, v) \in P_k\}|

    One round; each client sends the number of its pairs with every ancestor.

    Args:
        sample: Nodes whose ancestors are ranked, at least 2, drawn at every evaluation; ``None``
            for all.
    """

    sample: int | None = None

    def __post_init__(self) -> None:
        check_sample(self.sample)

    traits = Traits(learns_from=HierarchySplit)

    aggregator = Sum()
    payload_like: ClassVar = {"descendants": "descendants"}

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return {"descendants": torch.zeros(meta.num_classes, dtype=torch.int64)}

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        ancestors = client.split_of(HierarchySplit).hierarchy.pairs[:, 1]
        counts = torch.bincount(ancestors, minlength=client.meta.num_classes)
        return Update({"descendants": counts}, float(client.size)), {}

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        return find_outside(payload, "descendants", 0, len(message["descendants"]) - 1)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        return total.payload

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        counts = message["descendants"].double()

        def among(nodes: Tensor) -> RowDistances:
            return lambda rows: -counts[nodes].expand(len(rows), -1)

        return score_distances(among, client, rng=rng, sample=self.sample)
