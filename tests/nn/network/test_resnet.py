import math

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn.functional import conv2d, cross_entropy, max_pool2d

from fedbolic.core.types import Meta
from fedbolic.data import HOLDOUT, Client, Examples, FederatedData
from fedbolic.federated import LocalTraining
from fedbolic.methods import FedAvg
from fedbolic.nn.network.classifier import classifier
from fedbolic.nn.network.model import Model
from fedbolic.nn.network.resnet import GlobalMean, ResidualBlock, ResNet
from tests.federated.simple_method import RNG, assert_near, average, batches, train, values

NORMS = ("batch", "batch_untracked", "group")
STEMS = ("imagenet", "cifar")
CIFAR = Meta(10, (3, 32, 32), 1)

every_norm = pytest.mark.parametrize("norm", NORMS)
every_stem = pytest.mark.parametrize("stem", STEMS)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def count(module):
    return sum(value.numel() for value in module.parameters())


def small(norm, stem="cifar", *, blocks=(1, 1), width=4, dim=5):
    return ResNet(dim, blocks=blocks, width=width, stem=stem, norm=norm)


def shaken(recipe, meta=CIFAR):
    """A float64 model and its values, with norm scales and shifts that differ from 1 and 0."""
    model = Model(lambda: recipe.build(meta).double())
    parameters, buffers = model.init(seed=1)
    for i, (name, value) in enumerate(parameters.items()):
        if value.ndim == 1:
            parameters[name] = value + 0.3 * draw(*value.shape, seed=i)
    return model, parameters, buffers


@every_norm
@pytest.mark.parametrize(
    ("blocks", "expected"), [((2, 2, 2, 2), 11_689_512), ((3, 4, 6, 3), 21_797_672)]
)
def test_resnets_for_imagenet_have_the_published_number_of_parameters(norm, blocks, expected):
    with torch.device("meta"):  # shapes without values
        network = ResNet(1000, blocks, norm=norm).build(Meta(1000, (3, 224, 224), 1))
    assert count(network) == expected


@every_norm
def test_a_small_resnet_has_the_number_of_parameters_counted_by_hand(norm):
    network = small(norm, width=8).build(CIFAR)
    stem = 3 * 8 * 9 + 2 * 8
    first = 2 * (8 * 8 * 9 + 2 * 8)
    second = (8 * 16 * 9 + 2 * 16) + (16 * 16 * 9 + 2 * 16) + (8 * 16 + 2 * 16)
    assert count(network) == stem + first + second + (16 * 5 + 5) == 5181


def test_resnet_18_without_its_linear_layer_is_the_same_for_both_stems_but_for_the_first_kernel():
    imagenet, cifar = (ResNet(stem=stem).build(CIFAR) for stem in STEMS)
    assert count(imagenet) - count(cifar) == 3 * 64 * (7 * 7 - 3 * 3)
    assert count(imagenet.linear) == 512 * 20 + 20


@pytest.mark.parametrize(
    ("stem", "size", "sides"),
    [
        ("imagenet", 224, [56, 56, 28, 14, 7]),  # He et al. (2016), Table 1
        ("imagenet", 32, [8, 8, 4, 2, 1]),
        ("cifar", 32, [32, 32, 16, 8, 4]),
        ("cifar", 28, [28, 28, 14, 7, 4]),
    ],
)
def test_maps_have_the_sides_and_channels_of_the_paper(stem, size, sides):
    with torch.device("meta"):
        network = ResNet(7, stem=stem).build(Meta(10, (3, size, size), 1))
        maps = [torch.empty(2, 3, size, size)]
        for layer in network[:5]:
            maps.append(layer(maps[-1]))
        features = network(maps[0])
    channels = (64, 64, 128, 256, 512)
    expected = [(2, c, s, s) for c, s in zip(channels, sides, strict=True)]
    assert [tuple(map_.shape) for map_ in maps[1:]] == expected
    assert features.shape == (2, 7)


@every_norm
@every_stem
@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 32, 32), (1, 28, 28), (2, 5, 9)])
def test_images_of_any_size_from_4_by_4_give_the_features(norm, stem, shape):
    recipe = small(norm, stem)
    features = recipe.build(Meta(10, shape, 1))(draw(3, *shape).float())
    assert features.shape == (3, recipe.num_features) == (3, 5)
    assert features.isfinite().all()


@pytest.mark.parametrize("shape", [(64,), (32, 32), (32, 32, 3), (3, 3, 32), (1, 3, 32, 32)])
def test_what_is_no_image_is_refused(shape):
    with pytest.raises(ValueError, match=r"ResNet needs images.*got .*use MLP for tables"):
        ResNet().build(Meta(10, shape, 1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"blocks": ()}, "num_stages must be at least 1, got 0"),
        ({"blocks": (2, 0)}, "fewest_blocks must be at least 1, got 0"),
    ],
)
def test_impossible_numbers_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ResNet(**changes)


def normalised(x, norm, weight, bias):
    """Normalisation by the statistics of the batch, from its definition."""
    n, c, h, w = x.shape
    if norm == "group":
        groups = c // 16 if c % 16 == 0 else 1
        parts, axes = x.reshape(n, groups, c // groups, h, w), (2, 3, 4)
    else:
        parts, axes = x, (0, 2, 3)
    mean = parts.mean(axes, keepdim=True)
    variance = (parts - mean).square().mean(axes, keepdim=True)
    z = ((parts - mean) / (variance + 1e-5).sqrt()).reshape(x.shape)
    return z * weight[:, None, None] + bias[:, None, None]


def block_by_hand(x, values, norm, *, stride):
    def normed(z, name):
        return normalised(z, norm, values[f"{name}.weight"], values[f"{name}.bias"])

    z = conv2d(x, values["branch.0.weight"], stride=stride, padding=1)
    z = normed(z, "branch.1").clamp_min(0)
    z = normed(conv2d(z, values["branch.3.weight"], padding=1), "branch.4")
    if "shortcut.0.weight" in values:
        x = normed(conv2d(x, values["shortcut.0.weight"], stride=stride), "shortcut.1")
    return (x + z).clamp_min(0)


def below(parameters, name):
    return {k.removeprefix(name): v for k, v in parameters.items() if k.startswith(name)}


@every_norm
@pytest.mark.parametrize(("width", "second"), [(8, 2), (16, 2), (3, 1)])
def test_a_network_equals_the_one_written_by_hand(norm, width, second):
    recipe = small(norm, "imagenet", blocks=(1, second), width=width)
    model, parameters, buffers = shaken(recipe)
    x = draw(4, 3, 32, 32)
    z = conv2d(x, parameters["stem.0.weight"], stride=2, padding=3)
    z = normalised(z, norm, parameters["stem.1.weight"], parameters["stem.1.bias"]).clamp_min(0)
    z = max_pool2d(z, 3, stride=2, padding=1)
    z = block_by_hand(z, below(parameters, "stage1.0."), norm, stride=1)
    for i in range(second):
        z = block_by_hand(z, below(parameters, f"stage2.{i}."), norm, stride=2 - i)
    expected = z.mean((2, 3)) @ parameters["linear.weight"].T + parameters["linear.bias"]
    features, _ = model(parameters, buffers, x, training=True)
    torch.testing.assert_close(features, expected)
    if norm != "batch":
        assert torch.equal(model(parameters, buffers, x)[0], features)


def test_a_shortcut_is_the_identity_only_where_the_shape_stays():
    assert isinstance(ResidualBlock(4, 4, nn.BatchNorm2d).shortcut, nn.Identity)
    x = draw(2, 4, 7, 7).float()
    for outputs, stride, side in ((8, 1, 7), (4, 2, 4), (8, 2, 4)):
        block = ResidualBlock(4, outputs, nn.BatchNorm2d, stride=stride)
        assert count(block.shortcut) == 4 * outputs + 2 * outputs
        assert block(x).shape == (2, outputs, side, side)


@every_norm
def test_convolutions_start_by_hes_rule_and_norms_as_the_identity(norm):
    network = ResNet(blocks=(1,), norm=norm).build(CIFAR)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            expected = math.sqrt(2 / (64 * module.kernel_size[0] ** 2))
            assert float(module.weight.detach().std()) == pytest.approx(expected, rel=0.05)
        elif isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


@every_norm
def test_only_running_statistics_are_buffers(norm):
    _, buffers = Model(lambda: small(norm).build(CIFAR)).init(seed=0)
    ends = {name.rpartition(".")[2] for name in buffers}
    tracked = {"running_mean", "running_var", "num_batches_tracked"}
    assert ends == (tracked if norm == "batch" else set())


@pytest.mark.parametrize("training", [True, False])
@every_norm
def test_an_output_depends_on_the_rest_of_its_batch_in_batch_norm_alone(norm, training):
    model, parameters, buffers = shaken(small(norm))
    x, others = draw(6, 3, 32, 32), draw(5, 3, 32, 32, seed=1)
    together, _ = model(parameters, buffers, x, training=training)
    elsewhere, _ = model(parameters, buffers, torch.cat([x[:1], others]), training=training)
    mixes = not torch.allclose(together[0], elsewhere[0], rtol=1e-9)
    assert mixes == (norm == "batch_untracked" or (norm == "batch" and training))
    if training:
        assert model.mixes_examples == mixes


def test_one_example_has_no_batch_statistics_where_maps_are_points():
    model, parameters, buffers = shaken(ResNet(width=1, norm="batch_untracked"))
    assert model(parameters, buffers, draw(2, 3, 32, 32))[0].isfinite().all()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        model(parameters, buffers, draw(1, 3, 32, 32))
    model, parameters, buffers = shaken(ResNet(width=1, stem="cifar", norm="batch_untracked"))
    assert model(parameters, buffers, draw(1, 3, 32, 32))[0].isfinite().all()


@every_norm
@every_stem
def test_all_gradients_are_finite_and_reach_every_parameter(norm, stem):
    network = small(norm, stem, blocks=(2, 1)).build(CIFAR)
    network(draw(4, 3, 32, 32).float()).square().sum().backward()
    for name, value in network.named_parameters():
        assert value.grad.isfinite().all(), name
        assert value.grad.abs().max() > 0, name


@every_norm
@every_stem
def test_many_networks_at_once_are_each_of_them(norm, stem):
    model, parameters, buffers = shaken(small(norm, stem))
    many = [
        ({n: v + 0.1 * draw(*v.shape, seed=i) for n, v in parameters.items()}, buffers)
        for i in range(3)
    ]
    x = draw(3, 4, 3, 32, 32)

    def loss(parameters, buffers, x):
        features, buffers = model(parameters, buffers, x, training=True)
        return features.square().mean(), buffers

    step = torch.func.grad_and_value(loss, has_aux=True)
    stacked = [
        {name: torch.stack([one[i][name] for one in many]) for name in many[0][i]} for i in (0, 1)
    ]
    gradients, (losses, new) = torch.vmap(step)(*stacked, x)
    for i, one in enumerate(many):
        gradient, (value, after) = step(*one, x[i])
        assert float(losses[i]) == pytest.approx(float(value), rel=1e-9)
        assert_near({n: g[i] for n, g in gradients.items()}, gradient, 1e-9)
        assert_near({n: b[i] for n, b in new.items()}, after, 1e-9)


def photographs(sizes):
    """Clients with tiny images without any pattern."""

    def examples(n, seed):
        y = torch.randint(3, (n,), generator=torch.Generator().manual_seed(seed))
        return Examples({"x": draw(n, 3, 32, 32, seed=seed), "y": y})

    meta = Meta(3, (3, 32, 32), len(sizes))
    clients = tuple(
        Client(i, examples(n, i), examples(0, 0), examples(3, 50 + i), meta)
        for i, n in enumerate(sizes)
    )
    holdout = Client(HOLDOUT, examples(0, 0), examples(0, 0), examples(4, 99), meta)
    return FederatedData(clients, meta, holdout)


@every_norm
def test_a_round_equals_the_plain_loop_and_batch_norm_skips_batches_of_one(norm):
    data = photographs((5, 4))  # the first client's last batch is one example
    recipe = small(norm, "imagenet")
    method = FedAvg(recipe, rounds=1, local=LocalTraining(1, 2), lr=0.05)
    positions, rows = train(method, data)
    model = classifier(recipe, data.meta)
    start, statistics = model.init(RNG.at("init", "model").number())
    ends, lengths = [], []
    for client in data.clients:
        network = nn.ModuleDict({"body": recipe.build(data.meta), "head": nn.Linear(5, 3)})
        network.load_state_dict({**start, **statistics})
        network.double().train()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
        steps = 0
        for x, y in batches(RNG, 1, client, epochs=1, batch_size=2):
            if len(y) == 1 and norm != "group":
                continue
            optimizer.zero_grad()
            cross_entropy(network["head"](network["body"](x)), y).backward()
            optimizer.step()
            steps += 1
        lengths.append(steps)
        ends.append({**values(network), **dict(network.named_buffers())})
    assert lengths == ([3, 2] if norm == "group" else [2, 2])
    server_state = positions[-1].server_state
    expected = average([{n: e[n] for n in start} for e in ends], data.sizes)
    assert_near(server_state["parameters"], expected, 1e-9)
    kept = [n for n in statistics if "running" in n]
    assert bool(kept) == (norm == "batch")
    expected = average([{n: e[n] for n in kept} for e in ends], data.sizes)
    assert_near({n: server_state["buffers"][n] for n in kept}, expected, 1e-9)
    assert all(math.isfinite(row.value) for row in rows)


def test_feature_maps_of_many_clients_in_channels_last_order_are_averaged_together():
    x = draw(3, 2, 5, 4, 4).transpose(-3, -1)  # channels last; a loop over clients would warn
    found, by_torch = vmap(GlobalMean())(x), nn.AdaptiveAvgPool2d(1)
    for own, images in zip(found, x, strict=True):
        assert torch.equal(own, by_torch(images).flatten(1))
