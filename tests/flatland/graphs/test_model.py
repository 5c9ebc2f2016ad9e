"""Networks compared with dense hand-made ones; points on the hyperboloid; boosts and limits."""

import math

import mpmath
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedbolic.core.types import Meta
from fedbolic.data import Graph
from fedbolic.manifolds import Curvature, Lorentz
from fedbolic.nn.functional.coordinates import hyperboloid_point
from fedbolic.nn.network.model import Model
from flatland import GCN, LorentzGCN
from flatland.graphs.blocks import graph_block
from flatland.graphs.model import FARTHEST, SpaceTimeLinear, centroids, lifted, time_of
from flatland.graphs.ricci import BOUNDS
from tests.flatland.cases import NO_EDGES, complete, graph_of, path, star

META = Meta(3, (5,), 1)
GRAPHS = [(path(9), 9), ([], 4), (complete(6), 6), (star(6), 8), ([], 1)]
CURVATURES = [0.011, 0.3, 1.0, 27.0, 99.0]

every_graph = pytest.mark.parametrize(("pairs", "n"), GRAPHS)
every_curvature = pytest.mark.parametrize("c", CURVATURES)


def residual(space, x):
    """Relative distance of points from the hyperboloid."""
    x = x.detach()
    products = -(x[..., 0] ** 2) + x[..., 1:].square().sum(-1)
    return float(((products + 1 / space.c).abs() / x[..., 0] ** 2).max())


def point_of(space, s):
    """A point with the given space coordinates and the time coordinate of the networks."""
    return torch.cat((time_of(space, s), s), -1)


def values(network, *, c=1.0, time=0.3, seed=0):
    """Parameters and buffers of a network in float64, with nonzero time coordinates."""
    model = Model(lambda: network.build(META))
    parameters, buffers = model.init(seed)
    generator = torch.Generator().manual_seed(seed)
    for name, value in parameters.items():
        parameters[name] = value.double()
        if name.endswith(("time", "bias")):
            parameters[name] = time * torch.randn(
                value.shape, generator=generator, dtype=torch.float64
            )
    if "curvature.raw" in parameters:
        raw = Curvature(1.0, bounds=BOUNDS).raw_of(torch.tensor(c, dtype=torch.float64))
        parameters["curvature.raw"] = raw
    return model, parameters, buffers


def logits_of(model, p, buffers, graph):
    return model(p, buffers, graph_block((graph,)))[0][0]


def dense(graph):
    """A + I and the features as dense matrices."""
    a = torch.eye(len(graph), dtype=torch.float64)
    a[graph.edges[0], graph.edges[1]] = 1.0
    x = graph.features
    return a, x.to_dense() if x.is_sparse else x


def by_the_paper(graph, p, c):
    """Points, layers and head with K = 1 / c, on dense matrices."""
    a, v = dense(graph)
    a, k = a / a.sum(1, keepdim=True), 1 / c
    q, r = k**0.5, v.norm(dim=1, keepdim=True)
    u = (r / q).clamp(max=10)
    x_s = q * u.sinh() * v / torch.where(r > 0, r, 1.0)
    for layer in range(2):
        m, bias = p[f"body.{layer}.time"], p[f"body.{layer}.bias"]
        x_t = (x_s.square().sum(1, keepdim=True) + k).sqrt()
        y = x_s @ p[f"body.{layer}.space"] + x_t * m + bias
        y_t = (y.square().sum(1, keepdim=True) + k).sqrt()
        z, z_t = a @ y, a @ y_t
        x_s = (q * z / (z_t**2 - z.square().sum(1, keepdim=True)).sqrt()).relu()
    x_t = (x_s.square().sum(1, keepdim=True) + k).sqrt()
    return x_s @ p["head.space"] + x_t * p["head.time"] + p["head.bias"]


@every_graph
@every_curvature
@pytest.mark.parametrize("sparse", [False, True])
def test_the_network_is_the_papers(pairs, n, c, sparse):
    graph = graph_of(pairs, n, sparse=sparse)
    model, p, buffers = values(LorentzGCN((6, 4)), c=c)
    logits = logits_of(model, p, buffers, graph)
    assert_close(logits, by_the_paper(graph, p, c), rtol=1e-6, atol=1e-6)


@every_graph
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weights", ["symmetric", "mean"])
def test_the_flat_network_is_kipf_and_wellings(pairs, n, sparse, weights):
    graph = graph_of(pairs, n, sparse=sparse)
    model, p, buffers = values(GCN((6, 4), neighbours=weights))
    a, h = dense(graph)
    degrees = a.sum(1, keepdim=True)
    a = a / (degrees * degrees.T).sqrt() if weights == "symmetric" else a / degrees
    for layer in range(2):
        mixed = a @ h @ p[f"body.{layer}.space"]
        h = (mixed + p[f"body.{layer}.bias"]).relu()
    logits = logits_of(model, p, buffers, graph)
    assert_close(logits, h @ p["head.space"] + p["head.bias"])


@every_graph
@every_curvature
def test_points_are_on_the_hyperboloid_after_every_operation(pairs, n, c):
    graph, space = graph_of(pairs, n), Lorentz(c)
    one, (a, _) = graph_block((graph,)), dense(graph)
    means = a / a.sum(1, keepdim=True)
    factor, time = lifted(space, one.norms)
    x = torch.cat((time, factor * one.features), -1)
    assert residual(space, x) < 1e-12
    for layer in range(3):
        torch.manual_seed(layer)
        linear = SpaceTimeLinear(x.shape[-1] - 1, 7).double()
        torch.nn.init.normal_(linear.time)
        y = point_of(space, linear(x[..., :1], x[..., 1:])).detach()
        assert residual(space, y) < 1e-12
        z = means @ y
        lost = 1e-12 + 1e-15 * float(c * z[..., 0].square().max())  # far out, z's norm cancels
        z = z / (z[..., :1] ** 2 - z[..., 1:].square().sum(-1, keepdim=True)).mul(c).sqrt()
        x = point_of(space, centroids(space, y[..., 1:], one))
        assert residual(space, x) < 1e-12
        assert_close(x, z, rtol=lost, atol=lost * float(z.abs().max()))
        x = point_of(space, x[..., 1:].relu() * torch.tensor([2.0, 0.0, 2.0, 2.0, 0.0, 2, 2]))
        assert residual(space, x) < 1e-12


@every_curvature
def test_inputs_lie_as_far_from_the_origin_as_they_are_long(c):
    space = Lorentz(c)
    norm = torch.tensor([[0.0], [1e-9], [0.1], [1.0]], dtype=torch.float64)
    norm = norm * min(1.0, 9 / math.sqrt(c))
    factor, time = lifted(space, norm)
    for r, f, t in zip(norm, factor, time, strict=True):
        u = mpmath.sqrt(c) * float(r)
        expected = float(mpmath.sinh(u) / mpmath.sqrt(c))
        assert float(f * r) == pytest.approx(expected, rel=1e-12)
        assert float(t) == pytest.approx(float(mpmath.cosh(u) / mpmath.sqrt(c)), rel=1e-12)
    far, _ = lifted(space, torch.tensor([[1e3]], dtype=torch.float64))
    assert float(far) * 1e3 == pytest.approx(math.sinh(FARTHEST) / math.sqrt(c))


def test_boosts_and_rotations_are_represented_exactly():
    space, rapidity = Lorentz(0.5), 1.3
    turn = torch.linalg.qr(torch.rand(4, 4, generator=torch.Generator().manual_seed(1)).double())
    rotation = torch.eye(5, dtype=torch.float64)
    rotation[1:, 1:] = turn.Q
    boost = torch.eye(5, dtype=torch.float64)
    cosh, sinh = math.cosh(rapidity), math.sinh(rapidity)
    boost[:2, :2] = torch.tensor([[cosh, sinh], [sinh, cosh]], dtype=torch.float64)
    s = torch.randn(1, 20, 4, generator=torch.Generator().manual_seed(2)).double()
    x = hyperboloid_point(space, s)
    for moved in (rotation, boost, boost @ rotation):
        layer = SpaceTimeLinear(4, 4).double()
        with torch.no_grad():
            layer.time.copy_(moved[1:, 0])
            layer.space.copy_(moved[1:, 1:].T)
        assert_close(
            hyperboloid_point(space, layer(x[..., :1], x[..., 1:])),
            x @ moved.T,
            rtol=1e-13,
            atol=1e-13,
        )


def test_in_nearly_flat_space_features_and_centroids_are_euclidean():
    graph = graph_of(star(6), 8)
    one, a = graph_block((graph,)), dense(graph)[0]
    norm, v = one.norms, one.features
    gaps = []
    for c in (1e-2, 1e-4, 1e-6):
        factor, _ = lifted(Lorentz(c), norm)
        mean = centroids(Lorentz(c), v, one)
        expected = a / a.sum(1, keepdim=True) @ v
        gaps.append(max(float((factor * v - v).abs().max()), float((mean - expected).abs().max())))
    assert gaps[0] > 50 * gaps[1] > 2500 * gaps[2]  # gaps of order c
    assert gaps[2] < 1e-5


@pytest.mark.parametrize("c", [0.1, 3.0])  # beyond, finite differences lose their digits
def test_gradients_are_those_of_differences(c):
    graph = graph_of(star(5), 6)
    model, p, buffers = values(LorentzGCN((3,), activation="elu"), c=c)
    names = list(p)
    leaves = [p[name].requires_grad_() for name in names]

    def logits(*leaves):
        return logits_of(model, dict(zip(names, leaves, strict=True)), buffers, graph)

    assert torch.autograd.gradcheck(logits, leaves)


def test_the_gradient_at_a_node_without_features_is_finite():
    graph = graph_of(path(3), 3)
    graph.features[0] = 0.0
    model, p, buffers = values(LorentzGCN((3,)))
    p = {name: value.requires_grad_() for name, value in p.items()}
    logits = logits_of(model, p, buffers, graph)
    cross_entropy(logits, graph.labels).backward()
    assert all(value.grad.isfinite().all() for value in p.values())


@pytest.mark.parametrize("network", [GCN((6,)), LorentzGCN((6,))])
def test_the_numbering_of_nodes_changes_nothing(network):
    graph = graph_of([*star(6), (2, 3), (6, 7)], 9)
    order = torch.tensor([4, 8, 0, 2, 6, 1, 7, 3, 5])
    model, p, buffers = values(network)
    one, other = (logits_of(model, p, buffers, g) for g in (graph, graph.induced(order)))
    assert_close(one[order], other)


def test_a_sparse_product_is_never_made_dense():
    n, width = 400_000, 100_000  # dense: 320 GB
    index, value = torch.tensor([[0, 3], [7, width - 1]]), torch.ones(2, dtype=torch.float64)
    bags = torch.sparse_coo_tensor(index, value, (n, width), check_invariants=True).coalesce()
    labels = torch.zeros(n, dtype=torch.int64)
    whole = graph_block((Graph(bags, NO_EDGES, labels),))
    weight = torch.arange(width, dtype=torch.float64).unsqueeze(1).requires_grad_()
    mapped = whole.map_features(weight)
    assert mapped[0, :5].flatten().tolist() == [7, 0, 0, width - 1, 0]
    mapped.sum().backward()
    assert weight.grad.nonzero()[:, 0].tolist() == [7, width - 1]


def test_networks_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="dropout"):
        LorentzGCN(dropout=1.0)
    with pytest.raises(ValueError, match="num_widths"):
        GCN(widths=())
    with pytest.raises(ValueError, match=r"rows of features, got examples of shape \(1, 8, 8\)"):
        LorentzGCN().build(Meta(3, (1, 8, 8), 1))
