"""Settings that a thread inherits from the thread that starts it."""

import contextlib
import contextvars
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Found = TypeVar("Found")


def for_device_thread(device: torch.device, work: Callable[..., Found]) -> Callable[..., Found]:
    """The function for a thread that works on ``device``, with the settings of this thread.

    Torch keeps the current device, autocast and the mode of gradients for each thread.

    Args:
        device: Device that the thread uses.
        work: Function that is called in the thread.

    Example:
        >>> with torch.no_grad():
        ...     work = for_device_thread(torch.device("cpu"), torch.is_grad_enabled)
        >>> work()
        False
    """
    context, grad, kind = contextvars.copy_context(), torch.is_grad_enabled(), device.type
    mixed = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if mixed else None
    caches = torch.is_autocast_cache_enabled()

    def called(*given: Any) -> Found:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(grad))
            if kind == "cuda":
                stack.enter_context(torch.cuda.device(device))
            if mixed:
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=caches))
            return context.run(work, *given)

    return called
