"""Bit-reproducible arithmetic: PyTorch's flags for it, and the versions and machine of a run.

This is the only place where these flags are set.
"""

import contextlib
import os
import platform
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch.backends import cudnn

from fedbolic import kernels

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""Environment variable that makes cuBLAS sum in the same order in every call."""

_PACKAGES = ("fedbolic", "torch", "numpy", "lightning", "jsonargparse")


@contextlib.contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """Context in which operations on a CUDA device give bit-identical results every time.

    Deterministic algorithms are used where PyTorch has them; an operation without one gives a
    warning instead of an error. cuDNN does not select algorithms by timing them. Matrix products
    and convolutions use the 24-bit significand of single precision, not the 11 bits of TF32. On a
    CPU, nothing is set.

    Args:
        device: Device that the block computes on.
    """
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault(WORKSPACE, ":4096:8")
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32),
        torch.get_float32_matmul_precision(),
    )
    _set(True, True, False, (True, False, False), "highest")  # filling memory only costs time
    try:
        yield
    finally:
        _set(*before)


@contextlib.contextmanager
def tf32() -> Iterator[None]:
    """Context in which a CUDA device may round the factors of float32 products to TF32.

    That is 11 bits in place of 24, or 10 where a device cuts bits off. A sum of products, as in a
    matrix product or a convolution, is then wrong by up to 2^-9 of the sum of their absolute
    values, in place of about 2^-24 for each. All else, also every sum, stays float32.
    """
    before = cudnn.allow_tf32, torch.get_float32_matmul_precision()
    cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        cudnn.allow_tf32 = before[0]
        torch.set_float32_matmul_precision(before[1])


def arithmetic_of(device: torch.device) -> dict[str, Any]:
    """Describe a device for ``environment.json``, a GPU with its name and the current flags.

    Args:
        device: Device that the run computes on.
    """
    if device.type != "cuda":
        return {"device": device.type}
    flags = {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": cudnn.deterministic,
        "cudnn_benchmark": cudnn.benchmark,
        "cudnn_tf32": cudnn.allow_tf32,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "cublas_workspace": os.environ.get(WORKSPACE),
        "cudnn": cudnn.version(),
        "kernels": kernels.are_on(),
    }
    return {"device": "cuda", "gpu": torch.cuda.get_device_name(device), "cuda_flags": flags}


def _set(
    deterministic: bool, warn_only: bool, fill: bool, of_cudnn: tuple[bool, ...], matmul: str
) -> None:
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = of_cudnn
    torch.set_float32_matmul_precision(matmul)


def environment(**settings: Any) -> dict[str, Any]:
    """Versions and machine of this process, and ``settings`` that a resumed run must repeat."""
    return {
        **settings,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        "commit": _commit(),
    }


def _commit() -> str | None:
    """Commit of this code; ``None`` if it is not run from a checkout, or there is no git."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
