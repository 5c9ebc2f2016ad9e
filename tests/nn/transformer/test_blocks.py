"""Attention, blocks and their parts against the formulas of the papers, a point at a time."""

import math

import mpmath
import pytest
import torch
from torch.autograd import forward_ad
from torch.autograd.functional import jvp
from torch.utils.checkpoint import checkpoint

from fedbolic.manifolds import Lorentz
from fedbolic.nn import (
    CentroidPool,
    Conv2d,
    HyperbolicRMSNorm,
    LorentzAttention,
    LorentzDecoderBlock,
    LorentzEncoderBlock,
    LorentzPositions,
    PatchEmbedding,
    ToManifold,
)
from fedbolic.nn.functional import attention as kernels
from fedbolic.nn.functional.lorentz_sum import lorentz_sum
from fedbolic.nn.transformer.rotary import rotated
from tests.nn.cases import points
from tests.nn.transformer import transcription
from tests.rehearsal import CUDA, rehearsal

C = 0.7
streams = pytest.mark.parametrize("stream", ["points", "tangents"])


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def noisy(layer):
    """A layer in float64 whose parameters have no special value."""
    layer = layer.double()
    with torch.no_grad():
        for i, value in enumerate(layer.parameters()):
            value.add_(0.2 * normal(*value.shape, seed=i))
    return layer


def some_points(n, dim=4, *, seed=0):
    return points(Lorentz, C, normal(n, dim, seed=seed))


@streams
@pytest.mark.parametrize("base", [None, 50.0])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_that_of_the_papers_one_pair_at_a_time(stream, base, masked):
    layer = noisy(LorentzAttention(Lorentz(C), 8, 2, rotary_base=base, stream=stream))
    x, context = some_points(3, 8), some_points(5, 8, seed=1)
    mask = (normal(3, 5, seed=2) > 0) | torch.eye(3, 5).bool()
    given = [
        [transcription.logarithm(p, C) for p in of] if stream == "tangents" else [*of]
        for of in (x, context)
    ]
    sees = (lambda i, j: mask[i, j]) if masked else None
    rows = transcription.attention(layer, *given, C, sees=sees)
    place = transcription.exponential if stream == "tangents" else transcription.point
    expected = torch.stack([place(row, C) for row in rows])
    found = layer(x, context, mask=mask if masked else None)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    many = layer(x.expand(2, 6, 3, 9), context.expand(2, 6, 5, 9), mask=mask if masked else None)
    torch.testing.assert_close(many[1, 4], expected, rtol=1e-10, atol=1e-10)


@streams
def test_an_encoder_block_is_that_of_the_papers(stream):
    block = noisy(LorentzEncoderBlock(Lorentz(C), 4, 2, rotary_base=50.0, stream=stream))
    x = some_points(5)
    expected = transcription.block(block, [*x], C, sees=lambda i, j: j <= i)
    mask = torch.ones(5, 5).tril().bool()
    torch.testing.assert_close(block(x, mask=mask), expected, rtol=1e-10, atol=1e-10)


@streams
def test_a_decoder_block_is_that_of_the_papers(stream):
    block = noisy(LorentzDecoderBlock(Lorentz(C), 4, 2, hidden_dim=6, stream=stream))
    x, memory = some_points(3), some_points(5, seed=1)
    expected = transcription.block(block, [*x], C, memory=[*memory])
    torch.testing.assert_close(block(x, memory), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("masked", [False, True])
def test_kernels_and_products_are_equal_to_second_order_and_forwards(masked):
    space = Lorentz(torch.tensor(C, dtype=torch.float64, requires_grad=True))
    x = [points(Lorentz, C, normal(2, 2, 5, 3, seed=i)).requires_grad_() for i in range(3)]
    # two keys or more: the mean of one, moved off the hyperboloid, has a length that is clamped
    mask = torch.ones(5, 5).tril(1).bool() if masked else None
    given = (*x, space.c)

    def by_kernels(*given):
        return kernels.attended(Lorentz(given[3]), *given[:3], scale=given[3] / 2, mask=mask)

    def by_products(*given):
        space, options = Lorentz(given[3]), {"scale": given[3] / 2, "mask": mask}
        return kernels.attended(space, *given[:3], **options, dropout=lambda w: w)

    weights = normal(2, 2, 5, 3, seed=9)
    outs = [f(*given) for f in (by_kernels, by_products)]
    torch.testing.assert_close(*outs, rtol=1e-12, atol=1e-12)
    for order in (False, True):
        first = [
            torch.autograd.grad((weights * out).sum(), given, create_graph=order, retain_graph=True)
            for out in outs
        ]
        torch.testing.assert_close(*first, rtol=1e-10, atol=1e-12)
    second = [
        torch.autograd.grad(sum(g.square().sum() for g in of), given, retain_graph=True)
        for of in first
    ]
    torch.testing.assert_close(*second, rtol=1e-9, atol=1e-11)
    assert torch.autograd.gradcheck(by_kernels, given, fast_mode=True)
    along = tuple(torch.ones_like(x) for x in given)
    backwards = jvp(by_products, given, along)[1]  # by two reverse derivatives
    plain = tuple(x.detach() for x in given)
    torch.testing.assert_close(torch.func.jvp(by_kernels, plain, along)[1], backwards)
    with forward_ad.dual_level():
        duals = map(forward_ad.make_dual, plain, along)
        moved = forward_ad.unpack_dual(by_kernels(*duals)).tangent
    torch.testing.assert_close(moved, backwards)
    mapped = torch.vmap(by_kernels, (0, 0, 0, None))(*given)
    torch.testing.assert_close(mapped, outs[1], rtol=1e-12, atol=1e-12)
    (rows,) = torch.autograd.grad(
        by_kernels(*given), x[:1], torch.eye(60).double().reshape(60, 2, 2, 5, 3),
        is_grads_batched=True,
    )  # fmt: skip
    expected = torch.autograd.functional.jacobian(lambda q: by_products(q, *given[1:]), x[0])
    torch.testing.assert_close(rows, expected.reshape(rows.shape), rtol=1e-9, atol=1e-11)


@streams
def test_exported_attention_turns_what_attention_turns(stream):
    layer = LorentzAttention(Lorentz(0.7), 4, 2, rotary_base=9.0, stream=stream).requires_grad_(
        False
    )
    x = Lorentz(0.7).expmap0(Lorentz(0.7).lift(torch.randn(2, 3, 4)))
    for given in ((x,), (x, x[:, :2])):
        found = torch.export.export(layer, given).module()(*given)
        torch.testing.assert_close(found, layer(*given))


def test_a_query_without_keys_has_the_origin_and_takes_part_in_no_derivative():
    space, mask = Lorentz(C), torch.ones(5, 5).tril().bool()
    mask[2] = False
    x = [points(Lorentz, C, normal(2, 2, 5, 3, seed=i)).requires_grad_() for i in range(3)]
    options = {"scale": 0.5, "mask": mask}
    ways = [
        lambda *x: kernels.attended(space, *x, **options),
        lambda *x: kernels.attended(space, *x, **options, dropout=lambda w: w),
        torch.vmap(lambda *x: kernels.attended(space, *x, **options)),
    ]
    kept = [0, 1, 3, 4]
    some = x[0][..., kept, :], *x[1:]
    rows = kernels.attended(space, *some, scale=0.5, mask=mask[kept])
    expected = rows, *torch.autograd.grad(rows.square().sum(), x)
    for way in ways:
        found = way(*x)
        assert not found[..., 2, :].any()
        gradients = torch.autograd.grad(found.square().sum(), x, create_graph=True)
        torch.testing.assert_close((found[..., kept, :], *gradients), expected)
        second = torch.autograd.grad(sum(g.square().sum() for g in gradients), x)
        assert all(g.isfinite().all() for g in second)


def test_without_a_transform_attention_is_torchs_kernel(monkeypatch):
    called = []
    for name in ("scaled_dot_product_attention", "_FLASH"):
        kernel = getattr(kernels, name)
        noted = lambda *args, of=kernel, **options: called.append(of) or of(*args, **options)  # noqa: E731
        monkeypatch.setattr(kernels, name, noted)
    layer, x = LorentzAttention(Lorentz(), 4, 2), Lorentz().origin(3, 5, 5)
    layer(x).sum().backward()
    layer.requires_grad_(requires_grad=False)(x)
    assert len(called) == 2
    called.clear()
    torch.vmap(layer)(x.unsqueeze(0))
    assert not called


@pytest.mark.parametrize(("stream", "most"), [("points", 305), ("tangents", 295)])
def test_a_block_on_a_cuda_device_waits_for_nothing(stream, most):
    block = LorentzEncoderBlock(Lorentz(1.0), 8, 2, stream=stream)
    with rehearsal() as device:
        block, x = block.to(CUDA), Lorentz().origin(3, 5, 9).to(CUDA)
        device.work.clear()
        block(x).sum().backward()
        spent = device.work.total()
    assert spent["waits"] == spent["uploads"] == 0
    assert spent["launches"] <= most


def exact_sum(a, b, w, c):
    """Space coordinates of the sum of two points, in 60 digits."""
    with mpmath.workdps(60):
        a, b, w, c = mpmath.matrix(a), mpmath.matrix(b), mpmath.mpf(w), mpmath.mpf(c)
        t, u = (mpmath.sqrt(1 / c + sum(z * z for z in s)) for s in (a, b))
        m = a + w * b
        length = mpmath.sqrt(c * ((t + w * u) ** 2 - sum(z * z for z in m)))
        return torch.tensor([float((1 + w) * z / length) for z in m], dtype=torch.float64)


@pytest.mark.parametrize("c", [1e-8, C, 30.0])
@pytest.mark.parametrize("far", [1e-3, 1.0, 20.0])
def test_a_sum_of_points_is_right_in_60_digits(c, far):
    x, y = normal(6, 3) / c**0.5, normal(6, 3, seed=1) / c**0.5 * far
    y[0], y[1] = x[0] * (1 + 1e-9), x[1] * far
    w = torch.tensor(0.6, dtype=torch.float64)
    found = lorentz_sum(x, y, w, c)
    for a, b, row in zip(x.tolist(), y.tolist(), found, strict=True):
        expected = exact_sum(a, b, w.item(), c)
        torch.testing.assert_close(row, expected, rtol=1e-12, atol=1e-15 / c**0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("angle", ["same", "opposite", "other"])
def test_sums_of_points_at_all_distances_are_right(dtype, angle):
    eps, w = torch.finfo(dtype).eps, torch.tensor(0.6, dtype=dtype)
    u = torch.nn.functional.normalize(normal(36, 3)).to(dtype)
    v = {"same": u, "opposite": -u, "other": u.flip(0)}[angle]
    sizes = torch.tensor([0.0, 1e-4, 1.0, 8.0, 20.0, 39.0], dtype=dtype).sinh()
    given = sizes.repeat_interleave(6).unsqueeze(-1) * u, sizes.repeat(6).unsqueeze(-1) * v
    x, y = (s.requires_grad_() for s in given)
    found = lorentz_sum(x, y, w, 1.0)
    assert all(g.isfinite().all() for g in torch.autograd.grad(found.sum(), (x, y)))
    for a, b, row in zip(x.tolist(), y.tolist(), found.double(), strict=True):
        if angle == "same" and math.hypot(*a) * math.hypot(*b) > 1 / eps:
            continue  # directions that differ by rounding alone are already far apart
        expected = exact_sum(a, b, w.item(), 1.0)
        close = {"rtol": 0, "atol": 20 * eps * float(expected.abs().max())}
        torch.testing.assert_close(row, expected, **close)


def test_derivatives_of_a_sum_are_those_of_differences():
    given = [normal(4, 3, seed=i).requires_grad_() for i in range(2)]
    given += [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.6, C)]
    assert torch.autograd.gradcheck(lorentz_sum, given)
    assert torch.autograd.gradgradcheck(lorentz_sum, given)


def test_without_curvature_a_sum_is_a_sum():
    x, y, w = normal(5, 3), normal(5, 3, seed=1), torch.tensor(0.6, dtype=torch.float64)
    torch.testing.assert_close(lorentz_sum(x, y, w, 1e-12), x + w * y)


def test_a_norm_has_the_root_mean_square_of_its_weight():
    norm = noisy(HyperbolicRMSNorm(Lorentz(C), 4))
    x = some_points(5)
    expected = [transcription.point(transcription.normed(norm, row[1:]), C) for row in x]
    torch.testing.assert_close(norm(x), torch.stack(expected))


def test_products_of_turned_points_depend_on_the_difference_of_positions():
    q, k = normal(1, 6), normal(1, 6, seed=1)
    at = [[(rotated(q, 9.0, start=i) * rotated(k, 9.0, start=j)).sum() for j in range(5)]
          for i in range(5)]  # fmt: skip
    for i in range(4):
        for j in range(4):
            torch.testing.assert_close(at[i][j], at[i + 1][j + 1])
    assert not math.isclose(at[0][0], at[0][1])
    turned = torch.stack([transcription.turned(q[0], i, 9.0) for i in range(5)])
    torch.testing.assert_close(rotated(q.expand(5, 6), 9.0), turned)


def test_absolute_positions_are_added_points():
    layer = noisy(LorentzPositions(Lorentz(C), 7, 4))
    x = some_points(3)
    for i, row in enumerate(layer(x, start=2)):
        p = transcription.exponential(layer.points.weight[2 + i], C)
        mean = x[i] + p
        length = torch.sqrt(-C * transcription.product(mean, mean))
        torch.testing.assert_close(row[1:], 2 * mean[1:] / length)


def test_patches_are_windows_of_a_convolution():
    layer, images = noisy(PatchEmbedding(Lorentz(C), 3, 2, 5)), normal(2, 3, 4, 6)
    twin = Conv2d(Lorentz(C), 3, 5, 2, stride=2).double()
    given = layer.linear.weight[:, 1:].unflatten(-1, (3, 4)).mT.flatten(-2)  # pixels, channels
    with torch.no_grad():
        twin.linear.weight.copy_(torch.cat((layer.linear.weight[:, :1], given), -1))
        twin.linear.bias.copy_(layer.linear.bias)
    pixels = ToManifold(Lorentz(C), mode="space")(images.movedim(-3, -1))
    torch.testing.assert_close(layer(images), twin(pixels).flatten(-3, -2))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_outward_midpoint_is_that_of_its_paper_and_lies_further_out(weighted):
    x, c = some_points(6), C
    weights = normal(6, seed=3).abs() if weighted else torch.ones(6).double()
    before = CentroidPool(Lorentz(C))(x, weights)[0]
    for power in (1.0, 2.0, 5.0):  # the paper's p is 0, 1 and 4
        factors = [w * (math.sqrt(c) * p[0]) ** power for w, p in zip(weights, x, strict=True)]
        mean = sum(f * p for f, p in zip(factors, x, strict=True))
        expected = mean / torch.sqrt(-c * transcription.product(mean, mean))
        found = CentroidPool(Lorentz(C), power=power)(x, weights)
        torch.testing.assert_close(found, expected)
        assert found[0] > before
        before = found[0]


def outward_midpoint(x, weights, power):
    """Space coordinates of the midpoint, in 60 digits, whose exponents have no bound."""
    with mpmath.workdps(60):
        mean = mpmath.matrix(x.shape[1], 1)
        for row, w in zip(x.tolist(), weights.tolist(), strict=True):
            s = [mpmath.mpf(v) for v in row[1:]]
            time = mpmath.sqrt(1 / mpmath.mpf(C) + sum(v * v for v in s))
            mean += w * time**power * mpmath.matrix([time, *s])
        length = mpmath.sqrt(C * (mean[0] ** 2 - sum(v * v for v in mean[1:])))
        return torch.tensor([float(v / length) for v in mean[1:]], dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("power", [3.0, 20.0])
def test_far_points_have_an_outward_midpoint(power, dtype):
    radii = torch.tensor([[0.0], [1.0], [10.0], [20.0], [30.0], [39.0]], dtype=dtype) / C**0.5
    directions = torch.nn.functional.normalize(normal(6, 4)).to(dtype)
    x = Lorentz(C).expmap0(Lorentz(C).lift(radii * directions)).requires_grad_()
    weights = torch.tensor([1.0, 0.5, 2.0, 1.0, 1.0, 1.0], dtype=dtype)
    pool, graphs = CentroidPool(Lorentz(C), power=power), torch.tensor([1, 0, 0, 0, 0, 0])
    for furthest in (5, 4):
        found = pool(x, weights, batch=graphs)
        expected = outward_midpoint(x[1:], weights[1:], power)
        close = {"rtol": 20 * torch.finfo(dtype).eps, "atol": 0}
        torch.testing.assert_close(found[0, 1:], expected.to(dtype), **close)
        torch.testing.assert_close(found[1], x[0])
        torch.testing.assert_close(pool(x[1:], weights[1:]), found[0])
        assert torch.autograd.grad(found[0, 1:].sum(), x)[0].isfinite().all()
        weights[furthest] = 0


@streams
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_checkpointed_block_has_the_gradients_of_the_block(stream, dropout):
    block = LorentzEncoderBlock(Lorentz(C), 4, 2, dropout=dropout, stream=stream).double()
    seeds = {name: value.clone() for name, value in block.named_buffers()}
    found = []
    for reentrant in (None, False, True):
        block.load_state_dict(seeds, strict=False)
        x = some_points(6).reshape(2, 3, 5).requires_grad_()
        y = block(x) if reentrant is None else checkpoint(block, x, use_reentrant=reentrant)
        y.square().sum().backward()
        found.append(x.grad)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])
    assert torch.equal(block(x), block(x)) == (dropout == 0)
    assert torch.equal(block.eval()(x), block(x))
