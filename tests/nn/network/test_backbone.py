import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core.types import Meta
from fedbolic.nn.network.backbone import MLP, ConvNet
from fedbolic.nn.network.classifier import CosineHead, classifier
from fedbolic.nn.network.hyperbolic_resnet import HyperbolicResNet
from fedbolic.nn.network.resnet import ResNet

widths = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def count(module):
    return sum(value.numel() for value in module.parameters())


@given(widths, st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
def test_an_mlp_has_the_parameters_of_its_widths_and_gives_its_features(widths, shape):
    backbone, meta = MLP(widths), Meta(3, shape, 1)
    network = backbone.build(meta)
    ends = (torch.Size(shape).numel(), *widths)
    expected = sum((a + 1) * b for a, b in itertools.pairwise(ends))
    assert count(network) == expected
    features = network(draw(7, *shape))
    assert features.shape == (7, backbone.num_features)
    assert (features >= 0).all()


def test_an_mlp_may_end_in_a_linear_layer():
    backbone, meta = MLP((6,), dim=4), Meta(3, (5,), 1)
    network = backbone.build(meta)
    assert count(network) == 6 * (5 + 1) + 4 * (6 + 1)
    hidden, x = MLP((6,)).build(meta), draw(7, 5)
    names = hidden.state_dict()
    hidden.load_state_dict({name: network.state_dict()[name] for name in names})
    torch.testing.assert_close(network(x), network[-1](hidden(x)))
    assert (network(x) < 0).any()
    assert backbone.num_features == 4


def test_an_mlp_drops_out_after_every_layer_in_training_only():
    network = MLP((300, 400), dropout=0.25).build(Meta(3, (4,), 1))
    x = draw(50, 4).abs()
    assert torch.equal(network.eval()(x), network(x))
    dropped = (network.train()(x) == 0) & (network.eval()(x) > 0)
    assert not torch.equal(network.train()(x), network(x))
    assert 0 < dropped.float().mean() < 0.25


def test_the_convnet_on_grey_images_has_the_published_number_of_parameters():
    network = ConvNet(dim=20).build(Meta(10, (1, 28, 28), 1))
    assert count(network) == 44_628
    # 16 * 25 + 16, 32 * 16 * 25 + 32, 32 * 7 * 7 * 20 + 20
    assert 416 + 12_832 + 31_380 == 44_628


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 32, 32), (1, 7, 9), (2, 5, 4)])
@pytest.mark.parametrize("dim", [1, 20])
def test_the_convnet_takes_images_of_any_size_from_4_by_4(shape, dim):
    network = ConvNet(dim).build(Meta(10, shape, 1))
    assert network(draw(2, *shape)).shape == (2, dim) == (2, ConvNet(dim).num_features)


@pytest.mark.parametrize("shape", [(64,), (8, 8), (1, 3, 28), (1, 28, 3), (1, 1, 28, 28)])
def test_the_convnet_refuses_what_is_no_image(shape):
    with pytest.raises(ValueError, match=r"ConvNet needs images.*use MLP for tables"):
        ConvNet().build(Meta(10, shape, 1))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MLP(()), "num_widths must be at least 1, got 0"),
        (lambda: MLP((5, 0)), "narrowest_width must be at least 1, got 0"),
        (lambda: MLP((5,), dim=0), "dim must be at least 1, got 0"),
        (lambda: ConvNet(0), "dim must be at least 1, got 0"),
    ],
)
def test_impossible_widths_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    "build", [MLP, lambda x: ResNet(blocks=x), lambda x: HyperbolicResNet(blocks=x)]
)
@pytest.mark.parametrize("widths", [[8], 8])
def test_networks_whose_widths_are_no_tuple_are_refused(build, widths):
    with pytest.raises(TypeError, match="tuple"):  # also where types are checked at every call
        build(widths)


def test_a_classifier_is_a_body_and_a_head_with_one_logit_per_class():
    meta = Meta(10, (1, 28, 28), 1)
    model = classifier(ConvNet(), meta)
    parameters, buffers = model.init(seed=0)
    assert {name.split(".")[0] for name in parameters} == {"body", "head"}
    assert parameters["head.weight"].shape == (10, 20)
    logits, _ = model(parameters, buffers, draw(3, 1, 28, 28))
    assert logits.shape == (3, 10)


def test_equal_questions_get_the_same_model():
    meta = Meta(3, (5,), 2)
    assert classifier(MLP((4,)), meta) is classifier(MLP((4,)), Meta(3, (5,), 2))
    assert classifier(MLP((4,)), meta) is not classifier(MLP((5,)), meta)
    assert classifier(MLP((4,)), meta) is not classifier(MLP((4,)), meta, CosineHead)


def test_cosines_are_those_of_the_angles():
    head = CosineHead(4, 3)
    z = draw(6, 4)
    expected = torch.nn.functional.cosine_similarity(z[:, None], head.weight[None], dim=-1)
    torch.testing.assert_close(head(z), expected)
    torch.testing.assert_close(head(1e6 * z), expected)


def test_features_of_length_zero_have_cosine_zero():
    assert CosineHead(4, 3)(torch.zeros(1, 4)).tolist() == [[0, 0, 0]]
