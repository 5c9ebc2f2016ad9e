"""Triton kernels of the geometry, the only files that import triton.

A kernel replaces operators of torch for tensors on a CUDA device, if triton is installed (it comes
with torch for CUDA). Elsewhere the operators run, and triton is never imported.
"""

import functools
from importlib.util import find_spec

from torch import Tensor

MOST_DIMENSIONS = 256
"""Largest number of coordinates of a point: its gradient is held in registers."""


def replace_operators(*tensors: Tensor) -> bool:
    """True if kernels run in place of torch's operators on these points.

    Args:
        *tensors: Points along the last axis, in float32 or float64.
    """
    return all(run_on(x) and x.shape[-1] <= MOST_DIMENSIONS for x in tensors)


def run_on(x: Tensor) -> bool:
    """True if the device of a tensor runs kernels, and triton is installed."""
    return x.is_cuda and _is_installed()


@functools.cache
def _is_installed() -> bool:
    return find_spec("triton") is not None
