"""Device, threads and precision of a run."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from fedbolic.core import check
from fedbolic.run.configuration import SetupError
from fedbolic.run.reproducible import tf32

DTYPES = {
    "32-true": torch.float32,
    "64-true": torch.float64,
    "bf16-mixed": torch.float32,
    "tf32": torch.float32,
}
"""Floating-point type of data and parameters, by precision."""


def place(settings: dict[str, Any]) -> torch.device:
    """Select the device and set the number of threads given in settings of :func:`run`.

    Args:
        settings: Settings with ``device`` and ``threads``.

    Raises:
        SetupError: If the device is not available, or has no TF32 that is asked for.
        ValueError: If ``threads`` is below 1.
    """
    check.at_least(1, threads=settings["threads"])
    torch.set_num_threads(settings["threads"])
    device, cuda = settings["device"], torch.cuda.is_available()
    if device == "cuda" and not cuda:
        raise SetupError("device is cuda, but torch finds no CUDA device: use --device=cpu")
    if settings.get("precision") == "tf32" and not (cuda and device != "cpu"):
        raise SetupError("precision tf32 is that of a CUDA device: use --precision=32-true")
    return torch.device("cuda", 0) if cuda and device != "cpu" else torch.device("cpu")


@contextlib.contextmanager
def arithmetic(precision: str, device: torch.device) -> Iterator[None]:
    """Context with the precision of Lightning's Fabric, or TF32, but constant memory.

    Autocast caches a cast copy of every weight until its context ends, here at the end of the run,
    and every step creates new weights, so the cache is disabled. A weight that a network uses twice
    is then cast twice and its gradients are added in float32; all other results are identical.

    Args:
        precision: Precision in Lightning's terms, or ``tf32``.
        device: Device to compute on.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[precision])
    mixed = {"enabled": precision == "bf16-mixed", "cache_enabled": False}
    products = tf32() if precision == "tf32" else contextlib.nullcontext()
    try:
        with torch.autocast(device.type, torch.bfloat16, **mixed), products:
            yield
    finally:
        torch.set_default_dtype(before)
