"""Federated knowledge graphs: tables of entities and relations, learnt by clients with triples.

Ours; see ``README.md`` in this folder for the protocol, its results and its limits.
"""

import fedbolic.knowledge.joint  # noqa: F401  # registers its joint forms
from fedbolic.federated.aggregators.row_mean import TableMeans
from fedbolic.knowledge.knowledge_graph import KnowledgeGraph
from fedbolic.knowledge.method import KnowledgeEmbedding
from fedbolic.knowledge.triple_scorer import TripleScorer
from fedbolic.knowledge.triple_scores import TripleScore

__all__ = ["KnowledgeEmbedding", "KnowledgeGraph", "TableMeans", "TripleScore", "TripleScorer"]
