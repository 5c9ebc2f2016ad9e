"""Functions on fixed buffers that are captured once and replayed as one launch."""

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

_CAPTURING = threading.Lock()
"""Held during a capture: a process has one at a time."""


class GraphPool:
    """Stream and memory of all captures on one device, whose graphs are replayed one at a time.

    Args:
        device: The device; on other devices than CUDA nothing is captured.

    Example:
        >>> GraphPool(torch.device("cpu")).nbytes
        0
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.nbytes = device, 0
        if device.type == "cuda":
            # the stream that torch would keep is one of the device that captured first
            self._stream = torch.cuda.Stream(device)
            self._handle: Any = torch.cuda.graph_pool_handle()
            empty = torch.zeros(1, device=device)
            # memory whose graphs have all gone cannot be captured in again
            self._kept = self.captured(lambda: empty.add_(0))
            _POOLS.add(self)

    def captured(self, function: Callable[[], object]) -> "torch.cuda.CUDAGraph":
        """A graph of the launches of a function, none of which is run.

        Args:
            function: Function without arguments, whose tensors are on the device.

        Raises:
            RuntimeError: If CUDA cannot capture the function; it waits for the device, say.
        """
        graph, caches = torch.cuda.CUDAGraph(), torch.is_autocast_cache_enabled()
        with _CAPTURING, torch.cuda.device(self.device):
            stream = torch.cuda.current_stream(self.device)
            before = torch.cuda.memory_reserved(self.device)
            # a cached weight in lower precision would be allocated in one graph and read in another
            torch.set_autocast_cache_enabled(False)
            try:
                # thread_local, because threads of other devices allocate and copy in the meantime
                with torch.cuda.graph(
                    graph,
                    pool=self._handle,
                    stream=self._stream,
                    capture_error_mode="thread_local",
                ):
                    function()
            finally:
                torch.set_autocast_cache_enabled(caches)
                torch.cuda.set_stream(stream)  # torch leaves its own after a failure
            self.nbytes += max(0, torch.cuda.memory_reserved(self.device) - before)
        return graph


_POOLS: WeakSet[GraphPool] = WeakSet()
"""Pools of CUDA devices that have not been freed."""


def pooled_bytes(device: torch.device) -> int:
    """Bytes of a device that belong to captured graphs, which no other tensor can take."""
    return sum(pool.nbytes for pool in list(_POOLS) if pool.device == device)


class Replay:
    """A function without arguments and results, replayed as a CUDA graph where that is possible.

    The function reads and writes tensors whose addresses never change, and launches the same
    operations with the same numbers at every call. The first call runs it directly, which also
    lets libraries allocate their workspaces; the second call captures it. On other devices than
    CUDA every call runs it directly.

    Args:
        function: Function that is repeated.
        counter: One of these tensors, which every call changes: it shows that a graph is not empty.
        pool: Stream and memory of the graph.
        compiled: Gives the function by a compiler's kernels, which takes its place from the second
            call on; ``None`` to keep it. The first call has filled caches that a trace would spoil.

    Example:
        >>> x = torch.zeros(1)
        >>> twice = Replay(lambda: x.add_(1), x, GraphPool(x.device))
        >>> twice()
        >>> twice()
        >>> x
        tensor([2.])
    """

    def __init__(
        self,
        function: Callable[[], object],
        counter: Tensor,
        pool: GraphPool,
        compiled: Callable[[], Callable[[], object]] | None = None,
    ) -> None:
        self.function, self.counter, self.pool = function, counter, pool
        self.compiled = compiled
        self.graph: torch.cuda.CUDAGraph | None = None
        self.is_warm = False

    def __call__(self) -> None:
        """Run the function once.

        Raises:
            RuntimeError: If CUDA cannot capture the function, or the graph does nothing.
        """
        if self.is_warm and self.compiled is not None:
            self.function, self.compiled, self.is_warm = self.compiled(), None, False
        if self.pool.device.type != "cuda" or not self.is_warm:
            self.function()
            self.is_warm = True
            return
        if self.graph is not None:
            self.graph.replay()
            return
        self.graph, before = self.pool.captured(self.function), self.counter.clone()
        self.graph.replay()
        if torch.equal(self.counter, before):
            raise RuntimeError("a captured step does nothing: its graph is empty")
