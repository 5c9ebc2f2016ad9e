"""G13: every layer compiles to one graph, and the compiled layer equals the eager one."""

import copy

import pytest
import torch

from fedbolic.manifolds import Curvature, Lorentz, Poincare
from fedbolic.nn import GyroBatchNorm, Linear
from tests.nn.cases import CASES

LONG = ("without", "in training", "Lorentz HyperbolicBatchNorm", "Poincare ", "HGCN", "Tangent")
"""Words in the names of layers that take seconds to trace or resemble another layer."""

SHORT = [
    pytest.param(case, id=name, marks=[pytest.mark.slow] * any(word in name for word in LONG))
    for name, case in CASES.items()
]


def compiled(layer):
    torch._dynamo.reset()
    return torch.compile(layer, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("case", SHORT)
def test_g13_every_layer_compiles_without_a_graph_break(case):
    layer, x = case.make(Curvature(torch.tensor(0.7, dtype=torch.float64))), case.inputs(0.7)
    with torch.no_grad():
        torch.testing.assert_close(compiled(layer)(x), layer(x), rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("learnable", [True, False], ids=["learnt", "fixed"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_g13_compiled_derivatives_and_buffers_are_the_eager_ones(case, learnable):
    c = Curvature(torch.tensor(0.7, dtype=torch.float64)) if learnable else 0.7
    layer, x = case.make(c), case.inputs(0.7)
    x = x.requires_grad_() if x.is_floating_point() else x
    twin = copy.deepcopy(layer)
    eager, traced = layer(x), compiled(twin)(x)
    torch.testing.assert_close(traced, eager, rtol=1e-10, atol=1e-10)
    given, found = ([*m.parameters(), *[x] * x.requires_grad] for m in (layer, twin))
    if given:
        weights = torch.linspace(0.5, 1.5, eager.numel(), dtype=eager.dtype).reshape(eager.shape)
        options = {"allow_unused": True, "materialize_grads": True}
        expected = torch.autograd.grad((weights * eager).sum(), given, **options)
        got = torch.autograd.grad((weights * traced).sum(), found, **options)
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)
    for name, value in layer.named_buffers():
        torch.testing.assert_close(dict(twin.named_buffers())[name], value)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_g13_autocast_does_not_break_the_graph(case):
    layer, x = case.make(Curvature(0.7)).float(), case.inputs(0.7)
    x = x.float() if x.is_floating_point() else x
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        torch.testing.assert_close(compiled(layer)(x), layer(x), rtol=2e-2, atol=2e-2)


def test_a_compiled_layer_writes_to_a_buffer_without_axes():
    layer = GyroBatchNorm(Lorentz(), 2, dtype=torch.float64)
    twin, x = copy.deepcopy(layer), Lorentz().expmap0(torch.eye(3, dtype=torch.float64)[1:])
    layer(x), compiled(twin)(x)
    assert layer.running_var != 1
    torch.testing.assert_close(twin.running_var, layer.running_var)


def test_a_compiler_does_not_look_for_points_outside_the_ball():
    layer, x = Linear(Poincare(), 2, 3), torch.full((4, 2), 3.0)
    torch.compile(layer, backend="eager", fullgraph=True)(x)
    torch.export.export(layer, (x,))
    assert not layer._warned
