"""Scores of the same clients after every round, replayed as one CUDA graph."""

import weakref
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedbolic.core import tree
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Examples, Split
from fedbolic.federated.aggregators.update import on_host
from fedbolic.federated.batched.replay import GraphPool, Replay
from fedbolic.federated.batched.stacked_scores import (
    SPLITS,
    ClientScores,
    Held,
    Scores,
    unread_stacked_scores,
)
from fedbolic.federated.batched.wave import autocast_dtypes
from fedbolic.federated.contract.engine import MethodKey
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.jagged import Jagged
from fedbolic.federated.scores.metrics import measured
from fedbolic.federated.scores.score import with_numbers


def capture_key(method: GradientMethod, held: Sequence[Held]) -> Hashable | None:
    """Everything but the values of tensors on which the launches of scores depend.

    Args:
        method: Method whose predictions are scored.
        held: Clients to score.

    Returns:
        A key; ``None`` if scores take other work than launches, as those by torchmetrics do.
    """
    if measured():
        return None
    places: dict[int, int] = {}
    form: list[Hashable] = [MethodKey(method), autocast_dtypes()]
    for each in held:
        form += each.client.id, *(_place(each.split(name)) for name in SPLITS)
        for path, leaf in _leaves(each):
            if isinstance(leaf, Tensor):
                place = places.setdefault(id(leaf), len(places))
                form.append((path, place, leaf.dtype, leaf.shape, leaf.stride()))
            elif isinstance(leaf, Jagged):
                form.append((path, *map(id, leaf.parts)))
            elif isinstance(leaf, bool | int | float | str):
                form.append((path, type(leaf), leaf))
            else:
                return None
    return tuple(form)


class CapturedScores:
    """Scores of some clients by a graph, which reads models from buffers.

    Args:
        method: Method whose predictions are scored.
        held: The clients; at later calls others of the same :func:`capture_key`.
        pool: Stream and memory of the graph.
    """

    def __init__(self, method: GradientMethod, held: Sequence[Held], pool: GraphPool) -> None:
        buffers = {id(x): x.clone() for x in _distinct(held)}

        def own(values: Tree) -> Tree:
            return tree.map_tensors(lambda x: buffers[id(x)], values)

        self.method, self.buffers = method, [*buffers.values()]
        self.held = [Held(each.client, own(each.local), own(each.context)) for each in held]
        self.kept: dict[Hashable, Any] = {}
        self.found: ClientScores = {}
        self.numbers: Tensor | None = None
        self.counter = torch.zeros(1, dtype=torch.int64, device=pool.device)
        this = weakref.proxy(self)  # or all buffers wait for Python's search for cycles
        self.replay = Replay(lambda: this._compute(), self.counter, pool)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(x.nbytes for x in self.buffers)

    def __call__(self, held: Sequence[Held]) -> Scores:
        """The scores of :func:`~fedbolic.federated.batched.stacked_scores.stacked_scores`."""
        if self.buffers:
            torch._foreach_copy_(self.buffers, _distinct(held))  # pyright: ignore[reportPrivateImportUsage]
        self.replay()
        numbers = [] if self.numbers is None else on_host([self.numbers])[0].tolist()
        return dict(zip(self.found, with_numbers([*self.found.values()], numbers), strict=True))

    def _compute(self) -> None:
        """Write all scores into one tensor."""
        found = unread_stacked_scores(self.method, self.held, kept=self.kept)
        there = [x for scores in found.values() for x in scores.values() if isinstance(x, Tensor)]
        if there and self.numbers is None:
            self.numbers = torch.stack(there)
        elif self.numbers is not None:
            self.numbers.copy_(torch.stack(there))
        self.found = self.found or found
        self.counter.add_(1)


def _leaves(each: Held) -> list[tuple[str, Any]]:
    return [leaf for part in (each.local, each.context) for leaf in tree.leaves(part)]


def _distinct(held: Sequence[Held]) -> list[Tensor]:
    """The tensors of all clients, each once, in the order of their first client."""
    every = (x for each in held for _, x in _leaves(each) if isinstance(x, Tensor))
    return [*{id(x): x for x in every}.values()]


def _place(split: Split) -> Hashable:
    """Address of the examples of a split, or its identity."""
    if not isinstance(split, Examples):
        return id(split)
    return tuple(
        (name, x.data_ptr(), x.dtype, x.shape, x.stride()) for name, x in split.tensors.items()
    )
