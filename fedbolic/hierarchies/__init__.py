"""Federated hierarchies: one table of embeddings, learnt by clients that hold parts of a hierarchy.

Ours; see ``README.md`` in this folder for the protocol, its results and its limits.
"""

import fedbolic.hierarchies.joint  # noqa: F401  # registers its joint forms
from fedbolic.hierarchies.embedding import Embedding
from fedbolic.hierarchies.method import HierarchyEmbedding
from fedbolic.hierarchies.popularity import Popularity
from fedbolic.hierarchies.ready_tables import ready
from fedbolic.hierarchies.slot_layout import SlotLayout
from fedbolic.hierarchies.tree_layout import TreeLayout

__all__ = ["Embedding", "HierarchyEmbedding", "Popularity", "SlotLayout", "TreeLayout", "ready"]
