"""Convolutions and pools of images of points, compared with their definitions window by window."""

import itertools

import mpmath
import pytest
import torch

from fedbolic.manifolds import Curvature, Lorentz, Poincare, to_lorentz
from fedbolic.nn import CentroidPool2d, Conv2d, LorentzFC
from fedbolic.nn.layers.image_convolution import Window, beta_scale, log_radius_scale
from tests.nn.cases import points

CS = (0.1, 1.0, 4.0)
WINDOWS = [Window(1), Window(2, 2), Window(3, 1, 1), Window(3, 2, 1), Window(2, 1, 2, 3)]
every_window = pytest.mark.parametrize("window", WINDOWS, ids=str)
every_curvature = pytest.mark.parametrize("c", CS)
SHAPE = (4, 5)


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def filled(layer, *, seed=3):
    """The layer in float64 with random weights and biases."""
    linear = layer.double().linear
    with torch.no_grad():
        linear.weight.copy_(normal(*linear.weight.shape, seed=seed) / 3)
        linear.bias.copy_(normal(*linear.bias.shape, seed=seed + 1))
    return layer


def settings(window):
    names = ("kernel_size", "stride", "padding", "dilation")
    return dict(zip(names, window, strict=True))


def windows(image, window):
    """Pixels of every window, row by row, ``None`` for padding; by the definition, one by one."""
    height, width = image.shape[:2]
    size, stride, padding, dilation = window
    span = dilation * (size - 1) + 1
    for i in range(0, height + 2 * padding - span + 1, stride):
        for j in range(0, width + 2 * padding - span + 1, stride):
            pixels = []
            for u, v in itertools.product(range(size), repeat=2):
                row, column = i + u * dilation - padding, j + v * dilation - padding
                inside = 0 <= row < height and 0 <= column < width
                pixels.append(image[row, column].tolist() if inside else None)
            yield pixels


def exact_lorentz(pixels, weight, bias, c, *, scale=1):
    """``Linear`` of the direct concatenation, with its time from those of all pixels."""
    c, scale, one = mpmath.mpf(c), mpmath.mpf(scale), mpmath.mpf(1)
    n = (len(weight[0]) - 1) // len(pixels)
    origin = [1 / mpmath.sqrt(c)] + [0] * n
    pixels = [origin if p is None else [mpmath.mpf(t) for t in p] for p in pixels]
    space = [scale * t for p in pixels for t in p[1:]]
    if scale == one:
        time = mpmath.sqrt(sum(p[0] ** 2 for p in pixels) - (len(pixels) - 1) / c)
    else:
        time = mpmath.sqrt(1 / c + sum(t * t for t in space))
    z = [time, *space]
    s = [
        sum(mpmath.mpf(a) * b for a, b in zip(row, z, strict=True)) + mpmath.mpf(d)
        for row, d in zip(weight, bias, strict=True)
    ]
    return [mpmath.sqrt(1 / c + sum(t * t for t in s)), *s]


def exact_ball(pixels, weight, bias, c):
    """Beta-concatenation and fully connected layer of Shimizu et al. (2021), as written there."""
    c = mpmath.mpf(c)
    r = mpmath.sqrt(c)
    n = len(weight[0]) // len(pixels)

    def log0(x):
        size = mpmath.sqrt(sum(t * t for t in x))
        return [mpmath.atanh(r * size) / (r * size) * t for t in x]

    pixels = [
        [mpmath.mpf(0)] * n if p is None else log0([mpmath.mpf(t) for t in p]) for p in pixels
    ]
    half = mpmath.mpf(1) / 2
    ratio = mpmath.beta(n * len(pixels) * half, half) / mpmath.beta(n * half, half)
    v = [ratio * t for p in pixels for t in p]
    size = mpmath.sqrt(sum(t * t for t in v))
    x = [mpmath.tanh(r * size) / (r * size) * t for t in v] if size else v
    lam = 2 / (1 - c * sum(t * t for t in x))
    w = []
    for row, a in zip(weight, bias, strict=True):
        z = [mpmath.mpf(t) for t in row]
        length = mpmath.sqrt(sum(t * t for t in z))
        inner = sum(s * t for s, t in zip(x, z, strict=True)) / length
        angle = r * mpmath.mpf(a)  # 2 sqrt(c) r_k
        sinh = lam * r * inner * mpmath.cosh(angle) - (lam - 1) * mpmath.sinh(angle)
        w.append(mpmath.sinh(2 * length * mpmath.asinh(sinh)) / r)
    below = 1 + mpmath.sqrt(1 + c * sum(t * t for t in w))
    return [t / below for t in w]


def of_windows(exact, layer, image, c, **options):
    """Outputs of a layer by a function of the pixels of one window."""
    linear = layer.linear
    weight, bias = linear.weight.tolist(), linear.bias.tolist()
    with mpmath.workdps(60):
        rows = [exact(p, weight, bias, c, **options) for p in windows(image, layer.window)]
        return torch.tensor([[float(t) for t in row] for row in rows], dtype=torch.float64)


@every_curvature
@every_window
def test_a_convolution_on_the_hyperboloid_is_its_definition_in_60_digits(window, c):
    layer = filled(Conv2d(Lorentz(c=c), 2, 3, **settings(window)))
    x = points(Lorentz, c, normal(*SHAPE, 2) / c**0.5)
    expected = of_windows(exact_lorentz, layer, x, c)
    torch.testing.assert_close(layer(x).flatten(0, 1), expected, rtol=1e-12, atol=1e-12)


@every_curvature
@every_window
def test_a_convolution_in_the_ball_is_its_definition_in_60_digits(window, c):
    layer = filled(Conv2d(Poincare(c=c), 2, 3, **settings(window)))
    x = points(Poincare, c, normal(*SHAPE, 2) / c**0.5)
    expected = of_windows(exact_ball, layer, x, c)
    torch.testing.assert_close(layer(x).flatten(0, 1), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("radius", [1e-3, 1.0, 5.0, 12.0])
def test_float32_is_right_to_a_few_roundings_wherever_pixels_are(radius):
    x = torch.nn.functional.normalize(normal(*SHAPE, 2), dim=-1) * radius
    layer = Conv2d(Lorentz(), 2, 3, 3, padding=1)
    got = layer(points(Lorentz, 1.0, x).float())
    stored = points(Lorentz, 1.0, x).float().double()
    expected = of_windows(exact_lorentz, layer, stored, 1.0)
    # the sum of 19 products of either sign cancels, so the error counts in units of the point
    scale = expected[:, :1]
    assert ((got.flatten(0, 1) - expected).abs() / scale).max() < 5e-6


@every_curvature
def test_a_layer_of_hyperplanes_takes_the_concatenation_scaled_to_the_radius_of_a_pixel(c):
    layer = Conv2d(Lorentz(c=c), 2, 3, 2, layer=LorentzFC, concatenation="log_radius")  # fmt: skip
    layer = filled(layer)
    x = points(Lorentz, c, normal(*SHAPE, 2) / c**0.5)
    with mpmath.workdps(60):
        scale = mpmath.exp((mpmath.digamma(1) - mpmath.digamma(4)) / 2)
    rows, zeros = [], [0.0] * 3
    size = layer.linear.weight.norm(dim=-1, keepdim=True)
    angle = c**0.5 * layer.linear.bias.unsqueeze(-1)
    rows = torch.cat(
        (-(c**0.5) * size * angle.sinh() / c**0.5, angle.cosh() * layer.linear.weight), 1
    )
    with mpmath.workdps(60):
        expected = [
            exact_lorentz(p, rows.tolist(), zeros, c, scale=scale) for p in windows(x, layer.window)
        ]
    got = layer(x).flatten(0, 1)
    expected = torch.tensor([[float(t) for t in row] for row in expected], dtype=torch.float64)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("n", "k"), [(1, 4), (3, 9), (64, 9)])
def test_scales_of_concatenations_are_those_of_mpmath(n, k):
    with mpmath.workdps(60):
        half = mpmath.mpf(1) / 2
        digamma = mpmath.exp((mpmath.digamma(n * half) - mpmath.digamma(k * n * half)) / 2)
        beta = mpmath.beta(k * n * half, half) / mpmath.beta(n * half, half)
    assert log_radius_scale(n, k) == pytest.approx(float(digamma), rel=1e-12)
    assert beta_scale(n, k) == pytest.approx(float(beta), rel=1e-12)


def test_a_log_radius_concatenation_keeps_the_mean_logarithm_of_normal_vectors():
    s = normal(20_000, 9, 3)
    one, concatenated = (v.norm(dim=-1).log().mean() for v in (s[:, 0], s.flatten(1)))
    assert (concatenated - one).item() == pytest.approx(
        -torch.tensor(log_radius_scale(3, 9)).log().item(), abs=0.02
    )


@pytest.mark.parametrize("concatenation", ["direct", "log_radius"])
def test_the_start_keeps_the_length_of_pixels_in_the_mean(concatenation):
    torch.manual_seed(0)
    x = points(Lorentz, 1.0, 0.1 * torch.nn.functional.normalize(normal(8, 8, 32), dim=-1)).float()
    y = Conv2d(Lorentz(), 32, 64, 3, concatenation=concatenation)(x)
    assert Lorentz().dist0(y).square().mean().sqrt().item() == pytest.approx(0.1, rel=0.1)
    ball = points(Poincare, 1.0, 0.1 * torch.nn.functional.normalize(normal(8, 8, 32), dim=-1))
    z = Conv2d(Poincare(), 32, 64, 3)(ball.float())
    assert Poincare().dist0(z).square().mean().sqrt().item() == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("space", [Lorentz(), Poincare()], ids=str)
def test_origins_around_an_image_are_its_padding_and_axes_in_front_are_free(space):
    layer = filled(Conv2d(space, 2, 3, 3, padding=1))
    bare = Conv2d(space, 2, 3, 3).double()
    bare.load_state_dict(layer.state_dict())
    x = points(type(space), 1.0, normal(2, 3, *SHAPE, 2))
    framed = space.origin(2, 3, 6, 7, x.shape[-1], dtype=x.dtype)
    framed[..., 1:-1, 1:-1, :] = x
    torch.testing.assert_close(layer(x), bare(framed))
    torch.testing.assert_close(layer(x)[1, 2], layer(x[1, 2]))
    assert layer(x[:0]).shape == (0, 3, *layer(x).shape[2:])


def test_the_ball_without_curvature_is_a_convolution_of_torch():
    layer = filled(Conv2d(Poincare(c=0.0), 2, 3, 3, padding=1))
    x, linear = normal(4, *SHAPE, 2), layer.linear
    kernels = 2 * layer.scale * linear.weight.unflatten(1, (3, 3, 2)).permute(0, 3, 1, 2)
    offset = -linear.weight.norm(dim=-1) * linear.bias
    expected = torch.nn.functional.conv2d(x.movedim(-1, 1), kernels, offset, padding=1)
    torch.testing.assert_close(layer(x), expected.movedim(1, -1))


@pytest.mark.parametrize("kind", [Lorentz, Poincare])
@every_curvature
@pytest.mark.parametrize("window", [Window(2, 2), Window(3, 2, 1), Window(3, 1, 0)], ids=str)
def test_a_pool_has_the_centroids_of_its_windows_without_padding(kind, c, window):
    x = points(kind, c, normal(*SHAPE, 2))
    options = settings(window)
    assert options.pop("dilation") == 1
    y = CentroidPool2d(kind(c=c), **options)(x).flatten(0, 1)
    lorentz = x if kind is Lorentz else to_lorentz(Poincare(c), x)
    for got, pixels in zip(y, windows(lorentz, window), strict=True):
        total = torch.tensor([p for p in pixels if p is not None], dtype=torch.float64).sum(0)
        size = total[0] ** 2 - total[1:].square().sum()
        there = got if kind is Lorentz else to_lorentz(Poincare(c), got)
        torch.testing.assert_close(there, total / (c * size).sqrt())


@pytest.mark.parametrize("space", [Lorentz(), Poincare()], ids=str)
def test_kernels_of_many_clients_give_the_images_of_each(space):
    layers = [filled(Conv2d(space, 2, 3, 2, stride=2), seed=s) for s in (1, 5)]
    x = points(type(space), 1.0, normal(2, 3, *SHAPE, 2))
    stacked, _ = torch.func.stack_module_state(layers)

    def forward(values, images):
        return torch.func.functional_call(layers[0], values, (images,))

    together = torch.vmap(forward)(stacked, x)
    for i, layer in enumerate(layers):
        torch.testing.assert_close(together[i], layer(x[i]))


def test_a_folded_layer_of_hyperplanes_has_the_outputs_of_the_layer():
    curvature = Curvature(0.7)
    layer = LorentzFC(Lorentz(c=curvature), 4, 3, activation=torch.relu).double()
    with torch.no_grad():
        layer.bias.copy_(normal(3))
    folded = layer.folded()
    x = points(Lorentz, layer.c.item(), normal(6, 4))
    torch.testing.assert_close(folded(x), layer(x))
    assert not any(value.requires_grad for value in folded.parameters())
    with torch.no_grad():
        layer.bias.add_(1)
    assert not torch.allclose(folded(x), layer(x))
