"""Cones and wrapped normals: refused inputs, and compiled code that equals the eager one."""

import math

import pytest
import torch

from fedbolic.manifolds import (
    Euclidean,
    Lorentz,
    Poincare,
    WrappedNormal,
    entailment_loss,
    exterior_angle,
    half_aperture,
)
from tests.manifolds.cases import normal, points

CURVED = (Lorentz, Poincare)


@pytest.mark.parametrize("call", [exterior_angle, entailment_loss])
def test_flat_space_has_no_cones(call):
    with pytest.raises(ValueError, match="must be Lorentz or Poincare, got Euclidean"):
        call(Euclidean(), torch.ones(2), torch.ones(2))
    with pytest.raises(ValueError, match="must be Lorentz or Poincare, got Euclidean"):
        half_aperture(Euclidean(), torch.ones(2))


def test_flat_space_has_the_normal_of_torch():
    with pytest.raises(ValueError, match="use Normal of torch"):
        WrappedNormal(Euclidean(), torch.zeros(2), torch.ones(2))


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("default", [True, False])
def test_a_scale_that_is_not_positive_is_refused(kind, value, default, monkeypatch):
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", default)
    scale = torch.tensor([1.0, value])
    loc = kind().origin(2 + (kind is Lorentz))
    with pytest.raises(ValueError, match=f"scale must be positive and finite, got {value}"):
        WrappedNormal(kind(), loc, scale)
    assert WrappedNormal(kind(), loc, scale, validate_args=False).batch_shape == ()


@pytest.mark.parametrize(
    ("kind", "shape", "message"),
    [
        (Poincare, (), "1 or more coordinates along the last axis, got shape ()"),
        (Poincare, (0,), "1 or more coordinates"),
        (Lorentz, (1,), r"2 or more coordinates along the last axis \(time first\)"),
    ],
)
def test_a_location_of_a_wrong_shape_is_refused(kind, shape, message):
    with pytest.raises(ValueError, match=message):
        WrappedNormal(kind(), torch.zeros(shape), torch.ones(()))


@pytest.mark.parametrize(
    ("loc", "scale", "message"),
    [
        (torch.zeros(4, 3), torch.ones(4), r"scale must have 3 or 1 numbers .* got shape \(4,\)"),
        (torch.zeros(4, 3), torch.ones(5, 1), r"batch axes .* got \(4,\), \(5,\)"),
        (torch.zeros(3), torch.ones(3).double(), "one floating dtype"),
        (torch.zeros(3).int(), torch.ones(3).int(), "one floating dtype"),
        (torch.full((3,), 0.9), torch.ones(3), "1 of 1 points are not on"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(loc, scale, message):
    with pytest.raises(ValueError, match=message):
        WrappedNormal(Poincare(), loc, scale)


def test_a_curvature_that_does_not_fit_is_refused():
    space = Poincare(torch.ones(3))
    with pytest.raises(ValueError, match=r"curvature must broadcast, got \(2,\), \(\), \(3,\)"):
        WrappedNormal(space, torch.zeros(2, 5), torch.ones(()))


@pytest.mark.parametrize("kind", CURVED)
def test_a_value_off_the_support_is_refused(kind):
    space = kind()
    law = WrappedNormal(space, space.origin(3), torch.ones(()))
    with pytest.raises(ValueError, match=f"point of {kind.__name__}"):
        law.log_prob(torch.full((3,), 2.0))
    with pytest.raises(ValueError, match="must match event_shape"):
        law.log_prob(space.origin(4))


@pytest.mark.parametrize("kind", CURVED)
def test_compiled_code_equals_eager_code(kind):
    torch._dynamo.reset()
    x, y = (points(kind, 0.7, seed, 5, 3) for seed in (0, 1))
    scale = normal(2, 3).exp()
    c = torch.tensor(0.7, dtype=torch.float64)

    def together(c, x, y, scale):
        law = WrappedNormal(kind(c), x, scale, validate_args=False)
        return entailment_loss(kind(c), x, y) + law.log_prob(y)

    given = [t.requires_grad_() for t in (c, x, y, scale)]
    eager = together(*given)
    compiled = torch.compile(together, fullgraph=True, backend="eager")(*given)
    torch.testing.assert_close(compiled, eager, rtol=1e-12, atol=1e-12)
    expected = torch.autograd.grad(eager.sum(), given)
    got = torch.autograd.grad(compiled.sum(), given)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
