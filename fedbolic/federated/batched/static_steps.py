"""Local steps of many clients on buffers that never move, so that a step can be replayed."""

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedbolic.core import tree
from fedbolic.core.types import Params, Tree
from fedbolic.federated.batched.batch_loader import copy_together, take_rows
from fedbolic.federated.batched.replay import GraphPool, Replay
from fedbolic.federated.batched.stacking import Ended, at_rows, joint_step
from fedbolic.federated.batched.wave import CallForm, PlannedCall, Wave, jagged_leaves, power_of_2
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.gradients import counted_loss
from fedbolic.federated.contract.jagged import Jagged
from fedbolic.nn.functional.clamped import COUNTS
from fedbolic.nn.network.model import Model

GRAPHS = 16
"""Number of forms of calls whose graphs are kept; the least recently used go first."""

WINDOW_NUMBERS, MOST_STEPS = 2**22, 64
"""Positions of examples in the buffer of a plan, and most steps in it."""

BUFFERS = (
    *("state", "context", "plan", "examples", "ascending"),
    *("call", "visits", "steps", "num_active", "rows"),
)
"""Attributes with the tensors of a step."""

Step = Callable[[GradientMethod, Model, Tree, Params, Tree, tuple], Tree]
"""Step of several clients, with the signature of ``stacking.joint_step``."""


class StaticSteps:
    """Buffers of a wave of clients, and its steps, each captured at its second use.

    Buffers have a row for each client that a wave of this form may have; a smaller wave takes the
    first rows. The plan of a few steps lies in buffers at a time. A call reads its place in the
    plan, and if need be its rows, from buffers, too, so that one graph serves all calls of a form.

    Args:
        method: Method whose steps are taken.
        wave: First wave; its values are not loaded yet.
        pool: Stream and memory of captures.
        num_rows: Number of rows, at least that of the wave's clients.
        alone: Whether the wave is a single client that is trained without ``vmap``.
        compiles: Whether steps are compiled before they are captured.
        like: Jagged leaves of a context of the same form whose blocks are too small, if any.
    """

    def __init__(
        self,
        method: GradientMethod,
        wave: Wave,
        pool: GraphPool,
        *,
        num_rows: int,
        alone: bool,
        compiles: bool = False,
        like: Sequence[Jagged] = (),
    ) -> None:
        self.compiles = compiles
        self.method, self.model, self.device = method, wave.tasks[0].model, wave.loader.device
        self.step_of: Step = single_step if alone else joint_step
        self.pool, self.examples = pool, wave.loader.examples
        if not wave.shares_examples:
            self.examples = {n: _rows(x, power_of_2(len(x))) for n, x in self.examples.items()}
        self.num_rows, (context, self.dims) = num_rows, wave.context
        smaller = iter(like)
        self.context = tree.map(
            lambda x, dim: _buffer(x, num_rows if dim == 0 else None, smaller), context, self.dims
        )
        local = tree.map(lambda x: _zeros(x, num_rows, channels_last=alone), wave.tasks[0].local)
        places = {x.device for x in tree.tensors(local).values()}
        if places != {self.device}:
            raise ValueError(f"local values must be on the device {self.device}, got {places}")
        dtype = torch.promote_types(_dtype(local["parameters"]), torch.float32)
        self.state: Tree = {
            "local": local,
            "loss": torch.zeros(num_rows, dtype=dtype, device=self.device),
            "clamped": torch.zeros(num_rows, 2, dtype=torch.int64, device=self.device),
        }
        window = max(1, min(MOST_STEPS, WINDOW_NUMBERS // max(1, num_rows * wave.width)))
        shape = num_rows, window
        self.plan = {name: x.new_zeros((*shape, *x.shape[2:])) for name, x in wave.plan().items()}
        self.ascending = torch.arange(max(window, num_rows), device=self.device)
        # tensors, since a capture would repeat the value of a number for ever
        self.call = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.visits, self.steps = torch.zeros_like(self.ascending), self.ascending.clone()
        self.is_indexed = False
        self.num_active = torch.zeros_like(self.ascending)
        self.rows = self.ascending.new_zeros(len(self.ascending), num_rows)
        self.replays: OrderedDict[CallForm, Replay] = OrderedDict()

    def fits(self, wave: Wave) -> bool:
        """True if the buffers have room for a wave of this form."""
        examples = wave.loader.examples
        leaves = zip(jagged_leaves(self.context), jagged_leaves(wave.context[0]), strict=True)
        return (
            self.num_rows >= wave.capacity
            and all(len(x) <= len(self.examples[name]) for name, x in examples.items())
            and all(own.parts[0].fits(leaf.parts) for own, leaf in leaves if own.block)
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        held = (self.state, self.context, self.plan, {"rows": self.rows})
        return sum(x.nbytes for part in held for x in tree.tensors(part).values())

    def run(self, wave: Wave) -> Ended:
        """Load a wave, take all its steps, and return the values after them."""
        with torch.no_grad():
            self._load(wave)
        for calls in wave.windows(*self.plan["counts"].shape):
            with torch.no_grad():
                self._load_window(wave, calls)
            for call in calls:
                self._take(call.form)
        return self._results(len(wave.tasks))

    def _load(self, wave: Wave) -> None:
        """Copy the inputs of a wave into the buffers."""
        locals_ = [task.local for task in wave.tasks]
        tree.map(_stack_into, self.state["local"], *locals_)
        for counted in (self.state["loss"], self.state["clamped"]):
            counted.zero_()
        if not wave.shares_examples:
            tree.map(_copy, self.examples, wave.loader.examples)
        together: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}

        def copied(to: Any, x: Any) -> None:
            if isinstance(to, Tensor) and to.shape == x.shape and to.dtype == x.dtype:
                together.setdefault(x.dtype, []).append((to, x))  # one launch for all of a dtype
            else:
                _copy(to, x)

        tree.map(copied, self.context, wave.context[0])
        for pairs in together.values():
            targets, values = (list(tensors) for tensors in zip(*pairs, strict=True))
            torch._foreach_copy_(targets, values)  # pyright: ignore[reportPrivateImportUsage]

    def _load_window(self, wave: Wave, calls: Sequence[PlannedCall]) -> None:
        """Copy the plan of a few steps and their calls into the buffers."""
        first, end, num_clients = calls[0].step, calls[-1].step + 1, len(wave.tasks)
        for name, x in wave.plan().items():
            to, x = self.plan[name][:, : end - first], x[:, first:end]
            to[:num_clients].copy_(x)
            if num_clients < len(to):
                to[num_clients:] = 0 if name == "counts" else x[:1]
        self.call.zero_()
        if (repeats := wave.loader.repeats) > 1:
            torch.remainder(self.ascending + first, repeats, out=self.visits)
        by_index = any(call.form.by_index for call in calls)
        if by_index != self.is_indexed:
            self.steps.copy_(self.ascending)
            self.is_indexed = by_index
        if not by_index:
            return
        steps = torch.tensor([call.step - first for call in calls])
        num_active = torch.tensor([len(call.clients) for call in calls])
        rows = torch.stack([_with_others(call.clients, self.rows.shape[1]) for call in calls])
        given = copy_together([steps, num_active, rows], self.device)
        for to, x in zip((self.steps, self.num_active, self.rows), given, strict=True):
            to[: len(calls)] = x

    def _take(self, form: CallForm) -> None:
        """The next call of the window."""
        if form not in self.replays:
            this = weakref.proxy(self)  # or all buffers wait for Python's search for cycles
            compiled = (lambda: this._compiled(form)) if self.compiles else None
            self.replays[form] = Replay(lambda: this._step(form), self.call, self.pool, compiled)
        self.replays.move_to_end(form)
        self.replays[form]()
        while len(self.replays) > GRAPHS:
            self.replays.popitem(last=False)

    def _compiled(self, form: CallForm) -> Callable[[], object]:
        """``_step`` as few kernels."""
        from fedbolic.federated.batched.compiled import compiled  # imports a compiler for seconds

        buffers = {name: getattr(self, name) for name in BUFFERS}
        tensors: list[Tensor] = []
        _mapped(lambda x: tensors.append(x) or x, buffers)

        def step(*given: Tensor) -> None:
            values, other = iter(given), copy.copy(self)
            vars(other).update(_mapped(lambda _: next(values), buffers))
            other._step(form)

        return compiled(step, tensors)

    def _step(self, form: CallForm) -> None:
        """Compute a step of some clients and write it into the buffers."""
        rows: slice | Tensor = slice(form.num_rows)
        step = self.steps.index_select(0, self.call)
        if form.by_index:
            rows = self.rows.index_select(0, self.call)[0, : form.num_rows]
        old = at_rows(self.state, rows)
        given = at_rows(self.context, rows, self.dims)
        plan = {name: _at_step(x, rows, step) for name, x in self.plan.items()}
        positions, counts = plan.pop("positions")[:, : form.width], plan.pop("counts")
        batch = {name: take_rows(x, positions) for name, x in self.examples.items()}
        batch["mask"] = torch.arange(form.width, device=self.device) < counts.unsqueeze(1)
        batch |= plan
        dims: dict[str, int | None] = dict.fromkeys(batch, 0)
        batch["visit"] = self.visits.index_select(0, step).squeeze(0)
        # a step may overwrite its input, which finished clients still need
        own = tree.clone(old) if form.padded else old
        axes = {**dims, "visit": None}, self.dims
        new = self.step_of(self.method, self.model, own, batch, given, axes)
        with torch.no_grad():
            if form.padded:
                active = self._active(form, counts)
                new = tree.map(lambda x, y: torch.where(_lined_up(active, x), x, y), new, old)
            self._write(rows, old, new)
            self.call.add_(1)

    def _active(self, form: CallForm, counts: Tensor) -> Tensor:
        """A mask of the clients that have a batch in this call."""
        if not form.by_index:
            return counts > 0
        return self.ascending[: form.num_rows] < self.num_active.index_select(0, self.call)

    def _write(self, rows: slice | Tensor, old: Tree, new: Tree) -> None:
        """Write a state into the buffers, unless the step did so itself."""
        read = {_place(x) for x in tree.tensors(old).values()}

        def unaliased(to: Tensor, x: Tensor) -> Tensor:
            return x.clone() if _place(x) in read and _place(x) != _place(to) else x

        # a step may hand a buffer on under another name, where its own new value would overwrite it
        new = tree.map(unaliased, old, new)
        if isinstance(rows, Tensor):
            tree.map(lambda to, x: to.index_copy_(0, rows, x.to(to.dtype)), self.state, new)
            return
        pairs: list[tuple[Tensor, Tensor]] = []
        tree.map(lambda to, x: pairs.append((to, x)), old, new)  # by name: the order may differ
        copied = [(to, x) for to, x in pairs if _place(to) != _place(x)]
        if copied:
            targets, values = (list(tensors) for tensors in zip(*copied, strict=True))
            torch._foreach_copy_(targets, values)  # pyright: ignore[reportPrivateImportUsage]

    def _results(self, num_clients: int) -> Ended:
        """Values after the last step, copied out of the buffers."""
        own = tree.map(lambda x: x[:num_clients], self.state)
        copied = tree.map(lambda x: x.clone(memory_format=torch.contiguous_format), own["local"])
        return Ended(copied, own["loss"].clone(), own["clamped"].clone())


def single_step(
    method: GradientMethod, model: Model, state: Tree, batch: Params, context: Tree, dims: tuple
) -> Tree:
    """``stacking.joint_step`` of a single client, without ``vmap``.

    Args:
        method: Method whose step is taken.
        model: Architecture that is trained.
        state: Values that change, with an axis of one client.
        batch: Batch of :meth:`GradientMethod.loss`, with the same axis.
        context: Context of the client, without that axis.
        dims: Client axes of the batch and of the context.
    """
    local = tree.map(lambda x: x[0], state["local"])
    batch = {name: x if dims[0][name] is None else x[0] for name, x in batch.items()}
    parameters = {n: x.detach().requires_grad_() for n, x in local["parameters"].items()}
    losses, buffers = counted_loss(method.loss, model, parameters, local["buffers"], batch, context)
    clamped = state["clamped"] + buffers.pop(COUNTS, 0)
    total = losses.masked_fill(~batch["mask"], 0.0).sum()
    values = list(parameters.values())
    gradients = torch.autograd.grad(total / batch["mask"].sum(), values, materialize_grads=True)
    with torch.no_grad():
        named = method.local.clip(dict(zip(parameters, gradients, strict=True)))
        local = {**local, "buffers": tree.map(Tensor.detach, buffers)}
        local = method.step(local, named, context)
        loss = state["loss"] + total.detach()
        stacked = tree.map(lambda x: x.unsqueeze(0), local)
    return {"local": stacked, "loss": loss, "clamped": clamped}


def _at_step(x: Tensor, rows: slice | Tensor, step: Tensor) -> Tensor:
    """Values of some clients at one step."""
    if isinstance(rows, Tensor):
        return x[rows, step]
    return x[rows].index_select(1, step).squeeze(1)


def _with_others(clients: Tensor, num_rows: int) -> Tensor:
    """Rows of clients, and then all other rows: no row is written twice."""
    others = torch.ones(num_rows, dtype=torch.bool)
    others[clients] = False
    return torch.cat((clients, others.nonzero().flatten()))


def _buffer(x: Any, num_rows: int | None, smaller: Iterator[Jagged]) -> Any:
    """Buffer for a value of a context; a jagged leaf that a step reads becomes one block."""
    if not isinstance(x, Jagged) or not any(x.sizes):
        return _rows(x, num_rows)
    like = next(smaller, None)
    if x.block is None:
        return x
    block = x.block.with_room(x.parts, num_rows or 1, like.parts[0] if like else None)
    return replace(x, parts=(block,), sizes=(1,))


def _mapped(function: Callable[[Tensor], Tensor], buffers: Tree) -> Tree:
    """The buffers with a function of every tensor, also of those in blocks."""

    def of_leaf(x: Any) -> Any:
        if isinstance(x, Jagged) and x.block and any(x.sizes):
            return replace(x, parts=(x.parts[0].mapped(function),))
        return function(x) if isinstance(x, Tensor) else x

    return tree.map(of_leaf, buffers)


def _rows(x: Any, num_rows: int | None) -> Any:
    """Buffer for a value, with another number of rows if one is given."""
    if not isinstance(x, Tensor):
        return x
    return x.clone() if num_rows is None else x.new_zeros((num_rows, *x.shape[1:]))


def _stack_into(to: Tensor, *leaves: Tensor) -> None:
    """Stack the values of all clients into a buffer; a value that all share is read once."""
    to = to[: len(leaves)]
    if all(leaf is leaves[0] for leaf in leaves):
        to.copy_(leaves[0])
    else:
        torch.stack(leaves, out=to)


def _copy(to: Any, x: Any) -> None:
    """Copy a value into the first rows of a buffer."""
    if isinstance(to, Jagged) and to.block and any(to.sizes):
        to.parts[0].load(x.parts)
    if isinstance(to, Tensor):
        (to[: len(x)] if to.shape != x.shape else to).copy_(x)


def _dtype(parameters: Params) -> torch.dtype:
    return next((x.dtype for x in parameters.values() if x.is_floating_point()), torch.float32)


def _zeros(x: Tensor, num_clients: int, *, channels_last: bool) -> Tensor:
    """Buffer for the values of several clients; for a convolution's in the order cuDNN prefers."""
    if channels_last and x.ndim == 4:
        return torch.zeros_like(x, memory_format=torch.channels_last).unsqueeze(0)
    return x.new_zeros((num_clients, *x.shape))


def _place(x: Tensor) -> tuple[int, int]:
    """Storage of a tensor and its first place there, which a compiler knows, too."""
    return x.untyped_storage()._cdata, int(x.storage_offset())


def _lined_up(active: Tensor, x: Tensor) -> Tensor:
    """The mask of clients, with trailing axes to broadcast with ``x``."""
    return active.view(-1, *[1] * (x.ndim - 1))
