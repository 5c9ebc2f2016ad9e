"""Derivatives of every layer against differences: calls by the thousand, which check no types."""

import pytest
import torch
from torch.func import functional_call

from fedbolic.manifolds import Curvature
from tests.nn.graph.test_graph import DTYPE, EDGES, LAYERS, WEIGHTS, make, nodes
from tests.nn.layers.test_layers import C, every_layer, learnt


@every_layer
def test_gradients_are_those_of_finite_differences(case):
    layer, x = learnt(case), case.inputs(C)
    names = [name for name, _ in layer.named_parameters()]
    values = [value.detach().clone().requires_grad_() for value in layer.parameters()]
    points_in = [x.requires_grad_()] if x.is_floating_point() else []

    def forward(*tensors):
        given = dict(zip(names, tensors, strict=False))
        return functional_call(layer, given, (tensors[len(names)] if points_in else x,))

    given = (*values, *points_in)
    assert torch.autograd.gradcheck(forward, given, rtol=1e-4, atol=1e-6, fast_mode=True)


@every_layer
def test_second_derivatives_are_those_of_finite_differences(case):
    if case.kind is None:
        pytest.skip("takes indices")
    layer, x = learnt(case), case.inputs(C).requires_grad_()
    assert torch.autograd.gradgradcheck(layer, x, rtol=1e-4, atol=1e-6, fast_mode=True)


@every_layer
def test_g13_forward_and_reverse_derivatives_agree_to_second_order(case):
    layer, x = learnt(case), case.inputs(C)
    values = {name: value.detach() for name, value in layer.named_parameters()}
    buffers = {name: value.clone() for name, value in layer.named_buffers()}

    def loss(raw):
        given = {**values, case.raw: raw, **{n: b.clone() for n, b in buffers.items()}}
        return functional_call(layer, given, (x,)).square().sum()

    raw = values[case.raw]
    slope = torch.func.grad(loss)(raw)
    _, forward = torch.func.jvp(loss, (raw,), (torch.ones_like(raw),))
    torch.testing.assert_close(forward, slope.squeeze(), rtol=1e-8, atol=1e-8)
    h = 1e-5
    expected = (torch.func.grad(loss)(raw + h) - torch.func.grad(loss)(raw - h)) / (2 * h)
    second = torch.func.hessian(loss)(raw).reshape(expected.shape)
    torch.testing.assert_close(second, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_graph_layers_are_those_of_differences(name):
    layer = make(name, c=Curvature(torch.tensor(0.7, dtype=DTYPE)))
    names = [n for n, _ in layer.named_parameters()]

    def f(x, weight, *values):
        given = dict(zip(names, values, strict=True))
        return functional_call(layer, given, (x, EDGES, weight))

    given = [nodes(layer), WEIGHTS.clone(), *(p.detach().clone() for p in layer.parameters())]
    assert "linear.curvature.raw" in names
    assert torch.autograd.gradcheck(f, [t.requires_grad_() for t in given])
