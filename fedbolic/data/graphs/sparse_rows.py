"""Matrices in compressed rows, given as arrays of a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from scipy.sparse import csr_array

CSR_PARTS = ("data", "indices", "indptr", "shape")
"""Parts of a matrix in compressed rows, which follow its name and ``_``."""

_MOST_COLUMNS = 2**20
"""Maximum number of columns, of which a file of any size may declare any number."""


def sparse_rows(arrays: Mapping[str, np.ndarray], name: str, path: Path) -> "csr_array":
    """The matrix in compressed rows of a name, without repeated entries.

    Args:
        arrays: Arrays of a file by name.
        name: Name of the matrix.
        path: The file, for errors.

    Raises:
        ValueError: If a part is missing, the parts do not fit together, or there are more columns
            than a million.
    """
    from scipy.sparse import csr_array  # imported here because SciPy is slow to import

    parts = [f"{name}_{part}" for part in CSR_PARTS]
    if missing := [part for part in parts if part not in arrays]:
        raise ValueError(
            f"{path} lacks {', '.join(missing)}: sparse features need {', '.join(parts)}"
        )
    data, indices, indptr, shape = (arrays[part] for part in parts)
    try:
        if data.dtype.kind not in "biuf" or shape.shape != (2,) or shape.dtype.kind not in "iu":
            raise ValueError(f"they hold {data.dtype} of the shape {shape}")
        sizes = tuple(map(int, shape))
        if len(indptr) != sizes[0] + 1:
            raise ValueError(f"{len(indptr)} starts for the shape {sizes}")
        if sizes[1] > _MOST_COLUMNS:
            raise ValueError(f"{sizes[1]} columns, but {_MOST_COLUMNS} is the maximum")
        matrix = csr_array((native(data), indices, indptr), shape=sizes)
        matrix.check_format(full_check=True)
        matrix.sum_duplicates()
    except Exception as error:  # SciPy raises many kinds for arrays that do not fit together
        raise ValueError(
            f"{path}: {', '.join(parts)} are no sparse matrix ({error}): save the data, indices, "
            "indptr and shape of a scipy.sparse.csr_array"
        ) from error
    return matrix


def sparse_tensor(matrix: "csr_array") -> Tensor:
    """The matrix as a sparse tensor."""
    entries = matrix.tocoo()
    indices = torch.from_numpy(np.stack(entries.coords).astype(np.int64))
    values = torch.from_numpy(entries.data)
    return torch.sparse_coo_tensor(
        indices, values, matrix.shape, is_coalesced=True, check_invariants=True
    )


def native(array: np.ndarray) -> np.ndarray:
    """The same numbers in a type and an order that torch computes with."""
    kinds = {"b": np.bool_, "i": np.int64, "u": np.int64}
    wide = np.float32 if array.dtype.itemsize <= 4 else np.float64
    return array.astype(kinds.get(array.dtype.kind, wide), order="C")
