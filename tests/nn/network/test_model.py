import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from fedbolic.nn.network.model import Model
from tests.federated.simple_method import assert_same


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).relu())


class Scaled(nn.Module):
    """A network with one buffer in the state dict and one that is not in it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("scale", torch.full((2,), 3.0))
        self.register_buffer("shift", torch.ones(2), persistent=False)

    def forward(self, x):
        return self.linear(x) * self.scale + self.shift


class Counting(nn.Module):
    """A network that replaces its buffer instead of writing into it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x):
        z = self.linear(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * z.detach().mean(0)
        return z - self.mean


BUILDS = {
    "linear": lambda: nn.Linear(4, 3),
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU()),
    "cumulative statistics": lambda: nn.Sequential(
        nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 2)
    ),
    "tied": Tied,
    "scaled": Scaled,
    "counting": Counting,
}
every_build = pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)


def inputs(n=6, seed=0):
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))


def module_with(build, parameters, buffers):
    module = build()
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(parameters[name])
        for name, value in module.named_buffers():
            value.copy_(buffers[name])
    return module


@every_build
@pytest.mark.parametrize("training", [True, False])
def test_a_model_equals_the_module_itself(build, training):
    model = Model(build)
    parameters, buffers = model.init(seed=5)
    module = module_with(build, parameters, buffers).train(training)
    for step in range(3):  # statistics carry over
        x = inputs(seed=step)
        outputs, buffers = model(parameters, buffers, x, training=training)
        assert torch.equal(outputs, module(x))
        assert_same(buffers, {n: b.detach() for n, b in module.named_buffers()})


@every_build
def test_both_modes_may_alternate(build):
    model = Model(build)
    parameters, buffers = model.init(seed=5)
    first, _ = model(parameters, buffers, inputs())
    model(parameters, buffers, inputs(), training=True)
    assert torch.equal(model(parameters, buffers, inputs())[0], first)


@every_build
@pytest.mark.parametrize("training", [True, False])
def test_a_model_leaves_what_goes_in_untouched(build, training):
    model = Model(build)
    values = model.init(seed=5)
    before, x = copy.deepcopy(values), inputs()
    model(*values, x, training=training)
    assert_same(dict(enumerate(values)), dict(enumerate(before)))
    assert torch.equal(x, inputs())
    assert_same(dict(enumerate(model.init(seed=5))), dict(enumerate(before)))


@every_build
def test_gradients_are_those_of_the_module(build):
    model = Model(build)
    parameters, buffers = model.init(seed=5)
    module = module_with(build, parameters, buffers).train()
    module(inputs()).square().sum().backward()
    parameters = {name: value.requires_grad_() for name, value in parameters.items()}
    outputs, _ = model(parameters, buffers, inputs(), training=True)
    outputs.square().sum().backward()
    for name, value in module.named_parameters():
        assert torch.equal(parameters[name].grad, value.grad)


@every_build
def test_the_same_seed_gives_the_same_values_in_new_storage(build):
    model, twin = Model(build), Model(build)
    first, second = model.init(seed=7), twin.init(seed=7)
    assert_same(dict(enumerate(first)), dict(enumerate(second)))
    again = model.init(seed=7)
    for name, value in first[0].items():
        assert value.data_ptr() != again[0][name].data_ptr()
        assert not value.requires_grad
    assert any(not torch.equal(v, model.init(seed=8)[0][n]) for n, v in first[0].items())


@every_build
def test_a_seed_gives_the_modules_own_initialisation(build):
    parameters, _ = Model(build).init(seed=7)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        module = build()
    assert_same(parameters, {name: value.detach() for name, value in module.named_parameters()})


@every_build
def test_the_global_random_stream_stays_where_it_was(build):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    model = Model(build)
    model(*model.init(seed=1), inputs(), training=True)
    model.part("")
    assert torch.equal(torch.get_rng_state(), before)


def test_values_of_other_names_are_refused():
    model = Model(BUILDS["linear"])
    parameters, buffers = model.init(seed=0)
    with pytest.raises(ValueError, match="bias"):
        model({"weight": parameters["weight"]}, buffers, inputs())
    with pytest.raises(ValueError, match="more"):
        model({**parameters, "more": torch.ones(1)}, buffers, inputs())


def test_a_part_is_the_submodule_with_its_own_names():
    build = BUILDS["batch norm"]
    model = Model(build)
    parameters, buffers = model.init(seed=5)
    part = model.part("1")
    own = {n.removeprefix("1."): v for n, v in parameters.items() if n.startswith("1.")}
    stats = {n.removeprefix("1."): v for n, v in buffers.items()}
    module = module_with(build, parameters, buffers)[1].train()
    x = inputs()[:, :3]
    outputs, new = part(own, stats, x, training=True)
    assert torch.equal(outputs, module(x))
    assert_same(new, dict(module.named_buffers()))
    assert part.mixes_examples
    assert not model.part("0").mixes_examples


@pytest.mark.parametrize(
    ("build", "mixes"),
    [
        (lambda: nn.Linear(2, 2), False),
        (lambda: nn.LayerNorm(2), False),
        (lambda: nn.GroupNorm(1, 2), False),
        (lambda: nn.InstanceNorm1d(2), False),
        (lambda: nn.BatchNorm1d(2), True),
        (lambda: nn.Sequential(nn.Sequential(nn.BatchNorm2d(2))), True),
        (lambda: nn.SyncBatchNorm(2), True),
    ],
)
def test_batch_norm_mixes_examples_and_other_norms_do_not(build, mixes):
    assert Model(build).mixes_examples == mixes


class Meeting(nn.Module):
    """A layer whose calls in two threads wait for one another before they read its weight."""

    barrier = threading.Barrier(2, timeout=60)

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        self.barrier.wait()
        return self.weight * x


def test_threads_call_one_model_with_their_own_values():
    model, x = Model(Meeting), torch.ones(1)
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(
            lambda value: model({"weight": torch.tensor([value])}, {}, x)[0], [2.0, 3.0]
        )
    assert [float(y) for y in found] == [2.0, 3.0]
