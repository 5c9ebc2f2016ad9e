"""Layers from points to points or numbers match their definitions, and both models agree."""

import math

import geoopt
import pytest
import torch
from torch import nn

from fedbolic.manifolds import Lorentz, Poincare, to_lorentz, to_poincare
from fedbolic.nn import (
    BusemannHead,
    CentroidPool,
    ChangeCurvature,
    HyperbolicEmbedding,
    HyperbolicResidual,
    LorentzAttention,
    PrototypeHead,
    SpaceActivation,
    TangentActivation,
    TangentDropout,
)
from fedbolic.nn.functional.coordinates import to_tangent
from tests.nn.cases import CASES, points

KINDS = (Lorentz, Poincare)
every_kind = pytest.mark.parametrize("kind", KINDS)
every_curvature = pytest.mark.parametrize("c", [0.1, 1.0, 4.0])


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


OWN = ("Linear", "Linear without bias", "Linear with an activation", "MLR", "CentroidConv")
OF_BOTH = [
    name
    for name in (name.removeprefix("Lorentz ") for name in CASES if name.startswith("Lorentz "))
    if "Residual" not in name and name not in OWN
]
"""Layers that exist in both models and whose parameters mean the same."""


@every_curvature
@pytest.mark.parametrize("name", OF_BOTH)
def test_a_layer_of_both_models_does_the_same(name, c):
    lorentz, ball = CASES[f"Lorentz {name}"], CASES[f"Poincare {name}"]
    before = 1.0 if name == "ChangeCurvature" else c
    x = lorentz.inputs(before)
    there = to_poincare(Lorentz(before), x) if lorentz.kind is Lorentz else x
    y, z = lorentz.make(c)(x), ball.make(c)(there)
    expected = y if lorentz.gives is None else to_poincare(Lorentz(c), y)
    torch.testing.assert_close(z, expected, rtol=1e-8, atol=1e-8)


@every_curvature
def test_an_activation_of_space_coordinates_is_the_function_of_them(c):
    x = points(Lorentz, c, normal(10, 3))
    y = SpaceActivation(Lorentz(c=c), torch.relu)(x)
    assert torch.equal(y[..., 1:], x[..., 1:].relu())


@every_kind
@every_curvature
def test_an_activation_of_tangents_is_geoopts_exp_of_the_function_of_log(kind, c):
    x = points(kind, c, normal(10, 3))
    y = TangentActivation(kind(c=c), torch.tanh)(x)
    ball = geoopt.PoincareBall(c=torch.tensor(c, dtype=torch.float64))
    there = to_poincare(Lorentz(c), x) if kind is Lorentz else x
    expected = ball.expmap0(torch.tanh(2 * ball.logmap0(there)) / 2)  # the ball doubles lengths
    got = to_poincare(Lorentz(c), y) if kind is Lorentz else y
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@every_kind
def test_dropout_drops_its_share_in_training_and_nothing_in_evaluation(kind):
    layer = TangentDropout(kind(), p=0.25)
    x = points(kind, 1.0, 0.5 + 0.1 * normal(4000, 3))
    torch.manual_seed(0)
    y = layer(x)
    assert kind().contains(y).all()
    v, w = to_tangent(kind(), x), to_tangent(kind(), y)
    dropped = w == 0
    assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.02)
    torch.testing.assert_close(w[~dropped], v[~dropped] / 0.75)
    assert torch.equal(layer.eval()(x), x)
    assert torch.equal(TangentDropout(kind(), p=0.0)(x), x)


@every_kind
@every_curvature
@pytest.mark.parametrize("weighted", [True, False])
def test_pooling_is_the_centroid_of_its_formula_along_any_axis(kind, c, weighted):
    x = points(kind, c, normal(4, 5, 2, 3))
    weights = normal(4, 5, 2, seed=1).abs() if weighted else None
    lorentz = x if kind is Lorentz else to_lorentz(Poincare(c), x)
    for dim in (-2, 0, 1, -3):
        axis = dim % 4
        w = torch.ones(4, 5, 2).double() if weights is None else weights
        total = (w.unsqueeze(-1) * lorentz).sum(axis)
        size = total[..., 0].square() - total[..., 1:].square().sum(-1)
        expected = total / (c * size).sqrt().unsqueeze(-1)
        y = CentroidPool(kind(c=c), dim)(x, weights)
        got = y if kind is Lorentz else to_lorentz(Poincare(c), y)
        torch.testing.assert_close(got, expected)


@every_kind
def test_a_residual_lies_on_the_geodesic_between_the_point_and_its_branch(kind):
    target = points(kind, 1.0, normal(10, 3, seed=1))

    class Branch(nn.Module):
        def forward(self, x):
            return target

    layer = HyperbolicResidual(kind(), Branch()).double()
    x, space = points(kind, 1.0, normal(10, 3)), kind()
    y = layer(x)
    torch.testing.assert_close(space.dist(x, y), space.dist(x, target) / 2)
    torch.testing.assert_close(space.dist(y, target), space.dist(x, target) / 2)
    with torch.no_grad():
        layer.log_weight.fill_(-40.0)
    torch.testing.assert_close(layer(x), x)


@every_kind
@pytest.mark.parametrize("old", [1e-2, 1.0, 10.0])
@pytest.mark.parametrize("new", [0.1, 1.0, 30.0])
def test_g18_a_change_of_curvature_is_a_scaled_isometry_on_the_space(kind, old, new):
    layer = ChangeCurvature(kind(old), kind(new))
    x, y = (points(kind, old, normal(50, 3, seed=s) / old**0.5).float() for s in (0, 1))
    z = layer(x)
    if kind is Lorentz:
        exact = z.double()
        square = exact[..., 1:].square().sum(-1) - exact[..., 0].square()
        error = (new * square + 1).abs() / (new * exact[..., 0].square())
        assert error.max() <= 1e-6
    assert kind(new).contains(z).all()
    radii = [s**0.5 * kind(s).dist(a, b) for s, a, b in ((old, x, y), (new, z, layer(y)))]
    torch.testing.assert_close(radii[1], radii[0], rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(ChangeCurvature(kind(new), kind(old))(z), x, rtol=1e-5, atol=1e-5)


@every_kind
@every_curvature
def test_embedded_points_lie_at_the_lengths_of_their_tangents(kind, c):
    layer = HyperbolicEmbedding(kind(c=c), 10, 3).double()
    with torch.no_grad():
        layer.weight.copy_(normal(10, 3))
    index = torch.tensor([[3, 3], [9, 0]])
    torch.testing.assert_close(kind(c).dist0(layer(index)), layer.weight[index].norm(dim=-1))


@every_kind
@every_curvature
def test_prototype_logits_are_minus_geoopts_squared_distances(kind, c):
    head = PrototypeHead(kind(c=c), 3, 5).double()
    x = points(kind, c, normal(2, 4, 3))
    ball = geoopt.PoincareBall(c=torch.tensor(c, dtype=torch.float64))
    there, prototypes = (
        to_poincare(Lorentz(c), p) if kind is Lorentz else p for p in (x, head.prototypes)
    )
    expected = -ball.dist(there.unsqueeze(-2), prototypes).square()
    torch.testing.assert_close(head(x), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(kind(c).dist0(head.prototypes), head.weight.norm(dim=-1))


@every_curvature
def test_busemann_logits_are_those_of_the_closed_form_in_the_ball(c):
    head = BusemannHead(Poincare(c=c), 3, 5).double()
    x = points(Poincare, c, normal(10, 3))
    size = head.weight.norm(dim=-1)
    ideal = head.weight / size.unsqueeze(-1)
    gap = (ideal - c**0.5 * x.unsqueeze(-2)).square().sum(-1)
    expected = head.bias - size * (gap / (1 - c * x.square().sum(-1, keepdim=True))).log() / c**0.5
    torch.testing.assert_close(head(x), expected)


@every_kind
def test_a_busemann_function_is_the_limit_of_distances(kind):
    head = BusemannHead(kind(), 3, 1, bias=False).double()
    x, t = points(kind, 1.0, normal(10, 3)), 15.0
    ray = head.weight / head.weight.norm() * t
    limit = kind().dist(x, points(kind, 1.0, ray)) - t
    torch.testing.assert_close(
        head(x).squeeze(-1), -head.weight.norm() * limit, rtol=1e-7, atol=1e-7
    )


@every_kind
def test_a_busemann_function_is_right_to_five_radii_along_its_ray_and_bounded_beyond(kind):
    head = BusemannHead(kind(), 3, 64, bias=False)
    size = head.weight.norm(dim=-1)
    for radius in (0.0, 1e-3, 1.0, 3.0, 5.0, 10.0, 15.0, 30.0):
        x = points(kind, 1.0, (radius * head.weight / size.unsqueeze(-1)).detach())
        towards = (head(x) / size).diagonal()
        far = Lorentz().dist0(x if kind is Lorentz else to_lorentz(Poincare(), x))
        if radius <= 5:
            torch.testing.assert_close(towards, far, rtol=2e-3, atol=1e-6)
        assert (towards <= far * (1 + 1e-5)).all()


def brute_attention(layer, x, context, mask):
    """Attention computed one query, head and pair at a time."""
    c, heads, d = 1.0, layer.num_heads, layer.embed_dim // layer.num_heads

    def lifted(linear, p, h):
        s = linear(p)[1:][h * d : (h + 1) * d]
        return torch.cat(((1 / c + s.dot(s)).sqrt().unsqueeze(0), s))

    def inner(p, q):
        return p[1:].dot(q[1:]) - p[0] * q[0]

    rows = []
    for i in range(len(x)):
        parts = []
        for h in range(heads):
            q = lifted(layer.query, x[i], h)
            seen = [j for j in range(len(context)) if mask is None or mask[i, j]]
            keys = [lifted(layer.key, context[j], h) for j in seen]
            scores = torch.stack([-(-2 / c - 2 * inner(q, k)) / math.sqrt(d) for k in keys])
            weights = scores.exp() / scores.exp().sum()
            values = [lifted(layer.value, context[j], h) for j in seen]
            total = sum(w * v for w, v in zip(weights, values, strict=True))
            parts.append((total / (-c * inner(total, total)).sqrt())[1:])
        s = torch.cat(parts)
        rows.append(layer.out(torch.cat(((1 / c + s.dot(s)).sqrt().unsqueeze(0), s))))
    return torch.stack(rows)


@pytest.mark.parametrize("masked", [True, False])
def test_attention_is_what_it_is_one_pair_at_a_time(masked):
    torch.manual_seed(0)
    layer = LorentzAttention(Lorentz(), 4, 2).double()
    x, context = points(Lorentz, 1.0, normal(3, 4)), points(Lorentz, 1.0, normal(5, 4, seed=1))
    mask = (normal(3, 5, seed=2) > 0) | torch.eye(3, 5).bool() if masked else None
    expected = brute_attention(layer, x, context, mask)
    torch.testing.assert_close(layer(x, context, mask=mask), expected)
    many = layer(x.expand(2, 3, 5), context.expand(2, 5, 5), mask=mask)
    torch.testing.assert_close(many[1], expected)


def test_attention_to_oneself_does_not_depend_on_the_order():
    layer = LorentzAttention(Lorentz(), 4, 2).double()
    x = points(Lorentz, 1.0, normal(6, 4))
    order = torch.tensor([3, 1, 0, 5, 4, 2])
    torch.testing.assert_close(layer(x[order]), layer(x)[order])


def test_attention_drops_weights_in_training_only():
    layer = LorentzAttention(Lorentz(), 4, 2, dropout=0.5).double()
    x = points(Lorentz, 1.0, normal(6, 4))
    torch.manual_seed(0)
    first, second = layer(x), layer(x)
    assert not torch.equal(first, second)
    assert Lorentz().contains(first).all()
    assert torch.equal(layer.eval()(x), layer(x))
