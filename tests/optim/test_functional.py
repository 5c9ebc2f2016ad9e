"""Riemannian SGD and Adam: equal to torch's in flat space, tested by laws on curved spaces."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap

from fedbolic.manifolds import Euclidean, Lorentz, Poincare, change_curvature, to_poincare
from fedbolic.optim import SGD, Adam
from tests.manifolds.cases import CURVED, normal, points

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
    """Three clients, the second two steps behind, along a leading axis and under vmap."""
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


@pytest.mark.parametrize("spaces", [None, {"body.weight": Lorentz()}], ids=["flat", "curved"])
@pytest.mark.parametrize("method", SGDS + ADAMS, ids=str)
def test_donated_storage_changes_no_digit(method, spaces):
    plain = (start(0), method.init(start(0)))
    if spaces:
        plain[0]["body.weight"] = Lorentz().projx(plain[0]["body.weight"])
    donated = torch.utils._pytree.tree_map(torch.clone, plain)
    for seed in range(3):
        plain = method.step(plain[0], start(seed), plain[1], lr=0.1, spaces=spaces)
        given, gradients = donated[0]["body.bias"], start(seed)
        donated = method.step(donated[0], gradients, donated[1], lr=0.1, spaces=spaces, donate=True)
        assert donated[0]["body.bias"].data_ptr() == given.data_ptr()
        torch.utils._pytree.tree_map(torch.testing.assert_close, gradients, start(seed))
    for ours, theirs in zip(*map(torch.utils._pytree.tree_leaves, (donated, plain)), strict=True):
        assert torch.equal(ours, theirs)


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


def descend(method, space, x, goal, num_steps, lr=0.05):
    state = method.init({"x": x})
    for _ in range(num_steps):
        y = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(space.dist(y, goal).square().sum(), y)
        moved, state = method.step({"x": x}, {"x": g}, state, lr=lr, spaces={"x": space})
        x = moved["x"]
    return x, state


RIEMANNIAN = [SGD(), SGD(momentum=0.5), SGD(momentum=0.5, nesterov=True), Adam()]


@pytest.mark.parametrize("method", RIEMANNIAN, ids=str)
@pytest.mark.parametrize("kind", CURVED)
def test_descent_reaches_the_goal_on_the_space(method, kind):
    space, x, goal = kind(c := 2.0), points(kind, c, 0, 10, 3), points(kind, c, 1, 10, 3)
    x, _ = descend(method, space, x, goal, 150, lr=0.1)
    assert space.dist(x, goal).max() < 1e-2
    assert space.contains(x).all()


@pytest.mark.parametrize("kind", CURVED)
def test_a_plain_step_goes_along_the_geodesic_by_the_gradient(kind):
    """The gradient of half the squared distance is minus the logarithm."""
    space, x, goal = kind(0.7), points(kind, 0.7, 0, 10, 3), points(kind, 0.7, 1, 10, 3)
    moved, _ = descend(SGD(), space, x, goal, 1, lr=0.1)
    torch.testing.assert_close(moved, space.expmap(x, 0.2 * space.logmap(x, goal)))


@pytest.mark.parametrize("method", RIEMANNIAN, ids=str)
@pytest.mark.parametrize("kind", CURVED)
def test_the_path_is_the_same_in_both_models_and_any_isometry(method, kind):
    """Intrinsic steps commute with isometries: a rotation of the space rotates the path."""
    space, x, goal = kind(1.3), points(kind, 1.3, 0, 10, 3), points(kind, 1.3, 1, 10, 3)
    turn = torch.linalg.qr(normal(2, 3, 3))[0]
    if kind is Lorentz:
        turn = torch.block_diag(torch.ones(1, 1, dtype=turn.dtype), turn)
    path, _ = descend(method, space, x, goal, 5)
    turned, _ = descend(method, space, x @ turn, goal @ turn, 5)
    torch.testing.assert_close(turned, path @ turn, rtol=1e-9, atol=1e-9)
    if kind is Lorentz:
        ball = Poincare(1.3)
        x, goal = to_poincare(space, x), to_poincare(space, goal)
        other, _ = descend(method, ball, x, goal, 5)
        torch.testing.assert_close(other, to_poincare(space, path), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", RIEMANNIAN, ids=str)
@pytest.mark.parametrize("kind", CURVED)
def test_moments_follow_a_curvature_that_moves(method, kind):
    """A step, a change of units and a step equal two steps and the change, at a scaled rate."""
    old, new = kind(2.0), kind(0.5)
    scale = 2.0  # sqrt(2.0 / 0.5): lengths double
    x, goal = points(kind, 2.0, 0, 10, 3), points(kind, 2.0, 1, 10, 3)
    state = method.init({"x": x})

    def step(space, x, state, goal, unit, lr):
        y = x.clone().requires_grad_()
        loss = (space.dist(y, goal) / unit).square().sum()  # in units that stay the same
        (g,) = torch.autograd.grad(loss, y)
        moved, state = method.step({"x": x}, {"x": g}, state, lr=lr, spaces={"x": space})
        return moved["x"], state

    # SGD moves by lr times a gradient, a derivative by length; Adam moves by lr itself
    rate = scale if isinstance(method, Adam) else scale**2
    x, state = step(old, x, state, goal, 1.0, 0.05)
    stays, _ = step(old, x, state, goal, 1.0, 0.05)
    moved = change_curvature(x, old, new)
    carried = method.change_curvature(state, {"x": old}, {"x": new})
    tangent = carried.get("momentum", carried.get("mean"))
    if kind is Lorentz and tangent:
        torch.testing.assert_close(
            tangent["x"], new.transp0(moved, new.transp(moved, new.origin(4), tangent["x"]))
        )
    goal = change_curvature(goal, old, new)
    there, _ = step(new, moved, carried, goal, scale, 0.05 * rate)
    torch.testing.assert_close(there, change_curvature(stays, old, new), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", RIEMANNIAN, ids=str)
@pytest.mark.parametrize("kind", CURVED)
def test_clients_with_their_own_curvature_step_as_each_alone(method, kind):
    each = (0.5, 1.0, 2.0)
    c = torch.tensor(each, dtype=torch.float64)
    x = torch.stack([points(kind, c, i, 4, 3) for i, c in enumerate(each)])
    g = normal(9, *x.shape)

    def step(c, x, g):
        state = method.init({"x": x})
        for _ in range(3):
            moved, state = method.step({"x": x}, {"x": g}, state, lr=0.1, spaces={"x": kind(c)})
            x = moved["x"]
        return x

    alone = torch.stack([step(*row) for row in zip(each, x, g, strict=True)])
    torch.testing.assert_close(vmap(step)(c, x, g), alone, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(step(c.unsqueeze(-1), x, g), alone, rtol=1e-12, atol=1e-12)


def test_flat_space_and_no_space_are_the_same():
    for method in RIEMANNIAN[:3]:
        x, goal = normal(0, 10, 3), normal(1, 10, 3)
        with_space, _ = method.step(
            {"x": x}, {"x": goal}, method.init({"x": x}), lr=0.1, spaces={"x": Euclidean()}
        )
        without, _ = method.step({"x": x}, {"x": goal}, method.init({"x": x}), lr=0.1)
        torch.testing.assert_close(with_space, without, rtol=1e-15, atol=1e-15)
