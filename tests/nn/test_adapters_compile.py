"""Adapters and contrastive losses compile to one graph with the values of eager code."""

import copy

import pytest
import torch
from torch import nn

from fedbolic.manifolds import Curvature, Lorentz
from fedbolic.nn import EntailmentContrast, HypLoRALinear, LoRALinear


def compiled(module):
    torch._dynamo.reset()
    return torch.compile(module, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("wrapper", [LoRALinear, HypLoRALinear])
def test_an_adapter_compiles_without_a_graph_break(wrapper):
    torch.manual_seed(0)
    settings = {"c": Curvature(0.4)} if wrapper is HypLoRALinear else {}
    layer, x = wrapper(nn.Linear(5, 4), rank=2, **settings).double(), torch.randn(3, 5).double()
    nn.init.normal_(layer.adapter.up)
    twin = copy.deepcopy(layer)
    eager, traced = layer(x), compiled(twin)(x)
    torch.testing.assert_close(traced, eager, rtol=1e-10, atol=1e-10)
    expected = torch.autograd.grad(eager.square().sum(), list(layer.adapter.parameters()))
    got = torch.autograd.grad(traced.square().sum(), list(twin.adapter.parameters()))
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)


def test_the_loss_of_meru_compiles_without_a_graph_break():
    torch.manual_seed(0)
    space, loss = Lorentz(0.7), EntailmentContrast(0.5).double()
    images, texts = (space.expmap0(space.lift(torch.randn(6, 3).double())) for _ in range(2))
    got = compiled(lambda x, t: loss(space, x, t))(images, texts)
    torch.testing.assert_close(got, loss(space, images, texts), rtol=1e-9, atol=1e-9)
