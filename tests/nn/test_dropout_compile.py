"""The dropout layer compiles to one graph."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from fedbolic.nn.layers.dropout import Dropout


def test_it_compiles_without_a_graph_break_and_moves_its_seed():
    torch._dynamo.reset()
    eager, compiled = Dropout(0.4), Dropout(0.4)
    compiled.dropout_seed = eager.dropout_seed.clone()
    traced = torch.compile(compiled, fullgraph=True, backend="aot_eager")
    x = torch.ones(5, 30)
    for _ in range(3):
        assert torch.equal(traced(x), eager(x))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo's
def test_a_compiled_segment_that_is_computed_again_drops_what_it_did():
    network = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), Dropout(0.5), nn.Linear(6, 6), nn.Tanh())
    x = torch.ones(8, 6)

    def gradients(network, run):
        for _ in range(2):  # the second time as compiled code
            run(x.clone().requires_grad_()).square().sum().backward()
        return [p.grad for p in network.parameters()]

    plain = copy.deepcopy(network)
    wanted = gradients(plain, plain)
    for mode in (False, True):
        for within in (True, False):
            torch._dynamo.reset()
            mine = copy.deepcopy(network)
            inner = torch.compile(mine, backend="aot_eager") if within else mine

            def run(x, inner=inner, mode=mode):
                return checkpoint(inner, x, use_reentrant=mode)

            outer = run if within else torch.compile(run, backend="aot_eager")
            assert_close(gradients(mine, outer), wanted)
