"""A curvature returns the value it was set to (G7), stays in its bounds, and may vary by client."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from fedbolic.manifolds import Curvature, Lorentz, Poincare, Stereographic

decades = st.floats(-9, 3).map(lambda e: 10.0**e)


@given(decades)
def test_g7_what_is_set_is_what_is_read(c):
    assert abs(Curvature(c).c.item() - c) <= 2e-6 * c
    wide = Curvature(torch.tensor(c, dtype=torch.float64)).c.item()
    assert abs(wide - c) <= 8e-15 * c


@pytest.mark.parametrize("c", [0.5, 1.0, 2.0, 4.0, 10.0, 89.0, 710.0, 1000.0])
def test_g7_plain_numbers_are_read_exactly(c):
    assert Curvature(c).c.item() == c


@given(decades)
def test_g7_the_raw_number_is_the_inverse_softplus(c):
    mp.dps = 60
    raw = Curvature(torch.tensor(c, dtype=torch.float64)).raw.item()
    true = mp.log(mp.expm1(mpf(c)))
    assert abs(float(raw - true)) <= 1e-14 * max(1.0, abs(float(true)))


@given(decades)
def test_g7_a_manifold_holds_the_caller_s_own_tensor_untouched(c):
    given = torch.tensor(c)
    for kind in (Lorentz, Poincare):
        space = kind(c=given)
        assert space.c is given
        space.dist0(space.origin(3))
    assert given.item() == torch.tensor(c).item()
    Curvature(given)
    assert given.item() == torch.tensor(c).item()


@given(st.floats(1.01e-2, 99.0))
def test_bounds_hold_and_the_inverse_is_exact(c):
    curvature = Curvature(torch.tensor(c, dtype=torch.float64), bounds=(1e-2, 1e2))
    assert abs(curvature.c.item() - c) <= 1e-13 * c
    for raw in (-1e4, -30.0, 30.0, 1e4):
        value = curvature.c_of(torch.tensor(raw, dtype=torch.float64)).item()
        assert 1e-2 <= value <= 1e2


@pytest.mark.parametrize("bounds", [(0.0, math.inf), (0.1, math.inf), (0.01, 100.0)])
def test_raw_of_undoes_c_of(bounds):
    curvature = Curvature(1.0, bounds=bounds)
    raw = torch.linspace(-4, 4, 50, dtype=torch.float64)
    torch.testing.assert_close(curvature.raw_of(curvature.c_of(raw)), raw, rtol=1e-12, atol=1e-12)


def test_one_curvature_per_client():
    each = torch.tensor([0.5, 1.0, 2.0])
    curvature = Curvature(each)
    torch.testing.assert_close(curvature.c, each, rtol=2e-7, atol=0)
    x = Poincare(curvature.c).expmap0(torch.ones(3, 4))
    Poincare(curvature.c).dist0(x).sum().backward()
    assert curvature.raw.grad.shape == (3,)


def test_a_curvature_learns():
    curvature = Curvature(1.0)
    optimizer = torch.optim.Adam(curvature.parameters(), lr=0.1)
    x, y = torch.tensor([0.1, 0.0]), torch.tensor([0.0, 0.2])
    for _ in range(200):
        optimizer.zero_grad()
        (Lorentz(curvature.c).lift(x).sum() * 0 + (curvature.c - 3.0).square()).backward()
        optimizer.step()
    assert abs(curvature.c.item() - 3.0) < 1e-2
    assert Lorentz(curvature.c).dist(*(Lorentz(curvature.c).lift(v) for v in (x, y))) > 0


def test_a_curvature_travels_as_one_tensor():
    curvature = Curvature(0.7, bounds=(0.1, 5.0))
    assert list(dict(curvature.named_parameters())) == ["raw"]
    assert not dict(curvature.named_buffers())
    other = Curvature(1.0, bounds=(0.1, 5.0))
    other.load_state_dict(curvature.state_dict())
    assert other.c == curvature.c
    assert copy.deepcopy(curvature).c == curvature.c
    assert curvature.double().c.dtype == torch.float64
    assert not Curvature(1.0, learnable=False).raw.requires_grad


@pytest.mark.parametrize("kind", [Lorentz, Poincare, Stereographic])
def test_a_space_reads_a_learnt_curvature_anew_and_keeps_its_module(kind):
    module = Curvature(0.5)
    space = kind(c=module)
    x = space.origin(3).detach()
    space.dist(x, x + 0.1).backward()
    first = module.raw.grad.clone()
    space.dist(x, x + 0.1).backward()  # a value kept from the first call would have lost its graph
    assert torch.equal(module.raw.grad, 2 * first)
    module.raw.data.add_(1.0)
    assert torch.equal(space.c, module.c)
    assert space.curvature is module
    assert copy.deepcopy(space).curvature is not module
    assert replace(space, c=2.0).curvature == replace(space, c=2.0).c == 2.0
