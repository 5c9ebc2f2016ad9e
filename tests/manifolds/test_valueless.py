"""Operations where values cannot be looked at: recorded, and of fake tensors."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tests.manifolds.cases import ALL, IDS, arguments, call

CASES = pytest.mark.parametrize(("kind", "name"), ALL, ids=IDS)


def function_of(kind, name):
    """The operation; of the steps to a mean one without derivatives and two with them."""
    options = {"steps": 3} if name == "frechet_mean" else {}
    return lambda *tensors: call(kind, name, 1.0, *tensors, **options)


def with_gradients(kind, name):
    def function(*tensors):
        leaves = [x.detach().requires_grad_() for x in tensors]
        value = function_of(kind, name)(*leaves)
        made = torch.autograd.grad(value.sum(), leaves, allow_unused=True, materialize_grads=True)
        return value.detach(), *made

    return function


@CASES
@pytest.mark.parametrize("mode", ["real", "fake"])
def test_what_is_recorded_near_the_origin_is_right_far_out(kind, name, mode):
    """A form that is chosen by values would be recorded, and wrong for other points."""
    near, far = arguments(kind, name), arguments(kind, name, c=0.02, seed=9)
    for function in (function_of(kind, name), with_gradients(kind, name)):
        recorded = make_fx(function, tracing_mode=mode)(*near)(*far)
        torch.testing.assert_close(recorded, function(*far), rtol=1e-8, atol=1e-8, equal_nan=True)


@CASES
def test_fake_tensors_have_the_shapes_of_real_ones(kind, name):
    given = arguments(kind, name)
    fake = FakeTensorMode()
    with fake:
        made = call(kind, name, 1.0, *map(fake.from_tensor, given))
    assert made.shape == call(kind, name, 1.0, *given).shape
