"""Readers of the published citation networks, which are pickles, without running their code."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from fedbolic.core.reading import read_bytes, read_text
from fedbolic.data.files.pickled import unpickle
from fedbolic.data.files.published_files import RemoteFile, locate

MIRROR = (
    "https://raw.githubusercontent.com/kimiyoung/planetoid/"
    "af6abf468a772cc055bec88c52e4d6f51b7c37e3/data"
)
"""The authors' repository at its last commit."""

# SHA-256 digests. Those of Cora were computed from the files. Those of CiteSeer and PubMed are
# stated independently by two public repositories for this commit, whose digests of Cora agree.
CHECKSUMS: Mapping[str, Mapping[str, str]] = {
    "Cora": {
        "x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
        "tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
        "allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
        "y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
        "ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
        "ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
        "graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
        "test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    },
    "CiteSeer": {
        "x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        "tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        "allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        "y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
        "ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        "ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        "graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        "test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    },
    "PubMed": {
        "x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
        "tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
        "allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
        "y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
        "ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
        "ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
        "graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
        "test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
    },
}

NUM_VALIDATION = 500
"""Number of validation nodes of the public split."""


def read_planetoid(
    name: str, root: Path | None, *, download: bool
) -> tuple[
    Float32[Tensor, "n width"],
    Int64[Tensor, "2 _"],
    Int64[Tensor, " n"],
    dict[str, Bool[Tensor, " n"]],
]:
    """Features, edges in the order of the file, the label of every node, and the public masks.

    Nodes without an entry in the files, of which CiteSeer has some, get zero features and label 0.
    The labelled nodes of the authors are for training, the next 500 for validation.

    Args:
        name: Name of the network, a key of ``CHECKSUMS``.
        root: As for :meth:`fedbolic.data.GraphSet.read`.
        download: As for :meth:`fedbolic.data.GraphSet.read`.

    Raises:
        FileNotFoundError: If a file is missing and may not be downloaded.
        ValueError: If the checksum of a file is wrong, or it holds anything but numbers.
    """
    found = _locate_parts(name, root, download=download)
    test = np.array(read_text(found["test.index"]).split(), dtype=np.int64)
    parts = {
        part: unpickle(read_bytes(path), str(path))
        for part, path in found.items()
        if part != "test.index"
    }
    known = len(parts["ally"])
    order, nodes = np.sort(test), max(int(test.max()) + 1, len(parts["graph"]))
    x, y = (np.zeros((nodes, parts[name].shape[1]), parts[name].dtype) for name in ("allx", "ally"))
    for whole, first, last in ((x, "allx", "tx"), (y, "ally", "ty")):
        whole[:known] = parts[first]
        whole[order] = parts[last]
        whole[test] = whole[order]  # the rows of the test part are in the order of its index file
    ends = [(i, j) for i, others in parts["graph"].items() for j in others]
    edges = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).T
    labelled = len(parts["y"])
    splits = {
        "train_mask": np.arange(labelled),
        "val_mask": np.arange(labelled, min(labelled + NUM_VALIDATION, nodes)),
        "test_mask": order,
    }
    masks = {name: torch.zeros(nodes, dtype=torch.bool) for name in splits}
    for name, chosen in splits.items():
        masks[name][chosen] = True
    return torch.from_numpy(x).float(), edges, torch.from_numpy(y.argmax(1)), masks


def _locate_parts(name: str, root: Path | None, *, download: bool) -> dict[str, Path]:
    found = {}
    for part, checksum in CHECKSUMS[name].items():
        file = f"ind.{name.lower()}.{part}"
        below = f"planetoid/{name}/raw/{file}"
        published = RemoteFile(below, checksum, (f"{MIRROR}/{file}",))
        (found[part],) = locate(published, root=root, download=download)
    return found
