"""Small federations of a forest: common upper nodes, and subtrees of clients."""

import itertools
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data import HOLDOUT, Client, FederatedData, Hierarchy, HierarchySplit, random_tree
from fedbolic.data.hierarchies.hierarchy_files import HierarchySet
from fedbolic.data.hierarchies.hierarchy_split import PRIVATE, ROOT


@dataclass(frozen=True)
class RandomTree(HierarchySet):
    """A random tree of so many nodes."""

    num_nodes: int

    def read(self, root, *, download):
        return random_tree(self.num_nodes, Rng(0))


def federation(common, private):
    """Clients that know a common forest.

    Args:
        common: Parent of every common node, ``ROOT`` for roots.
        private: For each client the parent of each of its own nodes.
    """
    size = 1 + max(1, *itertools.chain(common, *private))
    names = tuple(map(str, range(size)))

    def closed(*parts):
        edges = [(u, p) for part in parts for u, p in part.items() if p != ROOT]
        pairs = torch.tensor(sorted(set(edges)), dtype=torch.int64).reshape(-1, 2)
        return Hierarchy(names, pairs).closure()

    parents = torch.full((size,), PRIVATE)
    for node, parent in common.items():
        parents[node] = parent
    meta = Meta(size, (2,), len(private))

    def split(*parts, held=None):
        return HierarchySplit(closed(*parts), held=held, common=parents)

    none = HierarchySplit(Hierarchy(names, torch.empty(0, 2, dtype=torch.int64)), common=parents)
    clients = tuple(Client(i, split(common, p), none, none, meta) for i, p in enumerate(private))
    return FederatedData(clients, meta, Client(HOLDOUT, none, none, split(common, *private), meta))


@st.composite
def forests(draw, *, most=14, least_clients=1):
    """Arguments of :func:`federation`: parents of common nodes, and those of each client's own.

    Node 0 is a common root; private nodes lie below common ones, below earlier nodes of their
    client, or have no parent.
    """
    num_common, num_clients = draw(st.integers(1, 5)), draw(st.integers(least_clients, 4))
    common = {0: ROOT} | {i: draw(st.integers(ROOT, i - 1)) for i in range(1, num_common)}
    private = [dict[int, int]() for _ in range(num_clients)]
    for node in range(num_common, draw(st.integers(num_common + 1, most))):
        own = private[draw(st.integers(0, num_clients - 1))]
        own[node] = draw(st.sampled_from([ROOT, *common, *own]))
    # a node without a pair is known to nobody
    return common, [
        {u: p for u, p in own.items() if p != ROOT or u in own.values()} for own in private
    ]
