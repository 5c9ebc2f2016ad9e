"""Graphs that users keep in files: arrays, or PyG's ``Data``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.data.files import find_given
from fedbolic.data.graph import Graph
from fedbolic.data.graph_sets import GraphSet, labelled_graph
from fedbolic.data.node_roles import MASK_ROLES
from fedbolic.data.saved_tensors import read_saved
from fedbolic.rng import Rng

SUFFIXES = (".npz", ".pt")
"""Endings of files that :class:`GraphFile` reads."""

_FEATURES = ("x", "features", "x_data", "features_data")
_EDGES, _LABELS = ("edge_index", "edges"), ("y", "labels")
_CSR = ("data", "indices", "indptr", "shape")
_KNOWN = {
    *(*_FEATURES, *_EDGES, *_LABELS, *MASK_ROLES),
    *(f"{name}_{part}" for name in ("x", "features") for part in _CSR),
}


@dataclass(frozen=True)
class GraphFile(GraphSet):
    """A graph in a file: arrays (``.npz``), or PyG's ``Data`` (``.pt``).

    No code in a file is ever run. A ``.pt`` file is one that ``torch.save`` wrote of a ``Data`` or
    of ``data.to_dict()``; other attributes than those below must be tensors, numbers or text. A
    ``.npz`` file holds, with one row per node in order:

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
        ValueError: If the path ends in neither ``.npz`` nor ``.pt``.

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
        if Path(self.path).suffix not in SUFFIXES:  # a notebook may give a string
            raise ValueError(
                f"{self.path} is no {' or '.join(SUFFIXES)} file: save arrays with numpy.savez, or "
                "PyG's Data with torch.save"
            )

    @override
    def read(self, rng: Rng, root: Path | None, *, download: bool) -> Graph:
        path = find_given(self.path, root, kind="graph file")
        named = read_saved(path) if path.suffix == ".pt" else _read_arrays(path)
        try:
            return labelled_graph(named)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _read_arrays(path: Path) -> dict[str, Tensor]:
    """Tensors under PyG's names from the arrays of a file."""
    try:
        # opened here because np.load does not close a damaged file
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in _KNOWN if name in file}
    except Exception as error:  # a damaged archive may raise anything
        raise ValueError(
            f"{path} is damaged or not an .npz of plain arrays ({error}): save numbers with "
            "numpy.savez"
        ) from error
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
    found |= {"x": _features(arrays, path), "y": _one(arrays, _LABELS, path), "edge_index": edges}
    return {name: torch.from_numpy(_native(array)) for name, array in found.items()}


def _native(array: np.ndarray) -> np.ndarray:
    """The same numbers in a type and an order that torch computes with."""
    kinds = {"b": np.bool_, "i": np.int64, "u": np.int64}
    wide = np.float32 if array.dtype.itemsize <= 4 else np.float64
    return array.astype(kinds.get(array.dtype.kind, wide), order="C")


def _features(arrays: Mapping[str, np.ndarray], path: Path) -> np.ndarray:
    from scipy.sparse import csr_array  # imported here because SciPy is slow to import

    first = _one(arrays, _FEATURES, path)
    if "x" in arrays or "features" in arrays:
        return first
    name = "x" if "x_data" in arrays else "features"
    parts = [f"{name}_{part}" for part in _CSR]
    if missing := [part for part in parts if part not in arrays]:
        raise ValueError(
            f"{path} lacks {', '.join(missing)}: sparse features need {', '.join(parts)}"
        )
    data, indices, indptr, shape = (arrays[part] for part in parts)
    try:
        matrix = csr_array((data, indices, indptr), shape=tuple(shape.tolist()))
        matrix.check_format(full_check=True)
        return matrix.toarray()
    except Exception as error:  # SciPy raises many kinds for arrays that do not fit together
        raise ValueError(
            f"{path}: {', '.join(parts)} are no sparse matrix ({error}): save the data, indices, "
            "indptr and shape of a scipy.sparse.csr_array"
        ) from error


def _one(arrays: Mapping[str, np.ndarray], names: Sequence[str], path: Path) -> np.ndarray:
    """The array under exactly one of several names."""
    present = [name for name in names if name in arrays]
    if len(present) != 1:
        raise ValueError(
            f"{path} holds {' and '.join(present) or 'none'} of {', '.join(names)}: save exactly "
            "one of them"
        )
    return arrays[present[0]]
