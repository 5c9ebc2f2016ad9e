"""Inputs refused by hyperbolic layers, with messages that name the input and the remedy."""

import pytest
import torch
from torch import nn

from fedbolic.manifolds import Curvature, Euclidean, Lorentz, Poincare
from fedbolic.nn import (
    MLR,
    BusemannHead,
    CentroidPool,
    CentroidPool2d,
    ChangeCurvature,
    Conv2d,
    HyperbolicBatchNorm,
    HyperbolicEmbedding,
    HyperbolicLayerNorm,
    HyperbolicResidual,
    Linear,
    LorentzAttention,
    LorentzFC,
    LorentzViT,
    PatchEmbedding,
    PrototypeHead,
    SpaceActivation,
    TangentActivation,
    TangentDropout,
    ToManifold,
)
from fedbolic.nn.network.resnet import ResNet
from tests.nn.cases import CASES

every_layer = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
NO_PARAMETERS = (
    SpaceActivation,
    TangentActivation,
    TangentDropout,
    CentroidPool,
    CentroidPool2d,
    ChangeCurvature,
    ToManifold,
)
OF_IMAGES = LorentzViT, PatchEmbedding


def knows_its_width(layer):
    return not isinstance(layer, (*NO_PARAMETERS, HyperbolicResidual, *OF_IMAGES))


@every_layer
def test_points_of_another_width_are_refused_with_what_came(case):
    layer, x = case.make(), case.inputs()
    if case.kind is None or not knows_its_width(layer):
        pytest.skip("takes points of any width")
    wide = torch.cat((x, x), -1)
    shape = ", ".join(map(str, case.shape))
    with pytest.raises(ValueError, match=rf"x must have {x.shape[-1]} coordinates .*\({shape}, "):
        layer(wide)


@every_layer
def test_numbers_of_another_type_are_refused_with_the_remedy(case):
    layer, x = case.make(), case.inputs()
    if case.kind is None:
        with pytest.raises(ValueError, match=r"index must be of integers.*use index.long\(\)"):
            layer(x.float())
        return
    with pytest.raises(ValueError, match=r"x must be floating, got torch.int64: use x.float\(\)"):
        layer(x.long())
    if knows_its_width(layer):
        with pytest.raises(ValueError, match=r"x must be torch.float64 as the layer is, got torch"):
            layer(x.float())


@every_layer
def test_a_number_without_axes_is_refused(case):
    if case.kind is None:
        pytest.skip("takes indices")
    with pytest.raises(ValueError, match=r"got shape \(\)"):
        case.make()(torch.tensor(1.0, dtype=torch.float64))


@pytest.mark.parametrize(
    ("x", "remedy"),
    [
        (torch.ones(5, 4), r"ToManifold\(Lorentz\(\)\) makes points of vectors"),
        (torch.ones(5, 7, 2), r"movedim\(0, -1\) puts the coordinates last"),
        (torch.ones(6, 7), "number of dimensions without time"),
    ],
)
def test_the_remedy_for_a_wrong_axis_is_named(x, remedy):
    with pytest.raises(ValueError, match=remedy):
        Linear(Lorentz(), 4, 2)(x)


@every_layer
@pytest.mark.parametrize("c", [-1.0, float("nan"), float("inf")])
def test_a_number_that_is_no_curvature_is_refused(case, c):
    with pytest.raises(ValueError, match="c must be finite"):
        case.make(c)


@every_layer
def test_a_curvature_of_many_values_is_refused_and_vmap_named(case):
    with pytest.raises(ValueError, match=r"one value in a layer, got .*\(3,\).* use vmap"):
        case.make(Curvature(torch.ones(3)))


@every_layer
def test_flat_space_is_a_ball_but_no_hyperboloid(case):
    if case.model is Lorentz:
        with pytest.raises(ValueError, match="above 0, got 0"):
            case.make(0.0)
    elif "ChangeCurvature" not in repr(case.make()):
        assert case.make(0.0)(case.inputs(0.0)).isfinite().all()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Linear(Lorentz(), 0, 2), "in_features must be at least 1, got 0"),
        (lambda: LorentzFC(Lorentz(), 2, 0), "out_features must be at least 1, got 0"),
        (lambda: Linear(Poincare(), 2, -1), "out_features must be at least 1, got -1"),
        (lambda: MLR(Lorentz(), 2, 0), "num_classes must be at least 1, got 0"),
        (lambda: MLR(Poincare(), 0, 2), "in_features must be at least 1, got 0"),
        (lambda: PrototypeHead(Lorentz(), 2, 0), "num_classes must be at least 1, got 0"),
        (lambda: BusemannHead(Lorentz(), 2, 0), "num_classes must be at least 1, got 0"),
        (
            lambda: HyperbolicEmbedding(Lorentz(), 0, 2),
            "num_embeddings must be at least 1, got 0",
        ),
        (lambda: HyperbolicBatchNorm(Lorentz(), 0), "num_features must be at least 1, got 0"),
        (lambda: HyperbolicBatchNorm(Lorentz(), 2, eps=0.0), "eps must be a positive number"),
        (lambda: HyperbolicBatchNorm(Lorentz(), 2, momentum=1.5), "momentum must lie in"),
        (lambda: HyperbolicLayerNorm(Lorentz(), 2, eps=-1.0), "eps must be a positive number"),
        (lambda: TangentDropout(Poincare(), 1.0), r"p must lie in \[0, 1\), got 1.0"),
        (
            lambda: LorentzAttention(Lorentz(), 5, 2),
            "num_heads must divide embed_dim 5, got 2",
        ),
        (lambda: LorentzAttention(Lorentz(), 4, 2, dropout=1.0), "p must lie in"),
        (lambda: CentroidPool(Lorentz(), -1), "dim must be an axis of points, got -1"),
        (lambda: ChangeCurvature(Poincare(0.0), Poincare(1.0)), "old must be above 0, got 0"),
        (lambda: ChangeCurvature(Poincare(1.0), Poincare(0.0)), "new must be above 0, got 0"),
    ],
)
def test_impossible_settings_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_single_point_has_no_batch_statistics():
    with pytest.raises(ValueError, match=r"2 or more points in training.*eval\(\)"):
        HyperbolicBatchNorm(Lorentz(), 2)(Lorentz().origin(1, 3))


def test_a_set_without_points_axis_is_refused():
    with pytest.raises(ValueError, match=r"axis -2 before that of coordinates.*choose dim"):
        CentroidPool(Lorentz())(Lorentz().origin(3))
    with pytest.raises(ValueError, match=r"weights must have the shape \(2,\) .*got \(3,\)"):
        CentroidPool(Lorentz())(Lorentz().origin(2, 3), torch.ones(3))
    with pytest.raises(ValueError, match=r"x must be sets of points .*unsqueeze\(-2\)"):
        LorentzAttention(Lorentz(), 2, 1)(Lorentz().origin(3))


@pytest.mark.parametrize("power", [0.0, 2.0])
@pytest.mark.parametrize("weights", [None, torch.ones(4, 0)])
def test_a_set_of_no_points_has_no_centroid(power, weights):
    pool, x = CentroidPool(Lorentz(), power=power), Lorentz().origin(4, 0, 3)
    with pytest.raises(ValueError, match=r"one or more points along axis -2, .*\(4, 0, 3\)"):
        pool(x, weights)
    assert pool(Lorentz().origin(0, 4, 3)).shape == (0, 3)
    none = torch.zeros(0, dtype=torch.int64)
    assert pool(x[0], batch=none).shape == (0, 3)
    assert pool(x[0], batch=none, size=2).tolist() == [[1.0, 0.0, 0.0]] * 2


def test_attention_to_no_points_gives_the_image_of_the_origin():
    layer, none = LorentzAttention(Lorentz(), 2, 1).double(), torch.zeros(4, 0, 3).double()
    torch.nn.init.normal_(layer.out.bias)
    x = Lorentz().origin(4, 5, 3, dtype=torch.float64)
    expected = layer.out(x)
    torch.testing.assert_close(layer(x, none), expected)
    torch.testing.assert_close(torch.vmap(layer)(x, none), expected)
    assert layer(none).shape == (4, 0, 3)


def test_a_batch_vector_is_no_weight_and_must_fit():
    pool, x, batch = CentroidPool(Lorentz()), Lorentz().origin(3, 3), torch.tensor([0, 0, 1])
    with pytest.raises(ValueError, match=r"weights must be floating, got torch.int64: .*batch="):
        pool(x, batch)
    with pytest.raises(ValueError, match=r"batch must be int64 .*got torch\.float32"):
        pool(x, batch=batch.float())
    with pytest.raises(ValueError, match=r"batch must be int64 .*\(3, 3\), got .*\(2,\)"):
        pool(x, batch=batch[:2])
    with pytest.raises(ValueError, match="batch must be int64"):
        pool(Lorentz().origin(2, 3, 3), batch=batch)
    with pytest.raises(ValueError, match="size must be above 1"):
        pool(x, batch=batch, size=1)
    with pytest.raises(ValueError, match="size goes with batch"):
        pool(x, size=1)


def test_attention_names_the_argument_that_is_wrong():
    layer, x = LorentzAttention(Lorentz(), 2, 1), Lorentz().origin(4, 3)
    with pytest.raises(ValueError, match=r"context must have 3 coordinates .*got shape \(4, 5\)"):
        layer(x, Lorentz().origin(4, 5))
    with pytest.raises(ValueError, match=r"context must be sets of points .*got shape \(3,\)"):
        layer(x, x[0])
    with pytest.raises(ValueError, match=r"mask must be of torch.bool, got .*use mask.bool\(\)"):
        layer(x, mask=torch.ones(4, 4))
    for shape in ((4,), (4, 3), (3, 4)):
        with pytest.raises(ValueError, match=r"mask must have the shape \(\.\.\., 4, 4\)"):
            layer(x, mask=torch.ones(shape).bool())


def test_a_space_without_layers_is_refused():
    with pytest.raises(ValueError, match=r"must be Lorentz or Poincare, .*got .*Euclidean"):
        CentroidPool(Euclidean())


def test_a_branch_that_changes_the_width_is_refused():
    with pytest.raises(ValueError, match=r"branch must keep the shape \(4, 3\).*got \(4, 5\)"):
        HyperbolicResidual(Lorentz(), Linear(Lorentz(), 2, 4))(Lorentz().origin(4, 3))


def test_what_no_residual_changes_is_a_point():
    x = Lorentz().expmap0(Lorentz().lift(torch.randn(4, 3)))
    torch.testing.assert_close(HyperbolicResidual(Lorentz(), nn.Identity())(x), x)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Conv2d(Lorentz(), 0, 2, 3), "in_features must be at least 1, got 0"),
        (lambda: Conv2d(Poincare(), 2, 0, 3), "out_features must be at least 1, got 0"),
        (lambda: Conv2d(Lorentz(), 2, 2, 0), "kernel_size must be at least 1, got 0"),
        (lambda: Conv2d(Lorentz(), 2, 2, 3, stride=0), "stride must be at least 1, got 0"),
        (
            lambda: Conv2d(Poincare(), 2, 2, 3, padding=-1),
            "padding must be at least 0, got -1",
        ),
        (lambda: Conv2d(Lorentz(), 2, 2, 3, dilation=0), "dilation must be at least 1, got 0"),
        (lambda: Conv2d(Lorentz(), 2, 2, 3, concatenation="beta"), "concatenation must be"),
        (lambda: CentroidPool2d(Lorentz(), 2, stride=0), "stride must be at least 1, got 0"),
        (lambda: CentroidPool2d(Lorentz(), 2, padding=2), "padding must be at most half"),
    ],
)
def test_impossible_windows_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    "layer",
    [Conv2d(Lorentz(), 2, 2, 3), CentroidPool2d(Lorentz(), 3)],
    ids=["conv", "pool"],
)
def test_what_is_no_image_with_room_for_a_window_is_refused(layer):
    with pytest.raises(ValueError, match=r"x must be images .*got shape \(4, 3\)"):
        layer(Lorentz().origin(4, 3))
    with pytest.raises(ValueError, match=r"3 or more pixels .* got 4 x 2: use a smaller kernel"):
        layer(Lorentz().origin(4, 2, 3))


def test_unknown_stems_and_norms_are_refused_with_those_that_are_known():
    with pytest.raises(ValueError, match="stem must be one of imagenet, cifar, got 'vit'"):
        ResNet(stem="vit")
    with pytest.raises(
        ValueError, match="norm must be one of batch, batch_untracked, group, got 'layer'"
    ):
        ResNet(norm="layer")
