"""Functions on fixed buffers that are captured once and replayed as one launch."""

from collections.abc import Callable
from typing import Any

import torch


class Replay:
    """A function without arguments and results, replayed as a CUDA graph where that is possible.

    The function reads and writes tensors whose addresses never change, and launches the same
    operations with the same numbers at every call. The first call runs it directly, which also
    lets libraries allocate their workspaces; the second call captures it. On other devices than
    CUDA every call runs it directly.

    Args:
        function: Function that is repeated.
        device: Device of its tensors.
        pool: Memory pool of the graph, from :func:`graph_pool`; graphs that are never replayed at
            the same time may share one.

    Example:
        >>> x = torch.zeros(())
        >>> twice = Replay(lambda: x.add_(1), x.device, None)
        >>> twice()
        >>> twice()
        >>> x
        tensor(2.)
    """

    def __init__(self, function: Callable[[], object], device: torch.device, pool: Any) -> None:
        self.function, self.device, self.pool = function, device, pool
        self.graph: torch.cuda.CUDAGraph | None = None
        self.is_warm = False

    def __call__(self) -> None:
        """Run the function once.

        Raises:
            RuntimeError: If CUDA cannot capture the function; it waits for the device, say.
        """
        if self.device.type != "cuda" or not self.is_warm:
            self.function()
            self.is_warm = True
            return
        if self.graph is None:
            self.graph = self._captured()  # records the launches and runs none of them
        self.graph.replay()

    def _captured(self) -> torch.cuda.CUDAGraph:
        graph, caches = torch.cuda.CUDAGraph(), torch.is_autocast_cache_enabled()
        # a cached weight in lower precision would be allocated in one graph and read in another
        torch.set_autocast_cache_enabled(False)
        try:
            # thread_local, because threads of other devices allocate and copy in the meantime
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                self.function()
        finally:
            torch.set_autocast_cache_enabled(caches)
        return graph


def graph_pool(device: torch.device) -> Any:
    """Handle of a new memory pool for graphs on ``device``; ``None`` if it is no CUDA device."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None
