"""Local steps of many clients on buffers that never move, so that a step can be replayed."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbolic.core import tree
from fedbolic.core.types import Params, Tree
from fedbolic.federated.batched.batch_loader import (
    BatchLoader,
    Call,
    plan_calls,
    take_rows,
)
from fedbolic.federated.batched.client_task import ClientTask, tree_form
from fedbolic.federated.batched.replay import Replay, graph_pool
from fedbolic.federated.batched.stacking import (
    Ended,
    at_rows,
    joined,
    joint_step,
)
from fedbolic.federated.contract.gradient_method import GradientMethod, counted_loss
from fedbolic.federated.contract.jagged import Jagged
from fedbolic.nn.functional.clamped import COUNTS
from fedbolic.nn.network.model import Model

Step = Callable[[GradientMethod, Model, Tree, Params, Tree, tuple], Tree]
"""Step of several clients, with the signature of ``stacking.joint_step``."""


@dataclass(frozen=True, eq=False)
class Wave:
    """Clients that are trained at the same time.

    Args:
        tasks: Their tasks, of equal form and in descending order of the number of steps.
        loader: Batches of these and possibly of further clients.
        begin: Row of the first task in ``loader``.
    """

    tasks: Sequence[ClientTask]
    loader: BatchLoader
    begin: int

    @property
    def rows(self) -> slice:
        """Rows of the tasks in the loader."""
        return slice(self.begin, self.begin + len(self.tasks))

    @property
    def num_steps(self) -> int:
        """Number of steps of the first client."""
        return len(self.tasks[0].plan.lengths)

    @property
    def capacity(self) -> int:
        """Number of steps for which buffers are allocated: a power of 2, to be used again."""
        return 1 << max(0, self.num_steps - 1).bit_length()

    @property
    def shares_examples(self) -> bool:
        """True if the examples stay at one address, because the loader did not copy them."""
        return all(
            x.untyped_storage().data_ptr() == self.loader.examples[name].data_ptr()
            for name, x in self.tasks[0].examples.all().items()
        )

    def form(self) -> Hashable:
        """Hashable form; buffers and captured steps serve all waves of equal form."""
        first, loader = self.tasks[0], self.loader
        context, dims = _context(self)
        at = Tensor.data_ptr if self.shares_examples else lambda x: None
        return (
            first.form,
            tree_form(dims),
            # jagged parts are not copied into buffers: a captured step reads them where they lie
            tuple(id(part) for part in _parts(context)),
            tuple((n, at(x), x.shape) for n, x in loader.examples.items()),
            (len(self.tasks), self.capacity, loader.positions.shape[2]),
            (_autocast(), loader.most_padding),
        )


class StaticSteps:
    """Buffers of a wave of clients, and its steps, each captured at its second use.

    Args:
        method: Method whose steps are taken.
        wave: First wave; its values are not loaded yet.
        alone: Whether the wave is a single client that is trained without ``vmap``.
    """

    def __init__(self, method: GradientMethod, wave: Wave, *, alone: bool) -> None:
        self.method, self.model, self.device = method, wave.tasks[0].model, wave.loader.device
        self.step_of: Step = single_step if alone else joint_step
        self.pool, self.examples = graph_pool(self.device), wave.loader.examples
        if not wave.shares_examples:
            self.examples = tree.clone(self.examples)
        num_clients, (self.context, self.dims) = len(wave.tasks), _context(wave)
        self.context = tree.map(lambda x: x.clone() if isinstance(x, Tensor) else x, self.context)
        local = tree.map(lambda x: _empty(x, num_clients, channels_last=alone), wave.tasks[0].local)
        places = {x.device for x in tree.tensors(local).values()}
        if places != {self.device}:
            raise ValueError(f"local values must be on the device {self.device}, got {places}")
        dtype = torch.promote_types(_dtype(local["parameters"]), torch.float32)
        self.state: Tree = {
            "local": local,
            "loss": torch.zeros(num_clients, dtype=dtype, device=self.device),
            "clamped": torch.zeros(num_clients, 2, dtype=torch.int64, device=self.device),
        }
        shape = num_clients, wave.capacity
        self.plan = {name: x.new_zeros((*shape, *x.shape[2:])) for name, x in _plan(wave).items()}
        # a tensor, since a capture would repeat the value of a number for ever
        self.step = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.visits = torch.arange(wave.loader.repeats, device=self.device)
        self.row_counts = row_counts(num_clients)
        self.replays: dict[Hashable, Replay] = {}

    def run(self, wave: Wave) -> Ended:
        """Load a wave, take all its steps, and return the values after them."""
        with torch.no_grad():
            self._load(wave)
        lengths = wave.loader.lengths[wave.rows, : wave.num_steps]
        mixes = self.model.mixes_examples
        for calls in plan_calls(lengths, wave.loader.most_padding):
            for i, call in enumerate(calls):
                width = call[0] if mixes or len(calls) > 1 else self.plan["positions"].shape[2]
                self._take(call, width, joint=len(calls) == 1, last=i == len(calls) - 1)
        return self._results()

    def _load(self, wave: Wave) -> None:
        """Copy the inputs of a wave into the buffers."""
        locals_ = [task.local for task in wave.tasks]
        tree.map(_stack_into, self.state["local"], *locals_)
        for counted in (self.state["loss"], self.state["clamped"], self.step):
            counted.zero_()
        if not wave.shares_examples:
            tree.map(_copy, self.examples, wave.loader.examples)
        context, _ = _context(wave)
        tree.map(_copy, self.context, context)
        for name, x in _plan(wave).items():
            self.plan[name][:, : wave.num_steps].copy_(x)

    def _take(self, call: Call, width: int, *, joint: bool, last: bool) -> None:
        """One call of a step: a prefix of the clients, or any of them by index."""
        _, clients = call
        rows: slice | Tensor = clients
        # all that a launch depends on besides the contents of the buffers
        key: Hashable = (tuple(clients.tolist()), width, last)
        padded = False
        if joint:
            num_rows = min(n for n in self.row_counts if n >= len(clients))
            rows, padded = slice(num_rows), num_rows > len(clients)
            key = (num_rows, padded, width, last)
        if key not in self.replays:
            there = rows if isinstance(rows, slice) else rows.to(self.device)

            def step() -> None:
                self._step(there, width, padded=padded)
                if last:  # the calls of one step read the same place in the plan
                    self.step.add_(1)

            self.replays[key] = Replay(step, self.device, self.pool)
        self.replays[key]()

    def _step(self, rows: slice | Tensor, width: int, *, padded: bool) -> None:
        """Compute a step of some clients and write it into the buffers.

        Args:
            rows: Rows of the clients.
            width: Length to which their batches are padded.
            padded: Whether some of the clients have taken their last step before.
        """
        old = at_rows(self.state, rows)
        given = at_rows(self.context, rows, self.dims)
        plan = {
            name: x[rows].index_select(1, self.step).squeeze(1) for name, x in self.plan.items()
        }
        positions, counts = plan.pop("positions")[:, :width], plan.pop("counts")
        batch = {name: take_rows(x, positions) for name, x in self.examples.items()}
        batch["mask"] = torch.arange(width, device=self.device) < counts.unsqueeze(1)
        batch |= plan
        dims: dict[str, int | None] = dict.fromkeys(batch, 0)
        batch["visit"] = self.visits.index_select(0, self.step % len(self.visits)).squeeze(0)
        # a step may overwrite its input, which finished clients still need
        own = tree.clone(old) if padded else old
        axes = {**dims, "visit": None}, self.dims
        new = self.step_of(self.method, self.model, own, batch, given, axes)
        with torch.no_grad():
            if padded:
                active = counts > 0
                new = tree.map(lambda x, y: torch.where(_lined_up(active, x), x, y), new, old)
            self._write(rows, old, new)

    def _write(self, rows: slice | Tensor, old: Tree, new: Tree) -> None:
        """Write a state into the buffers, unless the step did so itself."""
        read = {x.data_ptr() for x in tree.tensors(old).values()}

        def unaliased(to: Tensor, x: Tensor) -> Tensor:
            return x.clone() if x.data_ptr() in read and x.data_ptr() != to.data_ptr() else x

        # a step may hand a buffer on under another name, where its own new value would overwrite it
        new = tree.map(unaliased, old, new)
        if isinstance(rows, Tensor):
            tree.map(lambda to, x: to.index_copy_(0, rows, x.to(to.dtype)), self.state, new)
            return
        pairs: list[tuple[Tensor, Tensor]] = []
        tree.map(lambda to, x: pairs.append((to, x)), old, new)  # by name: the order may differ
        copied = [(to, x) for to, x in pairs if to.data_ptr() != x.data_ptr()]
        if copied:
            targets, values = (list(tensors) for tensors in zip(*copied, strict=True))
            torch._foreach_copy_(targets, values)  # pyright: ignore[reportPrivateImportUsage]

    def _results(self) -> Ended:
        """Values after the last step, copied out of the buffers."""
        local, loss, clamped = (self.state[name] for name in ("local", "loss", "clamped"))
        copied = tree.map(lambda x: x.clone(memory_format=torch.contiguous_format), local)
        return Ended(copied, loss.clone(), clamped.clone())


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
    losses, buffers = counted_loss(method, model, parameters, local["buffers"], batch, context)
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


def row_counts(num_clients: int) -> list[int]:
    """Numbers of clients for which a step is captured, ascending.

    For any number of active clients, the next of them is larger by at most a quarter.

    Args:
        num_clients: Number of clients of a wave, at least 1.

    Example:
        >>> row_counts(10)
        [1, 2, 3, 4, 6, 8, 10]
    """
    found = [num_clients]
    while found[-1] > 1:
        found.append(min(found[-1] - 1, int(found[-1] / 1.25)))
    return found[::-1]


def waves(tasks: Sequence[ClientTask], repeats: int, size: int | None) -> list[Wave]:
    """Waves of at most ``size`` clients.

    Args:
        tasks: Tasks of equal form, in descending order of the number of steps.
        repeats: Steps on each batch, at least 1.
        size: Most clients in a wave; ``None`` for all in one.
    """
    loader, size = BatchLoader(tasks, repeats), size or len(tasks)
    return [Wave(tasks[i : i + size], loader, i) for i in range(0, len(tasks), size)]


def _context(wave: Wave) -> tuple[Tree, Tree]:
    """Joint context of a wave, and the client axis of each leaf."""
    return joined([task.context for task in wave.tasks])


def _plan(wave: Wave) -> Params:
    """Positions, lengths and draws of all steps, with axes of clients and steps."""
    loader, cut = wave.loader, (wave.rows, slice(wave.num_steps))
    named = {"positions": loader.positions, "counts": loader.counts, **loader.draws}
    return {name: x[cut] for name, x in named.items()}


def _parts(context: Tree) -> list[Any]:
    """Parts of all jagged leaves that a step reads."""
    leaves = [leaf for _, leaf in tree.leaves(context) if isinstance(leaf, Jagged)]
    read = [zip(leaf.parts, leaf.sizes, strict=True) for leaf in leaves]
    return [part for of_leaf in read for part, size in of_leaf if size]


def _stack_into(to: Tensor, *leaves: Tensor) -> None:
    """Stack the values of all clients into a buffer; a value that all share is read once."""
    if all(leaf is leaves[0] for leaf in leaves):
        to.copy_(leaves[0])
    else:
        torch.stack(leaves, out=to)


def _copy(to: Any, x: Any) -> None:
    if isinstance(to, Tensor):
        to.copy_(x)


def _autocast() -> tuple[torch.dtype, ...]:
    """Lower precisions in which operations run by autocast, empty if there is none."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return tuple(torch.get_autocast_dtype(kind) for kind in kinds)


def _dtype(parameters: Params) -> torch.dtype:
    return next((x.dtype for x in parameters.values() if x.is_floating_point()), torch.float32)


def _empty(x: Tensor, num_clients: int, *, channels_last: bool) -> Tensor:
    """Buffer for the values of several clients; for a convolution's in the order cuDNN prefers."""
    if channels_last and x.ndim == 4:
        return torch.empty_like(x, memory_format=torch.channels_last).unsqueeze(0)
    return x.new_empty((num_clients, *x.shape))


def _lined_up(active: Tensor, x: Tensor) -> Tensor:
    """The mask of clients, with trailing axes to broadcast with ``x``."""
    return active.view(-1, *[1] * (x.ndim - 1))
