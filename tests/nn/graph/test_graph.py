"""Graph convolutions compared with means computed node by node."""

import copy
from functools import partial

import geoopt
import pytest
import torch
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import to_dense_adj

from fedbolic.manifolds import Curvature, Lorentz
from fedbolic.nn.graph.convolution import CentroidConv, HGCNConv
from fedbolic.nn.layers.tangent_linear import TangentLinear

# 0 -> 1 -> 2 -> 0, 3 -> 1, a loop at 3, no edges at 4
EDGES = torch.tensor([[0, 1, 2, 3, 3], [1, 2, 0, 1, 3]])
WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 3.0, 0.7], dtype=torch.float64)
NUM_NODES = 5
DTYPE = torch.float64

LAYERS = {
    "CentroidConv": CentroidConv,
    "CentroidConv of plain edges": partial(CentroidConv, normalize=False, add_self_loops=False),
    "HGCNConv": partial(HGCNConv, activation=torch.relu, out_manifold=Lorentz(0.4)),
    "HGCNConv at the origin": partial(HGCNConv, local=False),
}


def make(name, c=0.7, seed=0, dtype=DTYPE):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = LAYERS[name](Lorentz(c), 3, 2).to(dtype)
        with torch.no_grad():
            layer.linear.weight.normal_(std=0.5)
            layer.linear.bias.normal_(std=0.5)
    return layer


def nodes(layer, num_nodes=NUM_NODES, seed=1, dtype=DTYPE, radius=1.0):
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(num_nodes, 3, generator=generator, dtype=torch.float64).to(dtype) * radius
    return layer.manifold.expmap0(layer.manifold.lift(v)).detach()


def outputs(layer):
    return getattr(layer, "out_manifold", layer.manifold)


def incoming(layer, weight=WEIGHTS):
    """Weights of the edges into each node as a hand-built matrix; targets are rows."""
    matrix = torch.zeros(NUM_NODES, NUM_NODES, dtype=DTYPE)
    for (source, target), w in zip(EDGES.T.tolist(), weight.tolist(), strict=True):
        matrix[target, source] += w
    if layer.add_self_loops:
        missing = matrix.diagonal() == 0
        matrix += torch.diag(missing.to(DTYPE))
    if layer.normalize:
        degree = matrix.sum(1)
        scale = torch.where(degree > 0, degree, 1.0) ** -0.5
        matrix = scale[:, None] * matrix * scale
    return matrix


def sparse(edges, weights, num_targets, num_sources):
    size = (num_targets, num_sources)
    return torch.sparse_coo_tensor(edges.flip(0), weights, size, check_invariants=True)


def mean(space, points, weights, own, how):
    """The mean of the neighbours of one node, by our centroid or by geoopt."""
    if weights.sum() == 0:
        return own
    shares = weights / weights.sum()
    lorentz = geoopt.Lorentz(torch.tensor(1 / float(space.c), dtype=DTYPE))
    if how == "centroid":
        return space.centroid(points, weights)
    if how == "local":
        return lorentz.expmap(own, (shares[:, None] * lorentz.logmap(own, points)).sum(0))
    return lorentz.expmap0((shares[:, None] * lorentz.logmap0(points)).sum(0))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("add_self_loops", [True, False])
@pytest.mark.parametrize("c", [0.3, 1.0, 2.5])
def test_a_node_gets_the_centroid_of_its_mapped_neighbours(normalize, add_self_loops, c):
    layer = CentroidConv(
        Lorentz(c=c), 3, 2, normalize=normalize, add_self_loops=add_self_loops
    ).double()
    x = nodes(layer)
    y, matrix = layer.linear(x), incoming(layer)
    expected = torch.stack(
        [mean(layer.manifold, y, row, own, "centroid") for row, own in zip(matrix, y, strict=True)]
    )
    torch.testing.assert_close(layer(x, EDGES, WEIGHTS), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("add_self_loops", [True, False])
@pytest.mark.parametrize("how", ["local", "origin"])
def test_hgcn_takes_the_mean_in_a_tangent_space(how, add_self_loops):
    """The oracle is geoopt, whose hyperboloid takes the squared radius 1 / c."""
    c, later = 0.7, 0.4
    layer = HGCNConv(
        Lorentz(c), 3, 2, add_self_loops=add_self_loops, local=how == "local",
        activation=torch.tanh, out_manifold=Lorentz(later),
    ).double()  # fmt: skip
    torch.nn.init.normal_(layer.linear.bias)
    lorentz, x = geoopt.Lorentz(torch.tensor(1 / c, dtype=DTYPE)), nodes(layer)
    pad = torch.nn.functional.pad
    h = lorentz.expmap0(pad(lorentz.logmap0(x)[:, 1:] @ layer.linear.weight.T, (1, 0)))
    bias = pad(layer.linear.bias, (1, 0)).expand(NUM_NODES, 3)
    h = lorentz.expmap(h, lorentz.transp0(h, bias))
    matrix = incoming(layer)
    y = torch.stack(
        [mean(layer.manifold, h, row, own, how) for row, own in zip(matrix, h, strict=True)]
    )
    after = geoopt.Lorentz(torch.tensor(1 / later, dtype=DTYPE))
    expected = after.expmap0(pad(torch.tanh(lorentz.logmap0(y)[:, 1:]), (1, 0)))
    # geoopt's logarithm of a point at itself is off by 1e-8
    torch.testing.assert_close(layer(x, EDGES, WEIGHTS), expected, rtol=1e-6, atol=1e-6)


def test_a_flat_hyperboloid_is_a_gcn_with_row_normalised_weights():
    """As c tends to 0, the centroid tends to the weighted mean of ordinary vectors."""
    layer = CentroidConv(Lorentz(c=1e-10), 3, 2, normalize=False).double()
    v = torch.randn(NUM_NODES, 3, dtype=DTYPE, generator=torch.Generator().manual_seed(3))
    y = layer(layer.manifold.expmap0(layer.manifold.lift(v)), EDGES, WEIGHTS)
    matrix = incoming(layer)
    expected = matrix / matrix.sum(1, keepdim=True) @ (v @ layer.linear.weight[:, 1:].T)
    torch.testing.assert_close(y[:, 1:], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_a_node_without_edges_keeps_its_own_point(name):
    layer = make(name)
    x = nodes(layer)
    alone = layer(x, torch.empty(2, 0, dtype=torch.int64))
    y = layer.linear(x)
    if isinstance(layer, HGCNConv) and layer.activation is not None:
        y = layer.out_manifold.expmap0(layer.manifold.logmap0(y).relu())
    torch.testing.assert_close(alone, y, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer(x, EDGES, WEIGHTS)[4], y[4], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_the_order_of_nodes_and_edges_does_not_matter(name):
    layer = make(name)
    x = nodes(layer)
    order = torch.tensor([3, 0, 4, 1, 2])
    place = order.argsort()
    moved = layer(x[order], place[EDGES].flip(1), WEIGHTS.flip(0))
    torch.testing.assert_close(moved, layer(x, EDGES, WEIGHTS)[order], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_matrix_is_the_same_graph(name, layout):
    layer = make(name)
    x = nodes(layer).requires_grad_()
    adj_t = sparse(EDGES, WEIGHTS, NUM_NODES, NUM_NODES)
    adj_t = adj_t.to_sparse_csr() if layout == torch.sparse_csr else adj_t
    by_edges, by_matrix = layer(x, EDGES, WEIGHTS), layer(x, adj_t)
    torch.testing.assert_close(by_matrix, by_edges, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (by_edges, by_matrix)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", [CentroidConv, HGCNConv])
def test_a_bipartite_graph_has_sources_and_targets(kind):
    layer = kind(Lorentz(), 3, 2, normalize=False, add_self_loops=False).double()
    left, right = nodes(layer, 4), nodes(layer, 3, seed=9)
    edges = torch.tensor([[0, 1, 3], [0, 0, 2]])  # no edge ends at target 1
    y = layer((left, right), edges)
    assert y.shape == (3, 3)
    torch.testing.assert_close(y[1], layer.linear(right)[1])
    if kind is CentroidConv:
        torch.testing.assert_close(y[0], layer.manifold.centroid(layer.linear(left)[:2]))
        adj_t = sparse(edges, torch.ones(3), 3, 4)
        torch.testing.assert_close(layer((left, right), adj_t), y)
    torch.testing.assert_close(y[2], layer.linear(left)[3], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("radius", [1.0, 6.0, 10.0])
def test_float32_keeps_centroids_far_out(radius):
    """A sum in float32 would be wrong by 4 at radius 10: its Lorentz norm is pure rounding."""
    layer = CentroidConv(Lorentz(), 3, 3, normalize=False, bias=False)
    with torch.no_grad():
        layer.linear.weight.copy_(torch.eye(4)[1:])
    x = nodes(layer, dtype=torch.float32)
    v = torch.nn.functional.normalize(x[:, 1:], dim=-1) * radius
    x = layer.manifold.expmap0(layer.manifold.lift(v))
    y = layer(x, EDGES).double()
    exact = copy.deepcopy(layer).double()(x.double(), EDGES)
    assert (Lorentz().dist(y, exact) <= 1e-5).all()


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("radius", [0.0, 1e-6, 1.0, 30.0])
def test_outputs_lie_on_the_hyperboloid_and_are_finite(name, dtype, radius):
    layer = make(name, dtype=dtype)
    x = nodes(layer, dtype=dtype, radius=radius).requires_grad_()
    y = layer(x, EDGES, WEIGHTS.to(dtype))
    assert y.dtype == dtype
    assert outputs(layer).contains(y).all()
    gradients = torch.autograd.grad(y.sum(), [x, *layer.parameters()])
    assert all(g.isfinite().all() for g in gradients)


def test_learning_the_curvature_moves_the_hyperboloid_of_all_that_share_it():
    shared = Curvature(1.0)
    layers = CentroidConv(Lorentz(c=shared), 3, 3), HGCNConv(Lorentz(c=shared), 3, 3)
    with torch.no_grad():
        shared.raw.add_(1.0)
    for layer in layers:
        assert layer.manifold.c == shared.c
        assert layer.manifold.contains(layer(nodes(layer, dtype=torch.float32), EDGES)).all()


def test_self_loops_and_normalisation_are_those_of_pyg():
    layer = CentroidConv(Lorentz(), 3, 2)
    edges, weight = gcn_norm(EDGES, WEIGHTS, NUM_NODES)
    dense = to_dense_adj(edges, edge_attr=weight, max_num_nodes=NUM_NODES)[0].T
    torch.testing.assert_close(incoming(layer), dense.to(DTYPE))


def test_the_tangent_map_starts_as_a_linear_map_of_tangents():
    layer = TangentLinear(Lorentz(c=0.5), 3, 2).double()
    v = torch.randn(4, 3, dtype=DTYPE, generator=torch.Generator().manual_seed(0))
    space = layer.manifold
    y = space.logmap0(layer(space.expmap0(space.lift(v))))[:, 1:]
    torch.testing.assert_close(y, v @ layer.weight.T)
