"""Riemannian SGD and Adam: torch's own in flat space, laws on the others."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap

from fedbolic.optim import SGD, Adam

SGDS = [
    SGD(),
    SGD(momentum=0.9),
    SGD(weight_decay=0.1),
    SGD(momentum=0.9, weight_decay=0.1),
    SGD(momentum=0.9, weight_decay=0.1, nesterov=True),
]
ADAMS = [Adam(), Adam(beta1=0.0, beta2=0.5), Adam(weight_decay=0.1, eps=1e-3)]


def theirs(method, parameters):
    if isinstance(method, SGD):
        return torch.optim.SGD(
            parameters,
            lr=0.1,
            momentum=method.momentum,
            weight_decay=method.weight_decay,
            nesterov=method.nesterov,
        )
    return torch.optim.Adam(
        parameters,
        lr=0.1,
        betas=(method.beta1, method.beta2),
        eps=method.eps,
        weight_decay=method.weight_decay,
    )


def start(seed, dtype=torch.float64, lead=()):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn((*lead, *shape), generator=generator, dtype=dtype)

    return {"body.weight": draw(3, 4), "body.bias": draw(3), "scale": draw()}


def run(method, parameters, num_steps, lr=0.1):
    state = method.init(parameters)
    for seed in range(num_steps):
        parameters, state = method.step(parameters, start(100 + seed), state, lr=lr)
    return parameters, state


def run_theirs(method, parameters, num_steps):
    parameters = {name: x.clone().requires_grad_() for name, x in parameters.items()}
    optimizer = theirs(method, list(parameters.values()))
    for seed in range(num_steps):
        for name, g in start(100 + seed).items():
            parameters[name].grad = g
        optimizer.step()
    return {name: x.detach() for name, x in parameters.items()}


@pytest.mark.parametrize("method", SGDS, ids=str)
@given(seed=st.integers(0, 99))
def test_sgd_is_torch_sgd_bit_for_bit(method, seed):
    ours, _ = run(method, start(seed), 5)
    for name, x in run_theirs(method, start(seed), 5).items():
        assert torch.equal(ours[name], x), name


@pytest.mark.parametrize("method", ADAMS, ids=str)
@given(seed=st.integers(0, 99))
def test_adam_is_torch_adam(method, seed):
    ours, _ = run(method, start(seed), 20)
    for name, x in run_theirs(method, start(seed), 20).items():
        torch.testing.assert_close(ours[name], x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", SGDS + ADAMS, ids=str)
def test_stacked_clients_step_as_each_alone(method):
    """Three clients, the second two steps behind, by a leading axis and under vmap."""
    alone = [run(method, start(i), n) for i, n in enumerate((5, 3, 5))]
    flat = [torch.utils._pytree.tree_flatten(client) for client in alone]
    stacked = [
        torch.stack(tensors) for tensors in zip(*(leaves for leaves, _ in flat), strict=True)
    ]
    parameters, state = torch.utils._pytree.tree_unflatten(stacked, flat[0][1])
    gradients = start(7, lead=(3,))
    axis = method.step(parameters, gradients, state, lr=0.1)
    mapped = vmap(lambda p, g, s: method.step(p, g, s, lr=0.1))(parameters, gradients, state)
    for i, (p, s) in enumerate(alone):
        g = {name: x[i] for name, x in gradients.items()}
        expected = torch.utils._pytree.tree_leaves(method.step(p, g, s, lr=0.1))
        for together in (axis, mapped):
            got = [x[i] for x in torch.utils._pytree.tree_leaves(together)]
            for ours, theirs_ in zip(got, expected, strict=True):
                torch.testing.assert_close(ours, theirs_, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("method", SGDS + ADAMS, ids=str)
def test_step_leaves_its_arguments_untouched(method):
    parameters, state = run(method, start(0), 2)
    before = torch.utils._pytree.tree_map(torch.clone, (parameters, state))
    method.step(parameters, start(1), state, lr=0.1)
    torch.utils._pytree.tree_map(torch.testing.assert_close, before, (parameters, state))


@pytest.mark.parametrize("method", [SGD(momentum=0.5), Adam()], ids=str)
def test_a_parameter_without_gradient_stays(method):
    parameters = start(0)
    gradients = start(1)
    del gradients["scale"]
    moved, state = method.step(parameters, gradients, method.init(parameters), lr=0.1)
    assert moved["scale"] is parameters["scale"]
    assert moved.keys() == parameters.keys()
    assert not torch.equal(moved["body.bias"], parameters["body.bias"])
    assert all(v.keys() == parameters.keys() for v in state.values() if isinstance(v, dict))


@pytest.mark.parametrize("method", [SGD(momentum=0.5), Adam()], ids=str)
def test_adam_and_sgd_keep_half_precision(method):
    parameters = start(0, torch.bfloat16)
    moved, _ = method.step(parameters, start(1, torch.bfloat16), method.init(parameters), lr=0.1)
    assert all(x.dtype == torch.bfloat16 for x in moved.values())


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="gradients name \\['wieght'\\]"):
        SGD().step({"weight": torch.ones(1)}, {"wieght": torch.ones(1)}, {}, lr=0.1)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (SGD, {"momentum": 1.0}, "momentum must lie in"),
        (SGD, {"weight_decay": -1.0}, "weight_decay must be 0 or more"),
        (SGD, {"nesterov": True}, "nesterov needs momentum"),
        (Adam, {"beta2": 1.0}, "beta2 must lie in"),
        (Adam, {"eps": 0.0}, "eps must be a positive number"),
    ],
)
def test_a_bad_option_is_refused_where_it_is_made(kind, options, words):
    with pytest.raises(ValueError, match=words):
        kind(**options)


def test_no_parameters_is_no_step():
    for method in (SGD(momentum=0.5), Adam()):
        assert method.step({}, {}, method.init({}), lr=0.1)[0] == {}
