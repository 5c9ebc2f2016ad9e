"""Residual networks of points: sizes, the flat limit written with torch, and federated training."""

import math

import pytest
import torch
from torch.nn.functional import batch_norm, conv2d, layer_norm, linear

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data import IID, Digits, Partitioned
from fedbolic.federated import LocalTraining
from fedbolic.manifolds import Curvature
from fedbolic.methods import FedAvg
from fedbolic.nn.network.hyperbolic_resnet import HyperbolicResNet
from fedbolic.nn.network.resnet import ResNet

CIFAR = Meta(10, (3, 32, 32), 1)
every_model = pytest.mark.parametrize("model", ["lorentz", "poincare"])
every_norm = pytest.mark.parametrize("norm", ["batch", "gyro", "layer"])


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def count(module):
    return sum(value.numel() for value in module.parameters())


def small(model, norm="batch", *, c=1.0, shape=(2, 6, 8)):
    torch.manual_seed(0)
    backbone = HyperbolicResNet(5, blocks=(1, 1), width=4, model=model, norm=norm, c=c)
    network = backbone.build(Meta(10, shape, 1)).double()
    with torch.no_grad():
        for i, value in enumerate(network.parameters()):
            if value.ndim < 2:  # the time columns of matrices stay 0: they have no flat limit
                value.add_(0.3 * draw(*value.shape, seed=i))
    return network


@pytest.mark.parametrize(
    ("blocks", "width", "layers"), [((3, 3, 3), 16, 20), ((2, 2, 2, 2), 64, 18)]
)
def test_the_lorentz_network_is_the_flat_one_with_time_columns(blocks, width, layers):
    with torch.device("meta"):
        network = HyperbolicResNet(10, blocks, width).build(CIFAR)
        flat = ResNet(10, blocks, width, stem="cifar").build(CIFAR)
    convolutions = [m for m in network.modules() if type(m).__name__ == "Conv2d"]
    branches = [m for m in convolutions if m.window.size == 3]
    assert len(branches) + 1 == layers  # and the linear layer
    columns = sum(m.linear.weight.shape[0] for m in convolutions) + 10
    residuals = sum(blocks)
    assert count(network) == count(flat) + columns + residuals


def flat_network(network, model, norm, x, *, training):
    """The network in flat space, written with torch's functions."""
    doubled = 1 if model == "lorentz" else 2  # space coordinates of a point x of the flat ball

    def convolve(layer, x):
        size, stride, padding, _ = layer.window
        weight = layer.linear.weight[:, 1:] if model == "lorentz" else layer.linear.weight
        kernels = weight.unflatten(1, (size, size, -1)).permute(0, 3, 1, 2)
        return conv2d(x, kernels * layer.scale * doubled, stride=stride, padding=padding)

    def normalize(layer, x):
        if norm == "layer":
            y = layer_norm(x.movedim(1, -1), layer.weight.shape, eps=layer.eps)
            return (y * layer.weight + layer.bias).movedim(-1, 1)
        if norm == "gyro":
            mean, var = layer.running_mean.view(1, -1, 1, 1), layer.running_var
            if training:
                mean = x.mean((0, 2, 3), keepdim=True)
                var = (x - mean).square().sum(1).mean()
            y = (x - mean) * layer.weight / (var + layer.eps).sqrt()
            return y + layer.bias.view(1, -1, 1, 1)
        mean, var = layer.running_mean.clone(), layer.running_var.clone()
        return batch_norm(x, mean, var, layer.weight, layer.bias, training, eps=layer.eps)

    def block(layer, x):
        residual = layer.residual
        first, norm1, _, second, norm2 = residual.branch
        y = normalize(norm2, convolve(second, normalize(norm1, convolve(first, x)).relu()))
        if residual.shortcut is not None:
            x = normalize(residual.shortcut[1], convolve(residual.shortcut[0], x))
        share = residual.log_weight.sigmoid()
        return ((1 - share) * x + share * y).relu()

    conv, stem_norm, _ = network.stem
    x = normalize(stem_norm, convolve(conv, x)).relu()
    for stage in (network.stage1, network.stage2):
        for layer in stage:
            x = block(layer, x)
    x, last = x.mean((2, 3)), network.linear
    if model == "lorentz":
        return linear(x, last.weight[:, 1:], last.bias)
    return doubled * linear(x, last.weight) - 2 * last.weight.norm(dim=-1) * last.bias


@every_model
@every_norm
@pytest.mark.parametrize("training", [True, False])
def test_a_network_of_little_curvature_is_the_flat_one_written_with_torch(model, norm, training):
    network = small(model, norm, c=1e-10).train(training)
    x = draw(3, 2, 6, 8)
    expected = flat_network(network, model, norm, x, training=training)
    torch.testing.assert_close(network(x), expected, rtol=1e-6, atol=1e-6)


@every_model
@every_norm
@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 5, 9)])
def test_images_of_any_size_give_finite_features_and_gradients(model, norm, shape):
    network = small(model, norm, shape=shape)
    features = network(10 * draw(3, *shape))
    assert features.shape == (3, 5)
    gradients = torch.autograd.grad(features.square().sum(), list(network.parameters()))
    assert all(g.isfinite().all() for g in gradients)


@every_model
def test_one_curvature_is_learnt_for_the_whole_network(model):
    backbone = HyperbolicResNet(3, blocks=(1,), width=2, model=model, learnable=True)
    network = backbone.build(Meta(10, (1, 4, 4), 1))
    assert sum(isinstance(m, Curvature) for m in network.modules()) == 1
    assert sum(name.endswith("raw") for name, _ in network.named_parameters()) == 1
    network(draw(4, 1, 4, 4).float()).square().sum().backward()
    raw = next(value for name, value in network.named_parameters() if name.endswith("raw"))
    assert math.isfinite(raw.grad)
    assert raw.grad != 0


@every_model
def test_fedavg_trains_one_for_a_round(model):
    backbone = HyperbolicResNet(8, blocks=(1, 1), width=4, model=model)
    method = FedAvg(backbone=backbone, local=LocalTraining(epochs=1, batch_size=16), lr=0.1)
    data = Partitioned(Digits(), IID(2), num_train=128, num_test=20).load(Rng(0))
    client, server_state = data.clients[0], method.init(data.meta, Rng(0))
    message = method.broadcast(server_state, client.id)
    update, _ = method.local_update(message, client, {}, Rng(1))
    delta = update.payload["delta"]
    assert set(delta) == set(message["parameters"])
    assert all(value.isfinite().all() for value in delta.values())
    parameters = {k: v + delta[k] for k, v in message["parameters"].items()}
    model_, x, y = method.model(data.meta), client.train.tensors["x"], client.train.tensors["y"]
    losses = [
        torch.nn.functional.cross_entropy(
            model_(values, message["buffers"], x, training=True)[0], y
        ).item()
        for values in (message["parameters"], parameters)
    ]
    assert losses[1] < losses[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"blocks": ()}, "num_stages must be at least 1, got 0"),
        ({"blocks": (1, 0)}, "fewest_blocks must be at least 1, got 0"),
        ({"c": 0.0}, "c must be a positive number"),
    ],
)
def test_impossible_numbers_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        HyperbolicResNet(**changes)


def test_what_is_no_image_is_refused():
    with pytest.raises(ValueError, match=r"HyperbolicResNet needs images.*use MLP for tables"):
        HyperbolicResNet().build(Meta(10, (64,), 1))
