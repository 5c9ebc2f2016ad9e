"""Independent named random streams derived from one seed."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch

_SHARES_CPU: ContextVar[bool] = ContextVar("shares_cpu", default=False)


@dataclass(frozen=True)
class Rng:
    """A named random stream without a position: every generator starts at its beginning.

    Streams of different names are independent. A stream depends only on the seed and its name, not
    on earlier draws, the engine, or the order of the clients. Therefore a run that is killed and
    resumed draws the same numbers without any saved random state.

    Nothing that it draws is secret, even if the seed is. ``torch.Generator`` keeps the low 32 bits
    of :meth:`number`, so whoever sees some draws of a stream finds the others by trying 2 ** 32
    seeds, in minutes. Among n streams of a run, two are the same with a probability of about
    n ** 2 / 2 ** 33: 1 in 86 for 10,000. Keys, noise and secret cohorts come from
    :class:`~fedbolic.federated.noise.draws.SecretStream`.

    Args:
        seed: Seed of the whole run.
        path: Name of the stream, from the outermost to the innermost part.

    Example:
        >>> rng = Rng(0)
        >>> a = torch.rand(3, generator=rng.at("round", 1, "client", 7).generator())
        >>> b = torch.rand(3, generator=rng.at("round", 1).at("client", 7).generator())
        >>> torch.equal(a, b)
        True
    """

    seed: int = 0
    path: tuple[str | int, ...] = ()

    def at(self, *names: str | int) -> "Rng":
        """The stream named ``names`` below this one."""
        return Rng(self.seed, self.path + names)

    def number(self) -> int:
        """A 63-bit hash of the seed and the name."""
        # repr distinguishes ("a", 1) from ("a1",), and "1" from 1
        digest = hashlib.sha256(repr((self.seed, self.path)).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def generator(self) -> torch.Generator:
        """A new torch generator on the CPU, of 32 bits, at the beginning of the stream."""
        return torch.Generator().manual_seed(self.number())

    @contextlib.contextmanager
    def as_torch_global(self, device: torch.device) -> Iterator[Callable[[], bool]]:
        """Seed torch's global random stream for the block, and restore it at the end.

        Functions such as ``torch.nn.functional.dropout`` draw from the global stream.

        Args:
            device: Device of the stream; the stream of the CPU is seeded and restored, too.

        Yields:
            A function that returns True if anything has been drawn so far.

        Example:
            >>> with Rng(0).as_torch_global(torch.device("cpu")) as drawn:
            ...     before, _ = drawn(), torch.rand(3)
            ...     print(before, drawn())
            False True
        """
        generators = [] if _SHARES_CPU.get() else [torch.default_generator]
        if device.type == "cuda":
            torch.cuda.init()
            index = torch.cuda.current_device() if device.index is None else device.index
            generators.append(torch.cuda.default_generators[index])
        seed = self.number()
        before = [each.get_state() for each in generators]
        try:
            for each in generators:
                each.manual_seed(seed)

            def drawn() -> bool:
                fresh = [each.clone_state().manual_seed(seed).get_state() for each in generators]
                states = [each.get_state() for each in generators]
                return not all(map(torch.equal, states, fresh))

            yield drawn
        finally:
            for each, state in zip(generators, before, strict=True):
                each.set_state(state)

    def numpy(self) -> np.random.Generator:
        """A new NumPy generator, at the beginning of the stream."""
        return np.random.default_rng(self.number())


@contextlib.contextmanager
def sharing_cpu_stream() -> Iterator[None]:
    """Context manager in which ``as_torch_global`` neither seeds nor restores the CPU's stream.

    Threads that each work on a device have one stream of the CPU in common.

    Example:
        >>> before = torch.get_rng_state()
        >>> with sharing_cpu_stream(), Rng(0).as_torch_global(torch.device("cpu")):
        ...     torch.equal(torch.get_rng_state(), before)
        True
    """
    token = _SHARES_CPU.set(True)
    try:
        yield
    finally:
        _SHARES_CPU.reset(token)
