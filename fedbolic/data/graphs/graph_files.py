"""Federated node classification where every client holds a graph from a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core.check import one_of
from fedbolic.core.rng import Rng
from fedbolic.data.contract.client import HOLDOUT, Client, FederatedData, Meta
from fedbolic.data.contract.source import Source
from fedbolic.data.files.published_files import search_path
from fedbolic.data.graphs.graph import Graph, GraphSplit
from fedbolic.data.graphs.graph_file import SUFFIX, GraphFile
from fedbolic.data.graphs.graphs import Scale, scaled
from fedbolic.data.graphs.node_roles import (
    TEST,
    TRAIN,
    NodeSplit,
    check_split,
    masked_roles,
    node_splits,
    random_roles,
)
from fedbolic.data.graphs.whole_graphs import check_widths, unite_graphs


@dataclass(frozen=True)
class GraphFiles(Source):
    """Node classification on several graphs, one file and one whole graph per client.

    Features mean the same in every file, and so do labels; a client may lack classes. The server's
    own test set is the disjoint union of the graphs with the test nodes of all of them.

    Args:
        paths: Files as for :class:`GraphFile`, client 0 first; at least one. A folder stands for
            its ``.npz`` files in alphabetical order.
        train_rate: Fraction of the nodes of each graph used for training, in (0, 1); for a random
            split.
        test_rate: Fraction of the nodes of each graph used for testing, in [0, 1); the rest is for
            validation.
        scale: Scaling of the features of every graph by itself, as in :class:`Graphs`.
        root: Folder of relative paths; by default, the folder named by the environment variable
            FEDBOLIC_DATA, then the working directory.
        split: ``random`` to draw the nodes of the splits by the rates; ``masks`` to use the
            ``train_mask``, ``val_mask`` and ``test_mask`` of every file. Nodes in no mask are
            context.

    Raises:
        ValueError: If ``paths`` is no list or is empty, a rate is out of range, or the rates sum to
            more than 1.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> arrays = {"x": np.eye(5), "edges": np.array([[0, 1], [3, 4]]), "y": np.arange(5) % 2}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for city in ("bath", "york"):
        ...         np.savez(Path(folder) / f"{city}.npz", **arrays)
        ...     data = GraphFiles([Path(folder)]).load(Rng(0))
        >>> data.meta.num_clients, data.sizes, len(data.holdout.test)
        (2, (1, 1), 4)
    """

    paths: Sequence[Path]
    train_rate: float = 0.2
    test_rate: float = 0.4
    scale: Scale = "l1"
    root: Path | None = None
    split: NodeSplit = "random"

    def __post_init__(self) -> None:
        if not self.paths:
            raise ValueError("paths is empty: name at least one file or folder of graphs")
        if isinstance(self.paths, str | Path):
            raise ValueError(f"paths is one path: give a list, such as [{str(self.paths)!r}]")
        one_of(get_args(Scale), scale=self.scale)
        check_split(self.split, train_rate=self.train_rate, test_rate=self.test_rate)

    @override
    def load(self, rng: Rng) -> FederatedData:
        files = [GraphFile(path) for path in self._files()]
        found = [file.read(rng.at("graph"), self.root, download=False) for file in files]
        check_widths([file.path for file in files], found, "all graphs need the same features")
        roles = [
            self._roles(graph, file.path, rng.at("split", client_id))
            for client_id, (graph, file) in enumerate(zip(found, files, strict=True))
        ]
        graphs = [Graph(scaled(g.features, self.scale), g.edges, g.labels) for g in found]
        meta = Meta(
            num_classes=max(int(graph.labels.max()) for graph in graphs) + 1,
            input_shape=tuple(graphs[0].features.shape[1:]),
            num_clients=len(graphs),
        )
        clients = tuple(
            Client(client_id, *node_splits(graph, of_graph), meta=meta)
            for client_id, (graph, of_graph) in enumerate(zip(graphs, roles, strict=True))
        )
        return FederatedData(clients, meta, _holdout(graphs, torch.cat(roles), meta))

    def _files(self) -> list[Path]:
        """The files in order, with the files of a folder in its place."""
        found = []
        bases = search_path(self.root) if self.root else (*search_path(None), Path())
        for path in self.paths:
            folder = next((base / path for base in bases if (base / path).is_dir()), None)
            found += [path] if folder is None else _inside(folder)
        return found

    def _roles(self, graph: Graph, path: Path, rng: Rng) -> Tensor:
        if self.split == "masks":
            roles = masked_roles(graph, str(path))
        else:
            roles = random_roles(
                len(graph), rng, train_rate=self.train_rate, test_rate=self.test_rate
            )
        if not bool((roles == TRAIN).any()):
            raise ValueError(
                f"{path} has {len(graph)} nodes but no training node: leave it out, mark some in "
                "train_mask or use a larger train_rate"
            )
        return roles


def _inside(folder: Path) -> list[Path]:
    """The files of a folder in alphabetical order."""
    files = [file.absolute() for file in sorted(folder.iterdir())]
    inside = [file for file in files if file.suffix == SUFFIX]
    saved = [f for f in files if f.suffix == ".pt" and f.with_suffix(SUFFIX) not in inside]
    if saved:
        raise ValueError(
            f"{saved[0]} is a pickle, which is not read: convert it with fedbolic.data.save_graph, "
            "or move it away"
        )
    if not inside:
        raise FileNotFoundError(
            f"the folder {folder} holds no {SUFFIX} file: place one graph per client there"
        )
    return inside


def _holdout(graphs: Sequence[Graph], roles: Tensor, meta: Meta) -> Client | None:
    nodes = (roles == TEST).nonzero().flatten()
    if not len(nodes):
        return None
    union = unite_graphs(graphs)
    whole = Graph(union.features, union.edges, union.labels)  # one graph, whose nodes are examples
    empty = GraphSplit(whole, torch.arange(0))
    return Client(HOLDOUT, empty, empty, GraphSplit(whole, nodes), meta)
