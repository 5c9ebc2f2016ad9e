"""Ghost norms against the gradient of every example by itself."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedbolic.nn.ghost_norms import ghost_norms, linear_layers, recorded_calls
from fedbolic.nn.model import Model


def network():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4, bias=False), nn.Linear(4, 3)
    )


def start(build):
    model = Model(build)
    parameters, buffers = model.init(0)
    return model, {n: x.double().requires_grad_() for n, x in parameters.items()}, buffers


@pytest.mark.parametrize("left_out", [(), ("1.weight",), ("3.weight", "4.bias")])
def test_the_norms_are_those_of_the_gradients_of_single_examples(left_out):
    model, parameters, buffers = start(network)
    x, y = torch.randn(7, 2, 3).double(), torch.arange(7) % 3
    with recorded_calls(model) as calls:
        logits, _ = model(parameters, buffers, x)
    losses = cross_entropy(logits, y, reduction="none")
    counted = {n: p for n, p in parameters.items() if n not in left_out}
    got = ghost_norms(calls, losses, counted)
    free = {n: p if n in counted else p.detach() for n, p in parameters.items()}
    found = []
    for i in range(len(x)):
        alone, _ = model(free, {}, x[[i]])
        gradients = torch.autograd.grad(cross_entropy(alone, y[[i]]), list(counted.values()))
        found.append(sum(float(g.square().sum()) for g in gradients) ** 0.5)
    torch.testing.assert_close(got, torch.tensor(found).double())
    losses.sum().backward()  # the graph is still there


def test_hooks_are_gone_after_the_block():
    model, parameters, buffers = start(network)
    with recorded_calls(model) as calls:
        model(parameters, buffers, torch.randn(2, 6).double())
    model(parameters, buffers, torch.randn(2, 6).double())
    assert [call.name for call in calls] == ["1", "3", "4"]


class Twice(nn.Module):
    """One layer, applied two times."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(self.layer(x))


class Rows(nn.Module):
    """A layer that sees more rows than there are examples."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(torch.stack((x, x), dim=1)).sum(1)


@pytest.mark.parametrize("build", [Twice, Rows])
def test_layers_without_one_row_for_each_example_are_refused(build):
    model, parameters, buffers = start(build)
    with recorded_calls(model) as calls:
        logits, _ = model(parameters, buffers, torch.randn(4, 3).double())
    with pytest.raises(ValueError, match="called once on one row for each example"):
        ghost_norms(calls, cross_entropy(logits, torch.zeros(4).long(), reduction="none"), {})


@pytest.mark.parametrize("layer", [nn.Conv1d(2, 2, 1), nn.LayerNorm(3)])
def test_other_layers_with_parameters_are_refused(layer):
    with pytest.raises(ValueError, match=f"is {type(layer).__name__}"):
        linear_layers(Model(lambda: nn.Sequential(nn.Linear(3, 3), layer)))
