"""Indices that answer Euclidean queries, behind one small interface."""

import math
from functools import partial
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import scipy
from jaxtyping import Float, Int

from fedbolic.core.imports import extra

LEAF = 256
"""Points of a leaf of the tree; with few a query visits many leaves and takes longer."""


class EuclideanIndex(Protocol):
    """An index of points of a vector space."""

    @property
    def exact(self) -> bool:
        """True if ``nearest`` misses no point but by the rounding of float64."""
        ...

    def nearest(
        self, centre: Float[np.ndarray, " dim"], count: int, *, within: float
    ) -> Int[np.ndarray, " found"]:
        """Rows of the nearest points.

        Args:
            centre: The query.
            count: Points to find, at most the number of all.
            within: Distance beyond which points may be left out.
        """
        ...


class KDTree:
    """scipy's k-d tree, which is exact.

    It holds its points in the order of its leaves: a query reads a leaf as one block of memory.

    Args:
        points: One point a row.
    """

    exact = True

    def __init__(self, points: Float[np.ndarray, "n dim"]) -> None:
        # cells are halved, not their points: hyperbolic ones crowd at the rim of the ball
        build = partial(scipy.spatial.KDTree, leafsize=LEAF, balanced_tree=False)
        self._rows = build(points).indices
        self._tree = build(points[self._rows])

    def nearest(
        self, centre: Float[np.ndarray, " dim"], count: int, *, within: float
    ) -> Int[np.ndarray, " found"]:
        """Rows of the nearest points within a distance."""
        _, found = self._tree.query(centre, count, distance_upper_bound=within)
        at = np.atleast_1d(found)
        return self._rows[at[at < self._tree.n]]


class Hnswlib:
    """hnswlib's graph of small worlds, in float32.

    Args:
        points: One point a row.
        connectivity: Links of a point, at least 2 (``M``).
        expansion: Candidates of a query, at least 1 (``ef``).

    Raises:
        MissingExtraError: If hnswlib is not installed.
    """

    exact = False

    def __init__(
        self,
        points: Float[np.ndarray, "n dim"],
        *,
        connectivity: int = 32,
        expansion: int = 512,
    ) -> None:
        with extra("vectors", "Hnswlib"):
            hnswlib: Any = import_module("hnswlib")
        self._index = hnswlib.Index("l2", points.shape[1])
        self._index.init_index(len(points), M=connectivity, ef_construction=200, random_seed=0)
        self._index.add_items(points, num_threads=1)
        self._expansion = expansion

    def nearest(
        self, centre: Float[np.ndarray, " dim"], count: int, *, within: float = math.inf
    ) -> Int[np.ndarray, " found"]:
        """Rows of points near by."""
        self._index.set_ef(max(count, self._expansion))
        rows, _ = self._index.knn_query(centre, count, num_threads=1)
        return rows[0].astype(np.int64)


class Faiss:
    """An index of faiss, in float32.

    Args:
        points: One point a row.
        factory: Kind of index by faiss's own names.

    Raises:
        MissingExtraError: If faiss is not installed.
    """

    exact = False

    def __init__(self, points: Float[np.ndarray, "n dim"], *, factory: str = "HNSW32") -> None:
        with extra("vectors", "Faiss"):
            faiss: Any = import_module("faiss")
        self._index = faiss.index_factory(points.shape[1], factory)
        self._index.train(points.astype(np.float32))
        self._index.add(points.astype(np.float32))

    def nearest(
        self, centre: Float[np.ndarray, " dim"], count: int, *, within: float = math.inf
    ) -> Int[np.ndarray, " found"]:
        """Rows of points near by."""
        _, rows = self._index.search(centre[None].astype(np.float32), count)
        return rows[0][rows[0] >= 0]


class Qdrant:
    """A collection of a Qdrant server, or of its local mode; in float32.

    Args:
        points: One point a row, which become the collection.
        location: Address of the server; ``:memory:`` for the local mode, which scans.
        collection: Name of the collection; one of that name is replaced.

    Raises:
        MissingExtraError: If qdrant-client is not installed.
    """

    exact = False

    def __init__(
        self,
        points: Float[np.ndarray, "n dim"],
        *,
        location: str = ":memory:",
        collection: str = "fedbolic",
    ) -> None:
        with extra("vectors", "Qdrant"):
            qdrant: Any = import_module("qdrant_client")
        self._client, self._collection = qdrant.QdrantClient(location), collection
        if self._client.collection_exists(collection):
            self._client.delete_collection(collection)
        vectors = qdrant.models.VectorParams(
            size=points.shape[1], distance=qdrant.models.Distance.EUCLID
        )
        self._client.create_collection(collection, vectors_config=vectors)
        self._client.upload_collection(
            collection, points.astype(np.float32), ids=range(len(points)), wait=True
        )

    def nearest(
        self, centre: Float[np.ndarray, " dim"], count: int, *, within: float = math.inf
    ) -> Int[np.ndarray, " found"]:
        """Rows of points near by."""
        found = self._client.query_points(self._collection, query=centre.tolist(), limit=count)
        return np.array([point.id for point in found.points], dtype=np.int64)
