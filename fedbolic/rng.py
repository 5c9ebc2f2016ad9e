"""One seed, many named random streams."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Rng:
    """A random stream with a name; it holds no position, so asking twice gives the same numbers.

    Streams of different names are independent, and a stream depends on nothing but the seed and its
    name: not on what was drawn before, the engine, or the order of the clients. That is why a run
    that is killed and resumed draws the same numbers without any saved random state.

    Args:
        seed: The seed of the whole run.
        path: The name, from the outermost to the innermost part.

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
        """The stream called ``names`` below this one."""
        return Rng(self.seed, self.path + names)

    def number(self) -> int:
        """A 63-bit integer that only this seed and name give."""
        # repr keeps ("a", 1) and ("a1",) apart, and "1" from 1
        digest = hashlib.sha256(repr((self.seed, self.path)).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def generator(self) -> torch.Generator:
        """A fresh torch generator on the CPU, at the beginning of the stream."""
        return torch.Generator().manual_seed(self.number())

    @contextlib.contextmanager
    def as_torch_global(self, device: torch.device) -> Iterator[Callable[[], bool]]:
        """Torch's global random stream within the block: seeded at its begin, restored at its end.

        Networks draw from it by ``torch.nn.functional.dropout`` and the like.

        Args:
            device: Whose stream it is; that of the CPU is seeded and restored, too.

        Yields:
            A function that tells if anything has been drawn so far.

        Example:
            >>> with Rng(0).as_torch_global(torch.device("cpu")) as drawn:
            ...     before, _ = drawn(), torch.rand(3)
            ...     print(before, drawn())
            False True
        """
        cuda = [device] if device.type == "cuda" else []

        def states() -> list[torch.Tensor]:
            return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, cuda)]

        with torch.random.fork_rng(devices=cuda):
            torch.default_generator.manual_seed(self.number())
            for each in cuda:
                with torch.cuda.device(each):
                    torch.cuda.manual_seed(self.number())
            begin = states()
            yield lambda: not all(map(torch.equal, states(), begin))

    def numpy(self) -> np.random.Generator:
        """A fresh numpy generator, at the beginning of the stream."""
        return np.random.default_rng(self.number())
