"""The citation network ogbn-arxiv of the Open Graph Benchmark."""

import gzip
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from typing_extensions import override

from fedbolic.core.reading import lines, read_bytes
from fedbolic.core.rng import Rng
from fedbolic.data.files.published_files import RemoteFile, locate, members
from fedbolic.data.graphs.graph import Graph, simple_edges
from fedbolic.data.graphs.graph_sets import GraphSet, compact_features

ARCHIVE = RemoteFile(
    "ogbn_arxiv/arxiv.zip",
    "49f85c801589ecdcc52cfaca99693aaea7b8af16a9ac3f41dd85a5f3193fe276",
    ("https://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip",),
)
"""The archive published by the benchmark."""

FILES = ("edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz")


@dataclass(frozen=True)
class Arxiv(GraphSet):
    """ogbn-arxiv: 169,343 computer science papers with averaged word embeddings, 40 subjects.

    Citations become undirected edges. A local root contains either ``ogbn_arxiv/raw``, as unpacked
    by OGB's own loader, or ``ogbn_arxiv/arxiv.zip``.

    References:
        Hu et al. (2020), arXiv:2005.00687.
    """

    @override
    def read(self, rng: Rng, root: Path | None, *, download: bool) -> Graph:
        unpacked = [f"ogbn_arxiv/raw/{file}" for file in FILES]
        found = locate(ARCHIVE, [unpacked], root=root, download=download)
        if len(found) == 1:
            packed = members(found[0], [f"arxiv/raw/{file}" for file in FILES])
        else:
            packed = [read_bytes(path) for path in found]
        edges, features, labels = (
            _numbers(data, name, dtype)
            for data, name, dtype in zip(
                packed, FILES, (np.int64, np.float32, np.int64), strict=True
            )
        )
        x = torch.from_numpy(features)
        edges = simple_edges(torch.from_numpy(edges).T, len(x))
        return Graph(compact_features(x), edges, torch.from_numpy(labels)[:, 0])


def _numbers(packed: bytes | bytearray, name: str, dtype: DTypeLike) -> NDArray:
    """Parse a gzipped file of comma-separated numbers.

    Raises:
        ValueError: If the file contains anything else; the message names the file.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
            return np.loadtxt(lines(stream, name), dtype, delimiter=",", ndmin=2)
    except ValueError as error:
        raise ValueError(f"{name} is not as published ({error}): download it again") from error
