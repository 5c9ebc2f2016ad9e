"""Distances and maps of points, row by row, by the kernels for CUDA, and their derivatives."""

import torch
from torch import Tensor

from fedbolic import kernels
from fedbolic.formulas.registrar import takes_kernels


def has_row_kernel(*points: Tensor) -> bool:
    """True if distances and maps of rows are computed by kernels, also under ``vmap``."""
    dtype, *others = {x.dtype for x in points}
    equal = not others and len({x.shape[-1] for x in points}) == 1
    full = equal and dtype in (torch.float32, torch.float64)
    return full and takes_kernels() and kernels.replace_operators(*points)
