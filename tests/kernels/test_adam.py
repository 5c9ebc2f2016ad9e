"""Kernel of a step of Adam, interpreted on the CPU: ``make kernels``."""

import pytest
import torch
from torch.func import grad, vmap
from torch.utils._pytree import tree_leaves, tree_map

from fedbolic import kernels
from fedbolic.manifolds import Lorentz
from fedbolic.optim import Adam, fused_adam
from tests.optim.test_functional import ADAMS, run_theirs, start

pytestmark = pytest.mark.kernels


@pytest.fixture
def on(monkeypatch):
    """The kernel in place of torch's, for tensors of the CPU; shapes of its calls."""
    calls, updated = [], fused_adam._updated
    monkeypatch.setattr(kernels, "run_on", lambda x: True)

    def counted(x, *others, donate=False):
        calls.append(tuple(x.shape))
        return updated(x, *others, donate=donate)

    monkeypatch.setattr(fused_adam, "_updated", counted)
    return calls


def by_torch(call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "run_on", lambda x: False)
        return call()


def after_steps(method, seed, num_steps):
    """Parameters and state of one client after a few steps."""
    parameters = start(seed)
    state = method.init(parameters)
    for k in range(num_steps):
        parameters, state = method.step(parameters, start(100 + k), state, lr=0.1)
    return parameters, state


def stacked(method):
    """Parameters and states of three clients, the second of which is two steps behind."""
    clients = by_torch(lambda: [after_steps(method, i, n) for i, n in enumerate((5, 3, 5))])
    return tree_map(lambda *x: torch.stack(x), *clients)


@pytest.mark.parametrize("method", ADAMS, ids=str)
def test_steps_of_stacked_clients_are_those_of_torch(method, on):
    one = start(1), method.init(start(1))
    parameters, state = tree_map(lambda x: x[None], one)
    for k in range(6):
        gradients = tree_map(lambda x: x[None], start(100 + k))
        parameters, state = method.step(parameters, gradients, state, lr=0.1)
    assert on[:3] == [(1, 3, 4), (1, 3), (1,)]
    for name, x in run_theirs(method, start(1), 6).items():
        torch.testing.assert_close(parameters[name][0], x, rtol=1e-12, atol=1e-12)


def test_a_client_alone_takes_the_kernel_of_torch(on):
    after_steps(Adam(), 1, 1)
    assert not on


@pytest.mark.parametrize("method", ADAMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mapped", [False, True], ids=["axis", "vmap"])
def test_stacked_clients_step_as_each_alone(method, dtype, mapped, on):
    parameters, state = stacked(method)
    exact = parameters, start(7, lead=(3,)), state
    given = tree_map(lambda x: x.to(dtype) if x.is_floating_point() else x, exact)

    def step(parameters, gradients, state):
        return method.step(parameters, gradients, state, lr=0.1)

    got = vmap(step)(*given) if mapped else step(*given)
    assert on == [(3, 3, 4), (3, 3), (3,)]
    rounded = tree_map(lambda x: x.double() if x.is_floating_point() else x, given)
    for i in range(3):
        own = tree_map(lambda x, i=i: x[i], rounded)
        wanted = by_torch(lambda own=own: step(*own))
        for a, b in zip(tree_leaves(got), tree_leaves(wanted), strict=True):
            atol = 8 * torch.finfo(dtype).eps * b.abs().max().item()
            torch.testing.assert_close(a[i].to(b.dtype), b, rtol=0, atol=atol)


def test_errors_in_float32_are_those_of_torch_but_for_rounding(on):
    exact = tree_map(lambda x: x.float() if x.is_floating_point() else x, stacked(Adam()))
    gradients = start(7, torch.float32, lead=(3,))

    def step(parameters, gradients, state):
        return Adam().step(parameters, gradients, state, lr=0.1)

    ours = step(exact[0], gradients, exact[1])
    assert on
    theirs = by_torch(lambda: step(exact[0], gradients, exact[1]))
    wide = tree_map(lambda x: x.double() if x.is_floating_point() else x, (*exact, gradients))
    true = by_torch(lambda: step(wide[0], wide[2], wide[1]))
    for a, b, t in zip(*map(tree_leaves, (ours, theirs, true)), strict=True):
        now, today = ((x - t).abs().max() / t.abs().max() for x in (a, b))
        assert now <= 2 * today + torch.finfo(torch.float32).eps


def test_more_numbers_than_a_program_has_are_updated(on):
    shape = (2, 1500)
    parameters = {"x": torch.linspace(-1, 1, 3000, dtype=torch.float64).reshape(shape)}
    gradients = {"x": parameters["x"].flip(1) ** 3}
    state = {**Adam().init(parameters), "step": torch.tensor([0, 4])}
    got = Adam().step(parameters, gradients, state, lr=0.1)
    assert on == [shape]
    wanted = by_torch(lambda: Adam().step(parameters, gradients, state, lr=0.1))
    tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12), got, wanted)


@pytest.mark.parametrize("donate", [False, True])
def test_only_donated_storage_is_written_over(donate, on):
    parameters, state = stacked(Adam())
    before = tree_map(torch.clone, (parameters, state))
    gradients = start(1, lead=(3,))
    moved, after = Adam().step(parameters, gradients, state, lr=0.1, donate=donate)
    for name, x in parameters.items():
        assert (moved[name].data_ptr() == x.data_ptr()) == donate
        assert (after["mean"][name].data_ptr() == state["mean"][name].data_ptr()) == donate
    if not donate:
        tree_map(torch.testing.assert_close, (parameters, state), before)
    tree_map(torch.testing.assert_close, gradients, start(1, lead=(3,)))
    assert on


def test_gradients_in_another_order_of_memory_are_read_in_theirs(on):
    parameters, state = stacked(Adam())
    gradients = start(1, lead=(3,))
    turned = {n: x.movedim(0, -1).contiguous().movedim(-1, 0) for n, x in gradients.items()}
    assert turned["body.weight"].stride() != gradients["body.weight"].stride()
    got, wanted = (Adam().step(parameters, g, state, lr=0.1) for g in (turned, gradients))
    for a, b in zip(tree_leaves(got), tree_leaves(wanted), strict=True):
        assert torch.equal(a, b)
    assert on


def test_clients_with_common_parameters_step_apart(on):
    parameters = start(0)
    gradients = start(1, lead=(3,))

    def step(gradients):
        return Adam().step(parameters, gradients, Adam().init(parameters), lr=0.1)[0]

    got = vmap(step)(gradients)
    assert on
    for i in range(3):
        wanted = by_torch(lambda i=i: step({n: g[i] for n, g in gradients.items()}))
        for name in wanted:
            torch.testing.assert_close(got[name][i], wanted[name], rtol=1e-12, atol=1e-12)


def test_no_numbers_make_a_step(on):
    parameters = {"x": torch.zeros(2, 0)}
    state = {**Adam().init(parameters), "step": torch.zeros(2, dtype=torch.int64)}
    moved, _ = Adam().step(parameters, parameters, state, lr=0.1)
    assert moved["x"].shape == (2, 0)
    assert on


def test_what_the_kernel_lacks_takes_the_operators(on):
    parameters, gradients = start(0), start(1)
    state = Adam().init(parameters)
    space = {"body.weight": Lorentz()}
    points = {**parameters, "body.weight": Lorentz().projx(parameters["body.weight"])}
    Adam().step(points, gradients, state, lr=0.1, spaces=space)
    half = tree_map(torch.Tensor.bfloat16, (parameters, gradients))
    Adam().step(*half, Adam().init(half[0]), lr=0.1)

    def after(x):  # a derivative through the step
        return Adam().step({"x": x}, {"x": x**2}, Adam().init({"x": x}), lr=0.1)[0]["x"].sum()

    x = torch.linspace(1, 2, 3, dtype=torch.float64)
    slope = grad(after)(x)
    torch.testing.assert_close(vmap(grad(after))(x.expand(2, 3)), slope.expand(2, 3))
    assert not on
