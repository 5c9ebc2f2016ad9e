"""Contract between every hyperbolic layer and an ordinary PyTorch project."""

import copy
import inspect
import io

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

import fedbolic.nn
from fedbolic.formulas.numerics import HYPERBOLOID_RADIUS
from fedbolic.manifolds import Curvature, Lorentz
from fedbolic.nn import (
    ChangeCurvature,
    CosineContrast,
    DistanceContrast,
    Dropout,
    EntailmentContrast,
    FermiDirac,
    HypLoRALinear,
    LogitScale,
    LoRALinear,
    MarginLoss,
    RankingLoss,
)
from fedbolic.nn.graph import convolution as graph
from tests.nn.cases import CASES, DIM, points

C = 0.7

NO_MANIFOLD = {
    *(Dropout, FermiDirac, MarginLoss, RankingLoss),
    *(CosineContrast, DistanceContrast, EntailmentContrast, LogitScale),
    *(LoRALinear, HypLoRALinear),  # from Euclidean inputs to Euclidean outputs
}
"""Modules of numbers instead of points; each has tests of its own."""

every_layer = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def learnt(case, c=C, *, seed=0):
    return case.make(Curvature(torch.tensor(c, dtype=torch.float64)), seed=seed)


def curvature_of(layer, case):
    return layer.get_submodule(case.raw.removesuffix(".raw"))


def raw_of(layer, case, c):
    """Raw parameter of a learnable curvature with value ``c``."""
    return curvature_of(layer, case).raw_of(torch.tensor(c, dtype=torch.float64))


def gradients_of(layer, outputs):
    """Gradients, by all parameters, of a number that depends on every output."""
    weights = torch.linspace(0.5, 1.5, outputs.numel(), dtype=outputs.dtype).reshape(outputs.shape)
    if not outputs.requires_grad:
        return {}
    names, values = zip(*layer.named_parameters(), strict=True)
    gradients = torch.autograd.grad((weights * outputs).sum(), values, allow_unused=True)
    return dict(zip(names, gradients, strict=True))


def test_every_layer_is_listed():
    public = {getattr(fedbolic.nn, name) for name in fedbolic.nn.__all__}
    modules = {kind for kind in public if isinstance(kind, type) and issubclass(kind, nn.Module)}
    convolutions = {getattr(graph, name) for name in graph.__all__}
    assert len(convolutions) >= 2
    listed = {type(case.make()) for case in CASES.values()}
    assert listed == (modules - NO_MANIFOLD) | convolutions
    for kind in modules | convolutions:
        assert "\nShapes:\n" in inspect.getdoc(kind), kind
    for kind in listed - {graph.HGCN, ChangeCurvature}:
        assert next(iter(inspect.signature(kind).parameters)) == "manifold", kind


@every_layer
def test_outputs_lie_on_the_space_of_the_curvature_at_hand(case):
    layer = learnt(case)
    y = layer(case.inputs(C))
    assert y.shape[-1] == case.num + (case.gives is Lorentz)
    assert len(y) == case.shape[0]
    if case.gives is not None:
        assert case.gives(C).contains(y).all()
        assert case.gives(C).dist0(y).max() > 1e-3
    with torch.no_grad():
        curvature_of(layer, case).raw.copy_(raw_of(layer, case, 2.0))
    assert layer.manifold.c.item() == pytest.approx(2.0)
    y = layer(case.inputs(1.0 if "ChangeCurvature" in repr(layer) else 2.0))
    if case.gives is not None:
        assert case.gives(2.0).contains(y).all()


@every_layer
def test_a_fixed_curvature_gives_the_numbers_of_a_learnt_one(case):
    x = case.inputs(C)
    fixed, layer = case.make(C), learnt(case)
    torch.testing.assert_close(fixed(x), layer(x), rtol=1e-10, atol=1e-10)
    gradients = gradients_of(layer, layer(x))
    for name, gradient in gradients_of(fixed, fixed(x)).items():
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-9, atol=1e-9)


@every_layer
def test_g12_a_copy_is_another_layer_with_the_same_numbers(case):
    layer, x = learnt(case), case.inputs(C)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x), layer(x))
    for value, other in zip(layer.parameters(), twin.parameters(), strict=True):
        assert value.data_ptr() != other.data_ptr()


@every_layer
def test_g12_layers_that_share_a_curvature_share_it_in_a_copy(case):
    curvature = Curvature(C)
    network = nn.ModuleList([case.make(curvature), case.make(curvature)])
    twin = copy.deepcopy(network)
    first, second = (curvature_of(layer, case) for layer in twin)
    assert first is second is not curvature
    with torch.no_grad():
        curvature.raw.add_(1.0)
    assert network[0].manifold.c == network[1].manifold.c != twin[0].manifold.c


@every_layer
def test_g12_a_state_dict_is_saved_and_loaded_as_weights_only(case):
    layer, x = learnt(case), case.inputs(C)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = learnt(case, 2.0, seed=1)
    other.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert torch.equal(other(x), layer(x))


@every_layer
def test_g12_a_layer_is_moved_to_the_meta_device_and_filled_again(case):
    layer, x = learnt(case), case.inputs(C)
    other = learnt(case, seed=1).to("meta")
    assert all(value.is_meta for value in [*other.parameters(), *other.buffers()])
    other.to_empty(device="cpu").load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))


@every_layer
def test_g12_single_precision_gives_the_numbers_of_double(case):
    layer, x = learnt(case), case.inputs(C)
    single = copy.deepcopy(layer).float()
    narrow = x.float() if x.is_floating_point() else x
    y = single(narrow)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.double(), layer(x), rtol=2e-5, atol=2e-5)
    assert single.double()(x).dtype == torch.float64


@every_layer
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_computed_wider_and_stay_on_the_space(case, dtype):
    layer, x = learnt(case).to(dtype), case.inputs(C)
    narrow = x.to(dtype) if x.is_floating_point() else x
    y = layer(narrow)
    assert y.dtype == dtype
    expected = copy.deepcopy(layer).double()(narrow.double() if x.is_floating_point() else x)
    torch.testing.assert_close(y.double(), expected, rtol=8e-2, atol=8e-2)
    if case.gives is not None:
        assert case.gives(layer.manifold.c).contains(y).all()


@every_layer
def test_autocast_gives_points_in_float32_near_those_without(case):
    layer = learnt(case).float()
    x = case.inputs(C)
    x = x.float() if x.is_floating_point() else x
    expected = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    ends_in_torch = isinstance(getattr(layer, "head", None), torch.nn.Linear)
    assert y.dtype == (torch.bfloat16 if ends_in_torch else torch.float32)
    torch.testing.assert_close(y.float(), expected, rtol=5e-2, atol=5e-2)
    if case.gives is not None:
        assert case.gives(layer.manifold.c).contains(y).all()
    assert all(g is None or g.isfinite().all() for g in gradients_of(layer, y).values())


@every_layer
def test_autocast_takes_half_types(case):
    if case.kind is None:
        pytest.skip("takes indices")
    layer, x = learnt(case).float(), case.inputs(C).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).isfinite().all()


@every_layer
def test_g13_one_curvature_per_sample_under_vmap(case):
    layer = learnt(case)
    cs = (0.3, 1.0, 2.5)
    raw = torch.stack([raw_of(layer, case, c) for c in cs])
    before = 1.0 if "ChangeCurvature" in repr(layer) else None
    x = torch.stack([case.inputs(before or c, seed=i) for i, c in enumerate(cs)])
    buffers = {name: value.expand(3, *value.shape).clone() for name, value in layer.named_buffers()}

    def forward(raw, buffers, x):
        return functional_call(layer, {case.raw: raw, **buffers}, (x,))

    together = torch.vmap(forward)(raw, buffers, x)
    for i, c in enumerate(cs):
        alone = case.make(c)
        torch.testing.assert_close(together[i], alone(x[i]), rtol=1e-9, atol=1e-9)
        for name, value in alone.named_buffers():
            torch.testing.assert_close(buffers[name][i], value, rtol=1e-9, atol=1e-9)


@every_layer
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_g12_plain_optimisers_train_every_parameter(case, optimizer):
    layer, x = learnt(case), case.inputs(C)
    if not layer(x).requires_grad:
        pytest.skip("has nothing to train in evaluation")
    before = parameters_to_vector(layer.parameters()).clone()
    steps = optimizer(layer.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        steps.zero_grad()
        loss = layer(x).square().sum()
        loss.backward()
        clip_grad_norm_(layer.parameters(), 1.0, error_if_nonfinite=True)
        steps.step()
        losses.append(loss.item())
    after = parameters_to_vector(layer.parameters())
    assert after.isfinite().all()
    assert losses[-1] < losses[0]
    assert not torch.equal(before, after)
    vector_to_parameters(before, layer.parameters())
    assert torch.equal(parameters_to_vector(layer.parameters()), before)


PLACES = {"origin": 0.0, "near": 1e-20, "far": 1.0, "farther": 2.0}


@every_layer
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("place", PLACES)
def test_no_nan_in_values_and_gradients_wherever_points_are(case, dtype, place):
    if case.kind is None:
        pytest.skip("takes indices")
    layer = learnt(case, 1.0).to(dtype)
    limit = (38.0 if dtype == torch.float32 else 340.0) * case.reach
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(*case.shape, DIM, generator=generator, dtype=torch.float64).to(dtype)
    v = v / v.norm(dim=-1, keepdim=True) * (limit * PLACES[place])
    x = points(case.kind, 1.0, v).requires_grad_()
    y = layer(x)
    assert y.isfinite().all()
    if case.gives is not None:  # Linear has no bound; the operations clamp it
        held = (y[..., 1:] ** 2).sum(-1) < HYPERBOLOID_RADIUS[dtype]
        assert case.gives(layer.manifold.c).contains(y)[held].all()
    (gradient,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert gradient.isfinite().all()
    assert all(g is None or g.isfinite().all() for g in gradients_of(layer, y).values())


@every_layer
def test_a_layer_says_what_it_is(case):
    text = repr(case.make(0.5))
    assert text.startswith(type(case.make()).__name__)
    assert f"{case.model.__name__}(c=0.5)" in text
    assert "Curvature(bounds=" in repr(learnt(case))
