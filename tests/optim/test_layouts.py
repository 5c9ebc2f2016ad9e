"""Steps do not depend on memory layout: torch's optimisers on contiguous tensors are the oracle.

Convolutional networks need this: their gradients come in channels-last order whatever the layout
of their parameters.
"""

import functools
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.data import IID, Digits, Examples, FederatedData, Partitioned
from fedbolic.federated import Batched, LocalTraining, Sequential
from fedbolic.federated.contract.engine import Exchange
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import Backbone, ConvNet
from fedbolic.nn.network.resnet import ResNet
from tests.federated.simple_method import batches
from tests.optim.test_functional import ADAMS, SGDS, theirs

OPTIMIZERS = [*SGDS, *ADAMS]
DTYPES = [torch.float32, torch.float64]
SHAPES = {"conv": (4, 3, 2, 2), "wide": (5, 2, 1, 3), "matrix": (4, 3), "row": (6,), "number": ()}

LAYOUTS = {
    "contiguous": lambda x: x.contiguous(),
    "channels last": lambda x: (
        x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
    ),
    "transposed": lambda x: x.mT.contiguous().mT if x.ndim > 1 else x,
    "every other": lambda x: torch.stack((x, x), -1).flatten(-2)[..., ::2] if x.ndim else x,
}
LAYOUTS["mixed"] = lambda x: LAYOUTS["transposed" if x.ndim == 2 else "channels last"](x)


def tolerance(dtype):
    return {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]


def draw(seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in SHAPES.items()
    }


def laid(tensors, layout):
    return {name: LAYOUTS[layout](x) for name, x in tensors.items()}


def expected(method, start, gradients):
    parameters = {name: x.clone().requires_grad_() for name, x in start.items()}
    optimizer = theirs(method, list(parameters.values()))
    for of_step in gradients:
        for name, g in of_step.items():
            parameters[name].grad = g
        optimizer.step()
    return {name: x.detach() for name, x in parameters.items()}


def stepped(method, parameters, gradients, **options):
    state = method.init(parameters)
    for of_step in gradients:
        parameters, state = method.step(parameters, of_step, state, lr=0.1, **options)
    return parameters


def one_number(tensors):
    """Gradients as those of a sum: one number in memory, expanded to the shape."""
    return {name: x.sum().expand(x.shape) for name, x in tensors.items()}


@pytest.mark.parametrize("of_parameters", LAYOUTS)
@pytest.mark.parametrize("method", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_step_does_not_see_how_tensors_lie(method, dtype, of_parameters):
    start, gradients = draw(0, dtype), [draw(seed, dtype) for seed in (1, 2)]
    given = {layout: [laid(one, layout) for one in gradients] for layout in LAYOUTS}
    given["expanded"] = [one_number(one) for one in gradients]
    for layout, of_steps in given.items():
        contiguous = [laid(one, "contiguous") for one in of_steps]
        oracle = expected(method, start, contiguous)
        for donate in (False, True):
            parameters = {name: x.clone() for name, x in laid(start, of_parameters).items()}
            found = stepped(method, parameters, of_steps, donate=donate)
            for name, x in oracle.items():
                near = {"rtol": tolerance(dtype), "atol": tolerance(dtype)}
                torch.testing.assert_close(found[name], x, **near, msg=f"{layout} {name}")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", OPTIMIZERS, ids=str)
def test_a_step_of_stacked_clients_does_not_see_how_tensors_lie(method, layout):
    dtype = torch.float64
    alone = [draw(seed, dtype) for seed in (0, 1)]
    state = method.init(alone[0])
    stacked = {name: torch.stack([one[name] for one in alone]) for name in SHAPES}
    states = torch.utils._pytree.tree_map(lambda x: torch.stack((x, x)), state)
    given = [draw(seed, dtype) for seed in (2, 3)]
    gradients = {
        # the axis of clients is the first by index and the last in memory, as vmap may leave it
        name: torch.stack([LAYOUTS[layout](one[name]) for one in given], dim=-1).movedim(-1, 0)
        for name in SHAPES
    }
    found, _ = method.step(stacked, gradients, states, lr=0.1)
    for i in range(2):
        for name, x in expected(method, alone[i], given[i : i + 1]).items():
            torch.testing.assert_close(found[name][i], x, rtol=1e-12, atol=1e-12, msg=name)


@dataclass(frozen=True)
class Stored(Backbone):
    """The network of another recipe with its parameters stored in a given memory order."""

    inner: Backbone
    order: str

    @property
    @override
    def num_features(self):
        return self.inner.num_features

    @override
    def build(self, meta):
        network = self.inner.build(meta)
        convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
        share = {"contiguous": 0, "channels last": 1, "mixed": 2}[self.order]
        for convolution in convolutions[: share and len(convolutions) // share]:
            convolution.to(memory_format=torch.channels_last)
        return network


@functools.cache
def images(dtype):
    """Two clients with a few images each, so that the last batch is incomplete."""
    data = Partitioned(Digits(), IID(2)).load(Rng(0))
    clients = [
        replace(c, train=Examples(c.train.at(torch.arange(n))))
        for c, n in zip(data.clients, (8, 7), strict=True)
    ]
    return FederatedData(tuple(clients), data.meta).to("cpu", dtype)


def by_torch(method, data, client, state, rng):
    """Parameters of a client after torch's own loop over a module."""
    network = method.model(data.meta)._make(seed=state["seed"]).to(client.no_inputs.dtype).train()
    optimizer = theirs(method.optimizer, list(network.parameters()))
    for x, y in batches(rng, 1, client, epochs=1, batch_size=4):
        optimizer.zero_grad()
        cross_entropy(network(x), y).backward()
        optimizer.step()
    return {name: x.detach() for name, x in network.named_parameters()}


@pytest.mark.parametrize("engine", [Sequential(), Batched()], ids=repr)
@pytest.mark.parametrize("order", ["contiguous", "channels last", "mixed"])
@pytest.mark.parametrize("inner", [ConvNet(3), ResNet(3, (1,), 2, "cifar", "group")], ids=repr)
@pytest.mark.parametrize("optimizer", [SGDS[-1], ADAMS[-1]], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_local_training_is_torch_s_own_loop(optimizer, inner, order, engine, dtype):
    data, rng = images(dtype), Rng(3)
    method = FedAvg(Stored(inner, order), lr=0.1, optimizer=optimizer, local=LocalTraining(1, 4))
    state = method.init(data.meta, rng)
    start = {name: x.to(dtype) for name, x in state["parameters"].items()}
    message = {**method.broadcast(state, 0), "parameters": start}
    stream = rng.at("round", 1, "exchange", 0)
    results = engine.run(Exchange(method, dict.fromkeys((0, 1), message), data.clients, {}, stream))
    # where a gradient is only rounding error, Adam divides it by eps = 1e-3
    near = {torch.float32: 1e-3, torch.float64: 1e-9}[dtype]
    for client, update, _ in results:
        for name, x in by_torch(method, data, client, state, rng).items():
            found = start[name] + update.payload["delta"][name]
            torch.testing.assert_close(found, x, rtol=near, atol=near, msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", OPTIMIZERS, ids=str)
def test_a_step_on_a_gpu_does_not_see_how_tensors_lie(method, layout):
    start, gradients = draw(0, torch.float64), [draw(seed, torch.float64) for seed in (1, 2)]
    given = [{n: g.cuda() for n, g in laid(one, layout).items()} for one in gradients]
    found = stepped(method, {name: x.cuda() for name, x in start.items()}, given)
    for name, x in expected(method, start, gradients).items():
        torch.testing.assert_close(found[name].cpu(), x, rtol=1e-12, atol=1e-12, msg=name)
