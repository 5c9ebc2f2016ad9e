"""Loops that a reader would write by hand for a GPU: captured, stacked by ``vmap``, and in JAX.

Each does the arithmetic of the plain loop, for methods with plain SGD and clients of equal size.
"""

import functools
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from typing_extensions import override

from benchmarks.gpu.workloads import GpuPlainLoop, GpuWorkload, tasks
from fedbolic.core import tree
from fedbolic.core.types import Params, Tree
from fedbolic.data import Client, FederatedData
from fedbolic.federated.batched.replay import GraphPool, Replay
from fedbolic.federated.batched.stacking import joined
from fedbolic.federated.contract.gradient_method import GradientMethod

Loop = Callable[[GradientMethod, Sequence[Client]], list[Params]]
"""Trains the clients and returns their parameters."""


def rivals(work: GpuWorkload, data: FederatedData) -> dict[str, Callable[[], Loop]]:
    """The loops that fit a workload and what is installed, by name, each built when called."""
    if not isinstance(_optimizer(work, data), torch.optim.SGD):
        return {}
    found: dict[str, Callable[[], Loop]] = {
        "captured plain loop": lambda: CapturedLoop(work, data).run,
        "vmap loop": lambda: functools.partial(vmap_loop, work, data),
    }
    if work.name == "MLP" and find_spec("jax"):
        found["JAX, vmap and scan"] = lambda: functools.partial(jax_loop, work, data)
    return found


def _optimizer(work: GpuWorkload, data: FederatedData) -> torch.optim.Optimizer:
    return work.optimizer(work.network(data.meta))


class CapturedLoop(GpuPlainLoop):
    """The plain loop with its step captured once, and replayed for each client and batch."""

    def __init__(self, work: GpuWorkload, data: FederatedData) -> None:
        super().__init__(work, data)
        self.given: Tree = {}
        self.optimizer = work.optimizer(self.network)
        weight = next(self.network.parameters())
        self.replay = Replay(self._taken, weight, GraphPool(weight.device))

    def _taken(self) -> None:
        super().step(self.optimizer, self.given["batch"], self.given["context"])

    @override
    def step(self, optimizer: torch.optim.Optimizer, batch: Params, context: Tree) -> None:
        given = {"batch": batch, "context": context}
        if self.given:
            tree.map(lambda to, x: to.copy_(x) if isinstance(to, Tensor) else to, self.given, given)
        else:
            self.given = tree.clone(given)
        self.replay()


def vmap_loop(
    work: GpuWorkload, data: FederatedData, method: GradientMethod, clients: Sequence[Client]
) -> list[Params]:
    """All clients at once: ``vmap`` of the gradient of the loss, and a step of SGD by hand."""
    network = work.network(data.meta).to(clients[0].no_inputs).train()
    given = tasks(method, work.messages(data), clients)
    parameters = _stacked([task.local["parameters"] for task in given])
    context, dims = joined([task.context for task in given])
    examples = _stacked([task.examples.all() for task in given])
    positions = torch.stack([task.plan.positions for task in given]).to(clients[0].no_inputs.device)
    draws = _stacked([task.plan.draws for task in given])
    rows = torch.arange(len(clients), device=positions.device).unsqueeze(1)

    def loss(parameters: Params, batch: Params, context: Tree) -> Tensor:
        def called(x: Tensor) -> Tensor:
            return functional_call(network, parameters, x)

        return work.loss(called, batch, context)  # type: ignore[arg-type]  # it only calls it

    gradients = vmap(grad(loss), in_dims=(0, 0, dims))
    rate = _optimizer(work, data).param_groups[0]["lr"]
    for i in range(positions.shape[1]):
        batch = {name: x[rows, positions[:, i]] for name, x in examples.items()}
        batch |= {name: x[:, i].to(rows.device) for name, x in draws.items()}
        found = gradients(parameters, batch, context)
        parameters = {name: x - rate * found[name] for name, x in parameters.items()}
    return [{name: x[i] for name, x in parameters.items()} for i in range(len(clients))]


def jax_loop(
    work: GpuWorkload, data: FederatedData, method: GradientMethod, clients: Sequence[Client]
) -> list[Params]:
    """The network of two linear layers in JAX: ``scan`` over steps under ``vmap`` over clients."""
    given = tasks(method, work.messages(data), clients)
    stacked = [
        _stacked([task.local["parameters"] for task in given]),
        _stacked([task.examples.all() for task in given]),
        {"positions": torch.stack([task.plan.positions for task in given])},
    ]
    parameters, examples, plan = (
        {name: x.cpu().numpy() for name, x in part.items()} for part in stacked
    )
    rate = _optimizer(work, data).param_groups[0]["lr"]
    trained = _jax_training(float(rate))(parameters, examples, plan["positions"])
    named = {name: torch.tensor(x.__array__()) for name, x in trained.items()}
    return [{name: x[i] for name, x in named.items()} for i in range(len(clients))]


@functools.cache
def _jax_training(rate: float) -> Callable[..., Any]:
    """The compiled training of all clients, by JAX."""
    import jax  # pyright: ignore[reportMissingImports]

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        first, head = ("body.1", "head")
        x = x.reshape(len(x), -1) @ parameters[f"{first}.weight"].T + parameters[f"{first}.bias"]
        logits = jax.nn.relu(x) @ parameters[f"{head}.weight"].T + parameters[f"{head}.bias"]
        return -jax.numpy.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()

    def of_client(parameters: Any, examples: Any, positions: Any) -> Any:
        def step(parameters: Any, chosen: Any) -> Any:
            found = jax.grad(loss)(parameters, examples["x"][chosen], examples["y"][chosen])
            return jax.tree.map(lambda p, g: p - rate * g, parameters, found), None

        return jax.lax.scan(step, parameters, positions)[0]

    return jax.jit(jax.vmap(of_client))


def _stacked(parts: Sequence[Params]) -> Params:
    """Tensors of all clients along a new first axis."""
    return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
