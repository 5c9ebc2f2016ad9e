"""Operations as one function of autograd: to the bit those made of formulas."""

import itertools

import pytest
import torch

from fedbolic.formulas import ball_maps, fused
from fedbolic.manifolds import Lorentz, Manifold, Poincare
from tests.manifolds.cases import lifted, normal

RADII = (1e-3, 1.0, 6.0, 30.0, 1e3)
"""The last one is beyond the range of both types, so that points are clamped."""


def arguments(kind, name, radius, dim, dtype):
    """Two points or a point and a tangent, of which some are equal."""
    far = radius / dim**0.5 * 2.0 ** torch.arange(-3.0, 4).repeat_interleave(3)[:, None]
    x, y = ((normal(k, 21, dim) * far).to(dtype) for k in (0, 1))
    y[::5] = x[::5]
    if kind is Lorentz:
        x, y = lifted(Lorentz, x.sinh() / radius if radius < 50 else x.exp()), lifted(Lorentz, y)
    elif radius < 50:  # else outside the ball
        x, y = (
            torch.nn.functional.normalize(v) * v.norm(dim=1)[:, None].tanh() / 2 for v in (x, y)
        )
    if name == "transp":
        return x, y, normal(3, *x.shape).to(dtype)
    return (x,) if name.endswith("0") else (x, y)


def value_and_gradients(function, given):
    leaves = [x.clone().requires_grad_() for x in given]
    value = function(*leaves)
    cotangent = normal(2, *value.shape).to(value.dtype)
    return [value.detach(), *torch.autograd.grad(value, leaves, cotangent)]


NAMES = ("dist", "expmap", "expmap0", "logmap", "logmap0", "transp")
CASES = [(kind, name) for kind in (Lorentz, Poincare) for name in NAMES]
CASES += [(Poincare, "mobius_add")]


@pytest.mark.parametrize("dtype", fused.FULL)
@pytest.mark.parametrize("dim", [1, 2, 5, 8, 33])
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_at_once_has_the_bits_of_the_operation(kind, name, dim, dtype):
    at_once = getattr(kind, name)
    for c in (0.3, 1.0, 4.0):
        for radius in RADII:
            given = arguments(kind, name, radius, dim, dtype)
            made = value_and_gradients(lambda *t, c=c: at_once(kind(c), *t), given)
            of_parts = value_and_gradients(lambda *t, c=c: at_once.__wrapped__(kind(c), *t), given)
            for one, other in zip(made, of_parts, strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
            with torch.no_grad():
                assert torch.equal(at_once(kind(c), *given).nan_to_num(), made[0].nan_to_num())


@pytest.mark.parametrize("dtype", fused.FULL)
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_many_points_near_the_origin_have_the_bits_of_the_operation(kind, name, dtype):
    for c, shape in ((0.3, (130, 33)), (1.0, (130, 33)), (1.0, (2, 3, 4)), (4.0, (1, 5))):
        v = [normal(k, *shape).to(dtype) / shape[-1] ** 0.5 for k in range(3)]
        given = [kind(c).expmap0(torch.nn.functional.pad(x, (1, 0))) for x in v]
        given = given[: len(arguments(kind, name, 1.0, 2, dtype))]
        found = []
        for function in (getattr(kind, name), getattr(kind, name).__wrapped__):
            with torch.no_grad():
                found.append([function(kind(c), *given)])
            found[-1] += value_and_gradients(lambda *t, f=function, c=c: f(kind(c), *t), given)
        assert all(map(torch.equal, *found))


@pytest.mark.parametrize("dtype", fused.FULL)
@pytest.mark.parametrize("share", [0.01, 0.5, 0.9])
def test_sums_for_which_no_clamp_is_looked_for_lie_well_in_the_ball(share, dtype):
    """The longest sums are those of points in one direction, whose distances from 0 add."""
    e = torch.nn.functional.normalize(normal(0, 50, 3), dim=1)
    for c in (0.3, 1e4):
        gaps = [(1.001 * ball_maps._SAFE) ** power for power in (share, 1 - share)]
        x, y = ((e * ((1 - gap) / c) ** 0.5).to(dtype) for gap in gaps)
        with torch.no_grad():
            total = Poincare(c).mobius_add(x, y)
        a, b, made = (c**0.5 * v.double().norm(dim=1) for v in (x, y, total))
        gap = (1 - a * a) * (1 - b * b) / (1 + a * b) ** 2
        torch.testing.assert_close(1 - made * made, gap, rtol=1e-3, atol=0)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_values_and_gradients_of_one_point_and_many(kind, name):
    given = arguments(kind, name, 1.0, 3, torch.float32)
    if len(given) > 1:
        given = given[0][:1], given[1].unsqueeze(0), *given[2:]
    at_once, found = getattr(kind, name), []
    for function in (at_once, at_once.__wrapped__):
        with torch.no_grad():
            found.append([function(kind(0.7), *given)])
        found[-1] += value_and_gradients(lambda *t, f=function: f(kind(0.7), *t), given)
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("dtype", fused.FULL)
@pytest.mark.parametrize("kind", [Lorentz, Poincare])
def test_pairs_of_results_have_the_bits_of_both_operations(kind, dtype):
    for c, radius, dim in itertools.product((0.3, 1.0, 4.0), RADII, (1, 8)):
        every = arguments(kind, "transp", radius, dim, dtype)
        for name, given in (("expmap_transp", every), ("squared_gradient", every[:2])):
            copies = [t.clone() for t in given]
            with torch.no_grad():
                found = getattr(kind(c), name)(*given)
            expected = getattr(Manifold, name)(kind(c), *copies)
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
            assert all(map(torch.equal, given, copies))


@pytest.mark.parametrize("kind", [Lorentz, Poincare])
def test_pairs_of_results_are_of_the_operations_that_a_subclass_has(kind):
    class Straight(kind):
        def expmap(self, x, u):
            return self.projx(x + u)

        def egrad2rgrad(self, x, g):
            return self.proju(x, g)

    given, space = arguments(kind, "transp", 1.0, 3, torch.float64), Straight(0.7)
    x, u, v = given
    with torch.no_grad():
        y, moved = space.expmap_transp(*given)
        gradient, square = space.squared_gradient(x, u)
    assert torch.equal(y, space.projx(x + u))
    assert torch.equal(moved, space.transp(x, y, v))
    assert torch.equal(gradient, space.proju(x, u))
    assert torch.equal(square, space.inner(x, gradient))


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_batch_of_cotangents_gives_the_gradients_of_each(kind, name):
    given = arguments(kind, name, 1.0, 3, torch.float64)

    def call(*tensors):
        return getattr(kind(0.7), name)(*tensors)

    each = torch.autograd.functional.jacobian(call, given)
    together = torch.autograd.functional.jacobian(call, given, vectorize=True)
    for one, other in zip(each, together, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_second_derivatives_are_those_of_the_operation(kind, name):
    given = arguments(kind, name, 1.0, 3, torch.float64)
    at_once, found = getattr(kind, name), []
    for function in (at_once, at_once.__wrapped__):
        leaves = [x.clone().requires_grad_() for x in given]
        value = function(kind(0.7), *leaves)
        first = torch.autograd.grad(value.sin().sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad([g.sin().sum() for g in first], leaves))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [Lorentz, Poincare])
def test_second_derivatives_with_one_tensor_twice_and_one_without(kind):
    given = arguments(kind, "expmap", 1.0, 3, torch.float64)
    x, y = given[0], given[-1]
    for name in ("expmap", "logmap"):
        at_once, found = getattr(kind, name), []
        for function in (at_once, at_once.__wrapped__):
            leaf = x.clone().requires_grad_()
            value = function(kind(0.7), leaf, leaf).sin().sum() + function(kind(0.7), leaf, y).sum()
            (first,) = torch.autograd.grad(value, leaf, create_graph=True)
            found.append(torch.autograd.grad(first.sin().sum(), leaf)[0])
        torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_only_eager_tensors_of_one_type_and_a_number_are_taken(kind, name, monkeypatch):
    given, taken = arguments(kind, name, 1.0, 3, torch.float64), []
    is_eager = fused._is_eager
    monkeypatch.setattr(fused, "_is_eager", lambda *x: taken.append(is_eager(*x)) or taken[-1])

    def call(*tensors):
        return getattr(kind(1.0), name)(*tensors)

    call(*given)
    assert taken == [True]
    getattr(kind(torch.tensor(1.0)), name)(*given)
    call(*(x.half() for x in given))
    call(*(x[:0] for x in given))
    torch.vmap(call)(*given)
    torch.func.jvp(call, given, given)
    assert taken == [True] + [False] * (len(taken) - 1)
