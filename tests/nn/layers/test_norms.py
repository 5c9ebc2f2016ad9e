"""G19: batch norm and the other normalization layers."""

import itertools

import pytest
import torch
from torch import nn

from fedbolic.manifolds import Curvature, Lorentz, Poincare, to_poincare
from fedbolic.nn import HyperbolicBatchNorm, HyperbolicLayerNorm, Linear
from fedbolic.nn.functional.coordinates import from_tangent, space_part
from fedbolic.nn.network.model import Model
from tests.federated.simple_method import assert_near
from tests.nn.cases import points

KINDS = (Lorentz, Poincare)
every_kind = pytest.mark.parametrize("kind", KINDS)


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def batch(kind, c=1.0, *, seed=0, n=40):
    """Points around a point other than the origin."""
    return points(kind, c, 0.6 * normal(n, 3, seed=seed) + torch.tensor([1.0, -0.5, 0.3]).double())


def shaken(kind, c=1.0, **settings):
    layer = HyperbolicBatchNorm(kind(c), 3, **settings).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([0.5, 1.0, 2.0]))
        layer.bias.copy_(torch.tensor([0.3, -0.2, 0.9]))
    return layer


@every_kind
@pytest.mark.parametrize("c", [0.1, 1.0, 4.0])
def test_g19_a_batch_is_centred_on_the_learnt_point_and_scaled(kind, c):
    layer = shaken(kind, c)
    y = layer(batch(kind, c))
    center = from_tangent(kind(c), layer.bias)
    torch.testing.assert_close(kind(c).centroid(y), center, rtol=1e-8, atol=1e-8)
    plain = HyperbolicBatchNorm(kind(c=c), 3, affine=False).double()
    s = space_part(kind(c), plain(batch(kind, c)))
    torch.testing.assert_close(s.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(s.var(0, correction=0), torch.ones(3).double(), rtol=1e-3, atol=0)


@every_kind
def test_g19_an_output_of_evaluation_does_not_depend_on_the_batch(kind):
    layer, x = shaken(kind), batch(kind)
    for seed in range(3):
        layer(batch(kind, seed=seed))
    layer.eval()
    before = {name: value.clone() for name, value in layer.named_buffers()}
    together = layer(x)
    for i in (0, 7):
        torch.testing.assert_close(layer(x[i]), together[i])
        torch.testing.assert_close(layer(x[i : i + 1]), together[i : i + 1])
    torch.testing.assert_close(layer(x.reshape(2, 20, -1)), together.reshape(2, 20, -1))
    for name, value in layer.named_buffers():
        assert torch.equal(value, before[name])


@every_kind
def test_g19_running_statistics_are_in_the_state_dict_and_follow_the_batches(kind):
    layer, x = shaken(kind, momentum=1.0), batch(kind)
    assert {"running_mean", "running_var"} <= layer.state_dict().keys()
    trained = layer(x)
    space = kind()
    torch.testing.assert_close(layer.running_mean, space_part(space, space.centroid(x)))
    correction = torch.tensor(40 / 39).sqrt().double()
    with torch.no_grad():
        layer.weight.mul_(correction)
    torch.testing.assert_close(layer.eval()(x), trained, rtol=1e-5, atol=1e-5)
    layer.reset_running_stats()
    assert layer.running_mean.abs().max() == 0
    assert layer.running_var.sub(1).abs().max() == 0


@every_kind
def test_g19_a_running_mean_moves_along_the_geodesic(kind):
    layer, space, x = shaken(kind, momentum=0.25), kind(), batch(kind)
    layer(x)
    origin, mean = space.origin(x.shape[-1], dtype=torch.float64), space.centroid(x)
    s = layer.running_mean
    now = (
        torch.cat(((1 + s.square().sum()).sqrt().unsqueeze(0), s))
        if kind is Lorentz
        else s / (1 + (1 + s.square().sum()).sqrt())
    )
    assert 0.05 < space.dist0(now) / space.dist0(mean) < 0.5
    torch.testing.assert_close(
        space.dist(origin, now) + space.dist(now, mean), space.dist(origin, mean)
    )


def test_batch_norm_of_flat_space_is_torchs():
    layer = shaken(Poincare, 0.0)
    plain = nn.BatchNorm1d(3).double()
    state = {name: value for name, value in layer.state_dict().items() if "extra" not in name}
    plain.load_state_dict({**state, "num_batches_tracked": torch.tensor(0)})  # it has no curvature
    for seed in range(3):
        x = normal(20, 3, seed=seed) + 1
        torch.testing.assert_close(2 * layer(x), plain(2 * x))  # the ball doubles lengths
    for name, value in layer.named_buffers():
        torch.testing.assert_close(value, dict(plain.named_buffers())[name])
    torch.testing.assert_close(2 * layer.eval()(x), plain.eval()(2 * x))


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_both_models_is_the_same(training):
    lorentz, ball = (shaken(kind, 0.7).train(training) for kind in KINDS)
    x = batch(Lorentz, 0.7)
    torch.testing.assert_close(
        ball(to_poincare(Lorentz(0.7), x)), to_poincare(Lorentz(0.7), lorentz(x))
    )
    for value, other in zip(lorentz.buffers(), ball.buffers(), strict=True):
        torch.testing.assert_close(value, other)


def network(kind=Lorentz):
    curvature = Curvature(0.7)
    layers = [HyperbolicBatchNorm(kind(c=curvature), 3)]
    if kind is Lorentz:
        layers.insert(0, Linear(Lorentz(c=curvature), 3, 3))
    return nn.Sequential(*layers).double()


@every_kind
def test_a_model_knows_that_hyperbolic_batch_norm_mixes_examples(kind):
    assert Model(lambda: network(kind)).mixes_examples
    assert not Model(lambda: nn.Sequential(HyperbolicLayerNorm(kind(), 3))).mixes_examples


@every_kind
def test_many_networks_with_batch_norm_at_once_are_each_of_them(kind):
    model = Model(lambda: network(kind))
    parameters, buffers = model.init(seed=1)
    many = [
        {n: v + 0.1 * normal(*v.shape, seed=i) for n, v in parameters.items()} for i in range(3)
    ]
    x = torch.stack([batch(kind, 0.7, seed=i, n=6) for i in range(3)])

    def loss(parameters, buffers, x):
        y, buffers = model(parameters, buffers, x, training=True)
        return y.square().mean(), buffers

    step = torch.func.grad_and_value(loss, has_aux=True)
    stacked = {name: torch.stack([one[name] for one in many]) for name in parameters}
    shared = {name: value.expand(3, *value.shape) for name, value in buffers.items()}
    gradients, (losses, new) = torch.vmap(step)(stacked, shared, x)
    for i, one in enumerate(many):
        gradient, (value, after) = step(one, buffers, x[i])
        torch.testing.assert_close(losses[i], value)
        assert_near({n: g[i] for n, g in gradients.items()}, gradient, 1e-9)
        assert_near({n: b[i] for n, b in new.items()}, after, 1e-9)
        assert after[next(n for n in after if "mean" in n)].abs().max() > 0


@every_kind
def test_layer_norm_is_that_of_the_space_coordinates(kind):
    layer = HyperbolicLayerNorm(kind(c=0.7), 3).double()
    plain = nn.LayerNorm(3).double()
    state = {"weight": normal(3), "bias": normal(3, seed=1)}
    layer.load_state_dict(state)
    plain.load_state_dict(state)
    x = batch(kind, 0.7)
    space = kind(0.7)
    torch.testing.assert_close(space_part(space, layer(x)), plain(space_part(space, x)))


def test_norms_stay_on_the_space_at_any_curvature():
    for kind, c in itertools.product(KINDS, (0.01, 1.0, 100.0)):
        for layer in (
            HyperbolicBatchNorm(kind(c=c), 3),
            HyperbolicLayerNorm(kind(c=c), 3),
        ):
            assert kind(c).contains(layer(batch(kind, c).float())).all()
