"""Seeds of forward passes that activation checkpointing computes again in the backward pass."""

import inspect
import sys
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import _autograd
from torch._compile import _disable_dynamo
from torch.utils import checkpoint


def seed_of_pass(layer: nn.Module, draw: Callable[[], Tensor]) -> Tensor:
    """Seed of a layer in a forward pass; in one that is computed again, the seed of the first.

    Torch's checkpoints restore the global random stream before a segment of a network is computed
    again, but not the state of its modules. They offer no sign of it either, so the segments that
    are being computed are found on the stack.

    Args:
        layer: Layer that is called.
        draw: Function that returns the layer's next seed.

    Raises:
        RuntimeError: If the pass takes place within a backward pass and the first one is unknown,
            as with a checkpoint that is not torch's.
    """
    if not _may_be_in_segment():
        return draw()
    return (_uncompiled if torch.compiler.is_compiling() else _recorded)(layer, draw)


def _recorded(layer: nn.Module, draw: Callable[[], Tensor]) -> Tensor:
    """The seed, known to the segments that are entered for the first time."""
    entered: list[object] = []
    for segment, backward in _segments():
        if backward is not None:
            seed = _SEEDS[segment].again(layer, backward) if segment in _SEEDS else None
            break
        entered.append(segment)
    else:
        seed = draw() if torch._C._current_graph_task_id() == NO_BACKWARD else None
    if seed is None:
        raise RuntimeError(
            f"{type(layer).__name__} was called in training within a backward pass, and its mask "
            "in the forward pass is unknown: use torch.utils.checkpoint for activation "
            "checkpointing, or set the layer to evaluation"
        )
    for segment in entered:
        _SEEDS.setdefault(segment, _Seeds()).first[layer].append(seed)
    return seed


def keep_activations(kept: bool) -> bool:
    """Switch hooks on saved tensors off or on in this thread, and return the former position.

    Without them, activation checkpoints with ``use_reentrant=False`` compute nothing again. A
    module that holds its values only during a call needs this: it would compute with others.
    """
    return _autograd._saved_tensors_hooks_set_tracing(kept)


_uncompiled = _disable_dynamo(_recorded)  # compiled code cannot walk on the stack

NO_BACKWARD = -1
"""Torch's number of a backward pass where there is none."""


# torch 2.4 does not tell: then the stack is always walked
_top_hooks = getattr(_autograd, "_top_saved_tensors_default_hooks", lambda _: True)


def _may_be_in_segment() -> bool:
    """False if no checkpoint is active; the test is fast, and the walk on the stack is not."""
    return (
        not torch.is_grad_enabled()  # as in the first pass of a reentrant segment
        or _top_hooks(False) is not None
        or torch._C._current_graph_task_id() != NO_BACKWARD
    )


# as torch.compiler.assume_constant_result, which takes seconds to import
_may_be_in_segment._dynamo_marked_constant = True  # type: ignore[attr-defined]


class _Seeds:
    """Seeds in the first pass through a segment, by layer, and the number that was used again."""

    def __init__(self) -> None:
        self.first: dict[nn.Module, list[Tensor]] = defaultdict(list)
        self.used: Counter[nn.Module] = Counter()
        self.backward: Hashable = None

    def again(self, layer: nn.Module, backward: Hashable) -> Tensor | None:
        """The next seed of a layer in this backward pass; ``None`` if there was none."""
        if backward != self.backward:
            self.backward, self.used = backward, Counter()
        place = self.used[layer]
        self.used[layer] += 1
        return self.first[layer][place] if place < len(self.first[layer]) else None


_SEEDS: weakref.WeakKeyDictionary[object, _Seeds] = weakref.WeakKeyDictionary()
"""Seeds of segments, which live as long as the graph of their first pass."""


class _Segment(NamedTuple):
    """A segment that is being computed.

    Args:
        key: Torch's object that lives as long as the graph of the segment.
        backward: Name of the backward pass in which it is computed again; ``None`` at first.
    """

    key: object
    backward: Hashable | None


def _segments() -> Iterator[_Segment]:
    """Segments that are being computed, from the innermost to the outermost."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code in _PLACES:
            yield from _PLACES[frame.f_code](frame.f_locals)
        frame = frame.f_back


def _kept(names: Mapping[str, Any]) -> Iterator[_Segment]:
    if "gen" in names:  # else the segment is reentrant
        yield _Segment(names["gen"].gi_frame.f_locals["new_frame"], None)


def _nested_code(function: Callable[..., Any], name: str) -> CodeType:
    constants = function.__code__.co_consts
    return next(x for x in constants if inspect.iscode(x) and x.co_name == name)


_PLACES: dict[CodeType, Callable[[Mapping[str, Any]], Iterator[_Segment]]] = {
    # since torch 2.14 a checkpoint computes its first pass in a function of its own
    getattr(checkpoint, "_checkpoint_impl", inspect.unwrap(checkpoint.checkpoint)).__code__: _kept,
    _nested_code(checkpoint._checkpoint_hook.__init__, "unpack_hook"): lambda names: iter(
        [_Segment(names["frame"], names["gid"])]
    ),
    checkpoint.CheckpointFunction.forward.__code__: lambda names: iter(
        [_Segment(names["ctx"], None)]
    ),
    checkpoint.CheckpointFunction.backward.__code__: lambda names: iter(
        [_Segment(names["ctx"], torch._C._current_graph_task_id())]
    ),
}
"""Functions of torch that compute a segment, and its object among their local variables."""
