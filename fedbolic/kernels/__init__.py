"""Triton kernels of the geometry, the only files that import triton.

A kernel replaces operators of torch for tensors on a CUDA device, if triton is installed (it comes
with torch for CUDA) and a first kernel runs, for which triton needs a C compiler. Elsewhere the
operators run, and triton is never imported. The environment variable ``FEDBOLIC_KERNELS=0`` turns
all kernels off, to compare them with the operators or to rule them out as the cause of a failure.
"""

import functools
import logging
import os
from importlib.util import find_spec

import torch
from torch import Tensor

SWITCH = "FEDBOLIC_KERNELS"
"""Environment variable that turns kernels on (1, the default) or off (0)."""

MOST_DIMENSIONS = 256
"""Largest number of coordinates of a point: its gradient is held in registers."""


def replace_operators(*tensors: Tensor) -> bool:
    """True if kernels run in place of torch's operators on these points.

    Args:
        *tensors: Points along the last axis, in float32 or float64.
    """
    return all(run_on(x) and x.shape[-1] <= MOST_DIMENSIONS for x in tensors)


def run_on(x: Tensor) -> bool:
    """True if kernels are on, and the device of a tensor runs them."""
    return x.is_cuda and are_on()


@functools.cache
def are_on() -> bool:
    """True if kernels are not turned off, triton is installed, and it runs a kernel on the device.

    Raises:
        ValueError: If ``FEDBOLIC_KERNELS`` is neither 0 nor 1.
    """
    value = os.environ.get(SWITCH, "1")
    if value not in ("0", "1"):
        raise ValueError(f"{SWITCH} must be 0 (torch's operators) or 1 (kernels), got {value!r}")
    return value == "1" and find_spec("triton") is not None and _is_launched()


def _is_launched() -> bool:
    """True if a kernel gives the right result on the current device; logs why not."""
    if not torch.cuda.is_available():  # no tensor asks for kernels
        return True
    try:
        from fedbolic.kernels.dropout import masked

        seed = torch.zeros((), dtype=torch.int64, device="cuda")
        found = masked(torch.ones(3, device="cuda"), seed, least=0, factor=2.0).tolist()
        if found != [2.0] * 3:
            raise ArithmeticError(f"a kernel gave {found}")
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        text = "no kernel runs, and torch's operators take their place: %s"
        logging.getLogger("fedbolic").warning(text, reason, extra={"is_fallback": True})
        return False
    return True
