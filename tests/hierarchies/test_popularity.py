"""The trivial baseline of hierarchies, and a client that lies to it."""

import dataclasses
from collections import Counter

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import BalancedTree, PartitionedHierarchy, Subtrees
from fedbolic.federated import Sequential, Trainer
from fedbolic.hierarchies import Popularity

DATA = PartitionedHierarchy(BalancedTree(2, 4), Subtrees(3)).load(Rng(0))
NUM_NODES = DATA.meta.num_classes


@dataclasses.dataclass(frozen=True)
class Lying(Sequential):
    """Client 0 sends the same count for every node."""

    count: int = 0

    def run(self, exchange):
        for client, update, kept in super().run(exchange):
            if client.id == 0:
                lie = torch.full((NUM_NODES,), self.count)
                update = dataclasses.replace(update, payload={"descendants": lie})
            yield client, update, kept


@pytest.mark.parametrize("count", [-(10**6), -1, 0, NUM_NODES - 1, NUM_NODES, 2**62])
def test_counts_of_pairs_that_no_client_can_have_are_left_out(count):
    ((state, _),) = Trainer(Lying(count)).run(Popularity(), DATA, 0)
    honest = Counter(
        ancestor
        for client in DATA.clients[1:]
        for _, ancestor in client.train.hierarchy.pairs.tolist()
    )
    lie = count if 0 <= count < NUM_NODES else 0
    expected = [honest[node] + lie for node in range(NUM_NODES)]
    assert state.server_state["descendants"].tolist() == expected
