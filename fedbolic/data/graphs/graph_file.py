"""Graphs that users keep in files of arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core.reading import read_arrays
from fedbolic.core.rng import Rng
from fedbolic.data.files.published_files import find_given
from fedbolic.data.graphs.graph import Graph
from fedbolic.data.graphs.graph_sets import GRAPH_TENSORS, GraphSet, labelled_graph
from fedbolic.data.graphs.node_roles import MASK_ROLES
from fedbolic.data.graphs.sparse_rows import CSR_PARTS, native, sparse_rows, sparse_tensor

SUFFIX = ".npz"
"""Ending of files that :class:`GraphFile` reads."""

_FEATURES = ("x", "features", "x_data", "features_data")
_EDGES, _LABELS = ("edge_index", "edges"), ("y", "labels")
_KNOWN = {
    *(*_FEATURES, *_EDGES, *_LABELS, *MASK_ROLES),
    *(f"{name}_{part}" for name in ("x", "features") for part in CSR_PARTS),
}


@dataclass(frozen=True)
class GraphFile(GraphSet):
    """A graph in a ``.npz`` file of arrays, which :func:`save_graph` writes of PyG's ``Data``.

    No code in a file is ever run. It holds, with one row per node in order:

    - features: ``x`` or ``features`` as a matrix, or the arrays ``x_data``, ``x_indices``,
      ``x_indptr`` and ``x_shape`` of a matrix in compressed rows (or ``features_data``, ...);
    - edges: ``edge_index`` of shape (2, edges), or ``edges`` of shape (edges, 2); one direction or
      both, as the graph becomes undirected;
    - labels: ``y`` or ``labels``, integers from 0;
    - optional masks: ``train_mask``, ``val_mask`` and ``test_mask``, one boolean per node.

    Args:
        path: The file. A relative path is looked up in ``root`` if that is given, otherwise in the
            folders of ``FEDBOLIC_DATA`` and then in the working directory.

    Raises:
        ValueError: If the path does not end in ``.npz``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "path.npz"
        ...     np.savez(file, x=np.eye(3), edges=np.array([[0, 1], [1, 2]]), y=np.array([0, 1, 0]))
        ...     graph = GraphFile(file).read(Rng(0), None, download=False)
        >>> len(graph), graph.degrees.tolist()
        (3, [1, 2, 1])
    """

    path: Path

    def __post_init__(self) -> None:
        _refuse_suffix(self.path)

    @override
    def read(self, rng: Rng, root: Path | None, *, download: bool) -> Graph:
        path = find_given(self.path, root, kind="graph file")
        named = _tensors(path)
        try:
            return labelled_graph(named)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def save_graph(data: object, path: Path | str) -> None:
    """Save a graph of PyG as a file that :class:`GraphFile` reads.

    A file that ``torch.save`` wrote is a pickle, and loading one can run any code: convert a file
    that you trust with ``save_graph(torch.load("g.pt", weights_only=False), "g.npz")``.

    Args:
        data: PyG's ``Data``, or a dict of its tensors by name: ``x``, ``edge_index``, ``y``, and
            masks if there are any.
        path: New file that ends in ``.npz``.

    Raises:
        ValueError: If the file ends otherwise, or :func:`labelled_graph` refuses the tensors.

    Example:
        >>> import tempfile
        >>> edges = torch.tensor([[0, 1], [1, 2]])
        >>> tensors = {"x": torch.eye(3), "edge_index": edges, "y": torch.tensor([0, 1, 0])}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_graph(tensors, f"{folder}/path.npz")
        ...     graph = GraphFile(Path(folder) / "path.npz").read(Rng(0), None, download=False)
        >>> graph.degrees.tolist()
        [1, 2, 1]
    """
    _refuse_suffix(path)
    get = data.get if isinstance(data, Mapping) else lambda name: getattr(data, name, None)
    found = {name: value for name in GRAPH_TENSORS if isinstance(value := get(name), Tensor)}
    labelled_graph(found)
    x = found.pop("x").detach().cpu()
    arrays = {name: value.detach().cpu().numpy() for name, value in found.items()}
    if x.layout == torch.strided:
        arrays["x"] = (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    else:
        rows = x.to_sparse_csr()
        named = (rows.values(), rows.col_indices(), rows.crow_indices(), torch.tensor(rows.shape))
        for part, values in zip(CSR_PARTS, named, strict=True):
            arrays[f"x_{part}"] = values.numpy()
    np.savez(path, allow_pickle=False, **arrays)


def _refuse_suffix(path: Path | str) -> None:
    if Path(path).suffix != SUFFIX:  # a notebook may give a string
        raise ValueError(
            f"{path} is no {SUFFIX} file: save arrays with numpy.savez, and PyG's Data with "
            "fedbolic.data.save_graph, which converts a saved one, too"
        )


def _tensors(path: Path) -> dict[str, Tensor]:
    """Tensors under PyG's names from the arrays of a file."""
    arrays = read_arrays(path, _KNOWN)
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{path}: {name} is {array.dtype}: save numbers or booleans")
    edges = _one(arrays, _EDGES, path)
    if "edges" in arrays:
        if edges.ndim != 2 or edges.shape[1] != 2:
            raise ValueError(
                f"{path}: edges must have one row (i, j) per edge, got shape {edges.shape}: save a "
                "(2, edges) array as edge_index"
            )
        edges = edges.T
    found = {name: arrays[name] for name in MASK_ROLES if name in arrays}
    found |= {"y": _one(arrays, _LABELS, path), "edge_index": edges}
    tensors = {name: torch.from_numpy(native(array)) for name, array in found.items()}
    first = _one(arrays, _FEATURES, path)
    if "x" in arrays or "features" in arrays:
        return {"x": torch.from_numpy(native(first)), **tensors}
    rows = sparse_rows(arrays, "x" if "x_data" in arrays else "features", path)
    return {"x": sparse_tensor(rows), **tensors}


def _one(arrays: Mapping[str, np.ndarray], names: Sequence[str], path: Path) -> np.ndarray:
    """The array under exactly one of several names."""
    present = [name for name in names if name in arrays]
    if len(present) != 1:
        raise ValueError(
            f"{path} holds {' and '.join(present) or 'none'} of {', '.join(names)}: save exactly "
            "one of them"
        )
    return arrays[present[0]]
