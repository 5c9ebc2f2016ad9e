"""The citations of computer science papers on arXiv, from the Open Graph Benchmark."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from typing_extensions import override

from fedbolic.data.files import RemoteFile, gunzip, locate, members
from fedbolic.data.graph import Graph, simple_edges
from fedbolic.data.graph_sets import GraphSet, compact_features
from fedbolic.rng import Rng

ARCHIVE = RemoteFile(
    "ogbn_arxiv/arxiv.zip",
    "49f85c801589ecdcc52cfaca99693aaea7b8af16a9ac3f41dd85a5f3193fe276",
    ("https://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip",),
)
"""As the benchmark offers it."""

FILES = ("edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz")


@dataclass(frozen=True)
class Arxiv(GraphSet):
    """ogbn-arxiv: 169,343 papers with the mean of their words' embeddings, and 40 subjects.

    Citations are taken without their direction. A local root holds ``ogbn_arxiv/raw``, as OGB's own
    loader leaves it, or ``ogbn_arxiv/arxiv.zip``.

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
            packed = [path.read_bytes() for path in found]
        edges, features, labels = (
            _numbers(gunzip(data, name), name, dtype)
            for data, name, dtype in zip(
                packed, FILES, (np.int64, np.float32, np.int64), strict=True
            )
        )
        x = torch.from_numpy(features)
        edges = simple_edges(torch.from_numpy(edges).T, len(x))
        return Graph(compact_features(x), edges, torch.from_numpy(labels)[:, 0])


def _numbers(lines: bytes, name: str, dtype: DTypeLike) -> NDArray:
    """The numbers of a file, separated by commas.

    Raises:
        ValueError: If something else stands there, naming the file.
    """
    try:
        return np.loadtxt(io.BytesIO(lines), dtype, delimiter=",", ndmin=2)
    except ValueError as error:
        raise ValueError(f"{name} is not what was published ({error}): get it again") from error
