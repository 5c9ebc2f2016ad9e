"""Hierarchies without the type hook: what is no tensor of pairs, and membership compiled."""

import pytest
import torch

from fedbolic.data import Hierarchy, balanced_tree


@pytest.mark.parametrize(
    "pairs",
    [torch.tensor([[0.0, 1.0]]), torch.tensor([0, 1]), torch.tensor([[0, 1, 1]])],
)
def test_what_is_no_tensor_of_pairs_is_refused(pairs):
    shape = str(tuple(pairs.shape)).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(ValueError, match=rf"\(num_pairs, 2\), got {pairs.dtype} of shape {shape}"):
        Hierarchy(("a", "b"), pairs)


def test_membership_compiles_without_a_graph_break():
    tree, nodes = balanced_tree(2, 3), torch.arange(15)
    compiled = torch.compile(tree.related, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(nodes[:, None], nodes), tree.related(nodes[:, None], nodes))
