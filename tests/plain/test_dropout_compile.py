"""The dropout layer compiles to one graph."""

import torch

from fedbolic.nn.dropout import Dropout


def test_it_compiles_without_a_graph_break_and_moves_its_seed():
    torch._dynamo.reset()
    eager, compiled = Dropout(0.4), Dropout(0.4)
    compiled.dropout_seed = eager.dropout_seed.clone()
    traced = torch.compile(compiled, fullgraph=True, backend="aot_eager")
    x = torch.ones(5, 30)
    for _ in range(3):
        assert torch.equal(traced(x), eager(x))
