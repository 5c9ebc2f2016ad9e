"""Nearest neighbours in hyperbolic space: exact by shifted Euclidean queries, and by a graph.

See ``README.md`` in this folder for what each index gave, and for its limits.
"""

from fedbolic.search.approximate import ApproximateIndex
from fedbolic.search.euclidean import EuclideanIndex, Faiss, Hnswlib, KDTree, Qdrant
from fedbolic.search.index import HyperbolicIndex
from fedbolic.search.table import NearestPoints

__all__ = [
    "ApproximateIndex",
    "EuclideanIndex",
    "Faiss",
    "Hnswlib",
    "HyperbolicIndex",
    "KDTree",
    "NearestPoints",
    "Qdrant",
]
