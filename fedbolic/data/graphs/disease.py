"""The Disease tree of the hyperbolic graph convolutional network."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.data.files.published_files import RemoteFile, locate
from fedbolic.data.graphs.graph import Graph, simple_edges
from fedbolic.data.graphs.graph_sets import GraphSet, compact_features

HGCN_REPOSITORY = (
    "https://raw.githubusercontent.com/HazyResearch/hgcn/"
    "a526385744da25fc880f3da346e17d0fe33817f8/data/disease_lp"
)
"""Data folder of the authors' repository at one commit."""

# SHA-256 digests, computed from the files of that commit
DISEASE_CHECKSUMS = {
    "edges.csv": "b5b7e41bbfd28fc7f61590e5587622103ee9c3aa1b59911c74873a6f328dca07",
    "feats.npz": "b4a726b13598c036a75e1b49f08e92820553b972966ad950b8d4d5416eb339f8",
    "labels.npy": "8f2b26602764fbb785b93775d9f71194f1f36920e185af8bc5c31aea07dde858",
}


@dataclass(frozen=True)
class Disease(GraphSet):
    """The simulated spread of a disease over a tree: 2665 nodes, 11 real features, 2 labels.

    A local root contains ``hgcn/disease_lp`` with the edges, features and labels of the tree for
    link prediction. No file is unpickled.

    References:
        Chami et al. (2019), Sec. 5, arXiv:1910.12933.
    """

    @override
    def read(self, rng: Rng, root: Path | None, *, download: bool) -> Graph:
        from scipy.sparse import load_npz  # imported here because SciPy is slow to import

        edges, features, labels = (
            _located(part, root, download=download)
            for part in ("edges.csv", "feats.npz", "labels.npy")
        )
        x = torch.from_numpy(load_npz(features).toarray()).float()
        ends = torch.from_numpy(np.loadtxt(edges, np.int64, delimiter=",", ndmin=2)).T
        y = torch.from_numpy(np.load(labels, allow_pickle=False)).long()
        return Graph(compact_features(x), simple_edges(ends, len(x)), y)


def _located(part: str, root: Path | None, *, download: bool) -> Path:
    file = f"disease_lp.{part}"
    published = RemoteFile(
        f"hgcn/disease_lp/{file}", DISEASE_CHECKSUMS[part], (f"{HGCN_REPOSITORY}/{file}",)
    )
    (path,) = locate(published, root=root, download=download)
    return path
