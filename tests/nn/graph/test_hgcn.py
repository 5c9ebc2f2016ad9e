"""HGCN by tangents compared with slow transcriptions, point by point and node by node."""

import math

import geoopt
import pytest
import torch

from benchmarks.layers import hgcn
from fedbolic.manifolds import Curvature, Lorentz, Poincare, to_lorentz, to_poincare
from fedbolic.nn import TangentLinear
from fedbolic.nn.graph.convolution import HGCN, CentroidConv, HGCNConv

# 0 -> 1 -> 2 -> 0, 3 -> 1, a loop at 3, no edges at 4
EDGES = torch.tensor([[0, 1, 2, 3, 3], [1, 2, 0, 1, 3]])
WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 3.0, 0.7], dtype=torch.float64)
NUM_NODES, DIM = 5, 3
KINDS = (Lorentz, Poincare)

every_kind = pytest.mark.parametrize("kind", KINDS)


def tangents(seed=1, radius=1.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(NUM_NODES, DIM, generator=generator, dtype=torch.float64) * radius


def ball_points(v, c):
    """Points of geoopt's ball at the distances ``|v|``."""
    return geoopt_ball(c).expmap0(v / 2)


def geoopt_ball(c):
    return geoopt.PoincareBall(torch.tensor(c, dtype=torch.float64))


def points(kind, v, c):
    x = ball_points(v, c)
    return x if kind is Poincare else to_lorentz(Poincare(c), x)


def in_ball(kind, x, c):
    return x if kind is Poincare else to_poincare(Lorentz(c), x)


def randomised(module, seed=0):
    """The module in float64 with random parameters, in evaluation."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double().eval()
    with torch.no_grad():
        for name, value in module.named_parameters():
            if not name.endswith("raw"):
                value.copy_(torch.randn(value.shape, generator=generator) / 2)
    return module


def edge_weights(layer, h):
    """Weights of the mean as a matrix, from a loop over edges; rows are targets."""
    matrix = torch.zeros(NUM_NODES, NUM_NODES, dtype=torch.float64)
    gate = torch.ones_like(matrix)
    edges = [(s, t, w) for (s, t), w in zip(EDGES.T.tolist(), WEIGHTS.tolist(), strict=True)]
    edges += [(i, i, 1.0) for i in range(NUM_NODES) if (i, i) not in EDGES.T.tolist() and i != 3]
    for source, target, weight in edges:
        matrix[target, source] += weight
        if layer.attention is not None:
            pair = torch.cat((h[target], h[source]))
            score = layer.attention.linear(pair).item()
            if layer.attention.score == "softmax":
                matrix[target, source] *= math.exp(score)
            else:
                gate[target, source] = 1 / (1 + math.exp(-score))
    return gate * matrix / matrix.sum(1, keepdim=True)


def transcription(layer, x, c, later):
    """The layer in geoopt's ball, with a point after every step and the nodes in a loop."""
    ball, after = geoopt_ball(c), geoopt_ball(later)
    weight, bias = layer.linear.weight, layer.linear.bias
    h = ball.mobius_add(ball.mobius_matvec(weight, x), ball.expmap0(bias / 2))
    shares = edge_weights(layer, 2 * ball.logmap0(h))
    rows = []
    for i in range(NUM_NODES):
        row = torch.zeros(h.shape[1], dtype=torch.float64)
        for j in range(NUM_NODES):
            toward = ball.logmap(h[i], h[j]) if layer.local else ball.logmap0(h[j])
            row = row + shares[i, j] * toward
        rows.append(ball.expmap(h[i], row) if layer.local else ball.expmap0(row))
    v = torch.tanh(2 * ball.logmap0(torch.stack(rows)))
    return after.expmap0(v / 2)


@every_kind
@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("attention", [None, "softmax", "sigmoid"])
@pytest.mark.parametrize(("c", "later"), [(1.0, 1.0), (0.5, 1.7)])
def test_a_layer_is_its_transcription(kind, local, attention, c, later):
    layer = randomised(
        HGCNConv(
            kind(c), DIM, 2, local=local, attention=attention, activation=torch.tanh,
            out_manifold=kind(later),
        )
    )  # fmt: skip
    v = tangents()
    found = in_ball(kind, layer(points(kind, v, c), EDGES, WEIGHTS), later)
    expected = transcription(layer, ball_points(v, c), c, later)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


@every_kind
@pytest.mark.parametrize("bias", [True, False])
def test_a_tangent_map_is_the_mobius_one_of_geoopt(kind, bias):
    layer = randomised(TangentLinear(kind(c=0.6), DIM, 4, bias=bias))
    v, ball = tangents(radius=2.0), geoopt_ball(0.6)
    expected = ball.mobius_matvec(layer.weight, ball_points(v, 0.6))
    if bias:
        expected = ball.mobius_add(expected, ball.expmap0(layer.bias / 2))
    found = layer(points(kind, v, 0.6))
    torch.testing.assert_close(in_ball(kind, found, 0.6), expected, rtol=1e-9, atol=1e-9)
    by_tangents = ball_points(layer.tangents(v), 0.6)
    torch.testing.assert_close(by_tangents, expected, rtol=1e-9, atol=1e-9)


@every_kind
@pytest.mark.parametrize("shared", [True, False])
def test_tangents_handed_on_give_the_points_of_layer_after_layer(kind, shared):
    curvature = Curvature(torch.tensor(0.6, dtype=torch.float64)) if shared else 0.6
    layers = [
        HGCNConv(kind(c=2.0), DIM, 4, activation=torch.relu, out_manifold=kind(c=curvature)),
        HGCNConv(kind(c=curvature), 4, 4, local=False, attention="softmax"),
        HGCNConv(kind(c=curvature), 4, 2, local=False),
    ]
    network = randomised(HGCN(*layers))
    x = points(kind, tangents(), 2.0)
    expected = x
    for layer in layers:
        expected = layer(expected, EDGES, WEIGHTS)
    torch.testing.assert_close(network(x, EDGES, WEIGHTS), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [hgcn.Size(40, 6, 3, 1), hgcn.Size(40, 6, 3, 3)], ids=str)
def test_all_rows_of_the_benchmark_compute_the_same_points(size):
    balls = {
        name: in_ball(row.kind, row.layer(*row.inputs(size)), 1.0)
        for name, row in hgcn.candidates(size, "cpu").items()
    }
    for y in balls.values():
        torch.testing.assert_close(y, balls[hgcn.PUBLISHED], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("radius", [1e-6, 1.0, 6.0])
def test_float32_gives_the_points_of_float64(radius):
    layer = randomised(HGCNConv(Lorentz(), DIM, 2, local=False))
    v = torch.nn.functional.normalize(tangents(), dim=-1) * radius
    exact = layer.tangents(v, EDGES)
    found = layer.float().tangents(v.float(), EDGES)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-6)


def test_a_centroid_in_the_ball_is_that_on_the_hyperboloid():
    """The same weights give the same map: the linear maps agree at the origin's tangents."""
    layer = randomised(CentroidConv(Poincare(c=0.7), DIM, 2))
    x = points(Poincare, tangents(), 0.7)
    flat = CentroidConv(Lorentz(c=0.7), 2, 2).double()
    with torch.no_grad():
        flat.linear.weight.copy_(torch.eye(3)[1:])
    y = to_lorentz(Poincare(0.7), layer.linear(x))
    expected = to_poincare(Lorentz(0.7), flat(y, EDGES, WEIGHTS))
    torch.testing.assert_close(layer(x, EDGES, WEIGHTS), expected, rtol=1e-9, atol=1e-9)


def test_the_flat_ball_takes_weighted_means():
    layer = randomised(CentroidConv(Poincare(c=0.0), DIM, 2, normalize=False))
    x = tangents()
    y, matrix = layer.linear(x), torch.eye(NUM_NODES, dtype=torch.float64)
    matrix[3, 3] = 0.0
    for (source, target), weight in zip(EDGES.T.tolist(), WEIGHTS.tolist(), strict=True):
        matrix[target, source] += weight
    expected = matrix / matrix.sum(1, keepdim=True) @ y
    torch.testing.assert_close(layer(x, EDGES, WEIGHTS), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("setting", ["drop_connect", "edge_dropout"])
@pytest.mark.parametrize("local", [True, False])
def test_dropout_acts_in_training_only_and_keeps_the_mean(setting, local):
    """The mean over masks of a linear layer is the layer without dropout."""
    settings = {"bias": False, "local": local, "attention": "softmax"}
    plain = randomised(HGCNConv(Lorentz(), DIM, 2, **settings))
    layer = HGCNConv(Lorentz(), DIM, 2, **settings, **{setting: 0.5}).double()
    with torch.no_grad():
        for own, value in zip(layer.parameters(), plain.parameters(), strict=True):
            own.copy_(value)
    v = tangents(radius=0.01)  # near the origin the layer is linear but for its attention
    expected = plain.tangents(v, EDGES, WEIGHTS)
    layer.eval()
    torch.testing.assert_close(layer.tangents(v, EDGES, WEIGHTS), expected)
    layer.train()
    drawn = torch.stack([layer.tangents(v, EDGES, WEIGHTS) for _ in range(100)])
    assert drawn.std(0).max() > 1e-3
    error = drawn.std(0) / 100**0.5
    assert ((drawn.mean(0) - expected).abs() <= 5 * error + 1e-3 * expected.abs().max()).all()


def test_layers_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="HGCN needs a layer, got none"):
        HGCN()
    with pytest.raises(ValueError, match=r"layer 2 must take .*4 dimensions of Lorentz .* got 5"):
        HGCN(HGCNConv(Lorentz(), 3, 4), HGCNConv(Lorentz(), 5, 2))
    with pytest.raises(ValueError, match=r"curvature 0\.5, got .* with curvature 1\.0: share one"):
        HGCN(
            HGCNConv(Lorentz(), 3, 4, out_manifold=Lorentz(c=0.5)),
            HGCNConv(Lorentz(), 4, 2),
        )
    with pytest.raises(ValueError, match="got 4 dimensions of Poincare"):
        HGCN(HGCNConv(Lorentz(), 3, 4), HGCNConv(Poincare(), 4, 2))
    with pytest.raises(ValueError, match="a learnt curvature"):
        HGCN(HGCNConv(Lorentz(c=Curvature(1.0)), 3, 4), HGCNConv(Lorentz(c=Curvature(1.0)), 4, 2))


def test_unknown_attention_and_rates_are_refused():
    with pytest.raises(ValueError, match=r"p must lie in \[0, 1\), got 1.0"):
        HGCNConv(Lorentz(), 3, 2, drop_connect=1.0)
    with pytest.raises(ValueError, match=r"p must lie in \[0, 1\), got -0.1"):
        HGCNConv(Lorentz(), 3, 2, edge_dropout=-0.1)
