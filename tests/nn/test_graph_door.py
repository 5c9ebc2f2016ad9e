"""Graph layers: refused inputs, and compilation."""

import pytest
import torch

from fedbolic.manifolds import Curvature, Lorentz
from fedbolic.nn.graph.convolution import CentroidConv, HGCNConv

KINDS = (CentroidConv, HGCNConv)
EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("edges", "weight", "words"),
    [
        (EDGES.T, None, r"edge_index must be int64 of shape \(2, edges\), got torch.int64 .*3, 2"),
        (EDGES.float(), None, "got torch.float32"),
        ([[0], [1]], None, "edge_index must be a tensor, got list"),
        (EDGES, torch.ones(2), r"one number for each of the 3 edges, got shape \(2,\)"),
        (torch.eye(3).to_sparse_coo(), torch.ones(3), "must be None for a sparse tensor"),
    ],
)
def test_bad_edges_are_refused(kind, edges, weight, words):
    layer = kind(Lorentz(), 3, 2)
    with pytest.raises(ValueError, match=words):
        layer(layer.manifold.origin(3, 4), edges, weight)


@pytest.mark.parametrize("kind", KINDS)
def test_bad_points_are_refused(kind):
    layer = kind(Lorentz(), 3, 2)
    with pytest.raises(ValueError, match=r"x must have 4 coordinates .*got shape \(3, 3\)"):
        layer(torch.zeros(3, 3), EDGES)
    with pytest.raises(ValueError, match=r"got torch.float64: use x.to\(torch.float32\)"):
        layer(layer.manifold.origin(3, 4, dtype=torch.float64), EDGES)


@pytest.mark.parametrize("kind", KINDS)
def test_many_stacked_graphs_are_refused(kind):
    layer = kind(Lorentz(), 3, 2)
    with pytest.raises(ValueError, match=r"must have the shape \(nodes, coordinates\), got.*2, 3"):
        layer(layer.manifold.origin(2, 3, 4), EDGES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bipartite_graph_is_not_normalised(kind):
    x = kind(Lorentz(), 3, 2).manifold.origin(3, 4)
    with pytest.raises(ValueError, match="normalize=False, add_self_loops=False"):
        kind(Lorentz(), 3, 2, normalize=False)((x, x.clone()), EDGES)


@pytest.mark.parametrize("kind", KINDS)
def test_no_dimension_is_refused(kind):
    with pytest.raises(ValueError, match="out_features must be at least 1, got 0"):
        kind(Lorentz(), 3, 0)


@pytest.mark.parametrize(
    ("kind", "backend"),
    [(kind, "eager") for kind in KINDS]
    + [pytest.param(kind, "aot_eager", marks=pytest.mark.slow) for kind in KINDS],
)
def test_g13_a_layer_compiles_without_a_graph_break(kind, backend):
    torch._dynamo.reset()
    layer = kind(Lorentz(c=Curvature(0.7)), 3, 2).double()  # float32 would differ by rounding
    v = torch.randn(3, 3, dtype=torch.float64)
    x = layer.manifold.expmap0(layer.manifold.lift(v)).detach()
    given = EDGES, torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)(x, *given)
    eager = layer(x, *given)
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-5)
    got, expected = (
        torch.autograd.grad(y.square().sum(), [*layer.parameters()]) for y in (compiled, eager)
    )
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
