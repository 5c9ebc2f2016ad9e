"""A group of torch.distributed for wrappers of layers."""

from contextlib import contextmanager

from torch import distributed

ENDED = []
"""Groups whose threads end with the process: to join them, torch holds the lock of Python's
interpreter, for which they may wait to let tensors go."""


@contextmanager
def group():
    """A group of this process alone; the present one if there is one."""
    if distributed.is_initialized():
        yield
        return
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    ENDED.append(distributed.group.WORLD)
    try:
        yield
    finally:
        distributed.destroy_process_group()
