"""Kernels of rows, distances and maps, interpreted on the CPU: ``make kernels``."""

import itertools
import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, vmap

from fedbolic.manifolds import Lorentz, Poincare
from tests.kernels.errors import ORIGIN, POINTS, RADII, errors_of
from tests.kernels.pair_errors import pair_errors
from tests.kernels.switch import by_operators, check_derivatives, count_calls
from tests.manifolds.cases import CURVED, normal, points, tangents

pytestmark = pytest.mark.kernels

DTYPES = (torch.float32, torch.float64)
KERNELS = {
    "dist": "rows.row_dist",
    **dict.fromkeys(ORIGIN, "radial.radial_map"),
    **dict.fromkeys(POINTS, "maps.row_map"),
}
TWO = ("dist", *POINTS)
"""Functions of two arguments."""


def of(names):
    """Cases of every model and of some operations."""
    return pytest.mark.parametrize(("kind", "name"), [(k, name) for k in CURVED for name in names])


@pytest.fixture
def on(monkeypatch, name):
    """The kernel in place of the operators, for tensors of the CPU; counts its calls."""
    return count_calls(monkeypatch, KERNELS[name])


def arguments(kind, name, c, *shape, dtype=torch.float64):
    """Points, and tangents of about a radius or other points."""
    size, space = shape[-1] ** 0.5, kind(c)
    if name in ORIGIN:
        u = normal(0, *shape) / size / c**0.5
        u = space.lift(u) if kind is Lorentz else u / 2
        return ((u if name == "expmap0" else by_operators(lambda: space.expmap0(u))).to(dtype),)
    radius = 1 / size if name in POINTS or kind is Poincare else 1
    x, y = (by_operators(lambda i=i: points(kind, c, i, *shape, radius=radius)) for i in (0, 1))
    if name == "expmap":
        y = by_operators(lambda: tangents(kind, c, 2, x, length=1 / size))
    return x.to(dtype), y.to(dtype)


def with_gradients(kind, name, given, *more, weights=None):
    """A function that gives the value, and gradients by the arguments and ``more``."""

    def call():
        made = getattr(kind(given[-1]), name)(*given[:-1])
        g = torch.ones_like(made) if weights is None else weights(made)
        return made, *torch.autograd.grad(made, more, g)

    return call


@of(("dist",))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("radius", RADII)
def test_errors_of_distances_are_those_of_the_operators_but_for_rounding(kind, name, dtype, radius):
    operators = pair_errors(kind, radius, dtype, kernel=None)
    found = pair_errors(kind, radius, dtype, kernel=name)
    for today, now in zip(operators, found, strict=True):
        assert now <= 2 * today + 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    ("name", "radius"),
    [*itertools.product(ORIGIN, RADII), *itertools.product(POINTS, (1e-3, 2.0, 9.0))],
)
@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_errors_of_maps_are_those_of_the_operators_but_for_rounding(kind, name, dtype, radius):
    # rounding a tangent at a radius r of the hyperboloid changes its length by up to eps cosh(r)
    unit = torch.finfo(dtype).eps * (math.cosh(radius) if name in POINTS else 1)
    for today, now in zip(*errors_of(name, kind, radius, dtype), strict=True):
        assert now <= 2 * today + 8 * unit


@of(KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "dim"), [(1, 1), (300, 3), (7, 20), (3, 256)])
def test_rows_of_any_size_have_the_values_and_gradients_of_the_operators(
    kind, name, dtype, n, dim, on
):
    c = torch.tensor(0.7, dtype=dtype, requires_grad=True)
    given = *(t.requires_grad_() for t in arguments(kind, name, 0.7, n, dim, dtype=dtype)), c
    both = with_gradients(
        kind, name, given, *given, weights=lambda made: normal(3, *made.shape, dtype=dtype)
    )
    wanted = by_operators(both)
    assert not on
    eps = torch.finfo(dtype).eps
    for a, b in zip(both(), wanted, strict=True):
        size = max(b.abs().max().item(), 1) if name in POINTS else n if name in ORIGIN else 1
        rtol = 400 * eps if name in ORIGIN else 1e3 * eps
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol * size)
    assert on


@of(("dist",))
def test_the_distance_of_a_point_to_itself_is_0_and_so_is_its_gradient(kind, name, on):
    x = (points(kind, 1.0, 0, 40, 8, dtype=torch.float32) * 3).requires_grad_()
    distances = getattr(kind(1.0), name)(x, x.detach().clone())
    assert not distances.any()
    assert not torch.autograd.grad(distances.sum(), x)[0].any()
    assert on


@of(POINTS)
def test_no_step_stays_at_the_point_with_the_gradients_of_the_operators(kind, name, on):
    x = points(kind, 1.0, 0, 40, 8, dtype=torch.float32)
    x, y = x.requires_grad_(), (torch.zeros_like(x) if name == "expmap" else x.detach().clone())
    given = x, y.requires_grad_(), torch.ones((), requires_grad=True)
    both = with_gradients(kind, name, given, *given, weights=lambda x: normal(1, *x.shape).float())
    (made, *by_kernel), (_, *wanted) = both(), by_operators(both)
    if name == "expmap":
        torch.testing.assert_close(made, x, rtol=1e-6, atol=1e-7)
    else:
        assert not made.any()
    for a, b in zip(by_kernel, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert on


@of(("dist",))
def test_points_beyond_the_manifold_are_clamped_as_the_operators_do(kind, name, on):
    x, y = normal(0, 6, 4, dtype=torch.float32), normal(1, 6, 4, dtype=torch.float32)
    x = x * torch.tensor([1.0, 10.0, 1e3, 1e10, 1e17, 1e18]).unsqueeze(-1)
    given = x.requires_grad_(), y.requires_grad_(), 0.5
    both = with_gradients(kind, name, given, x, y)
    for a, b in zip(both(), by_operators(both), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-30)
    assert on


@of(POINTS)
@pytest.mark.parametrize("c", [1e-4, 0.5, 50.0])
def test_rows_of_any_length_are_clamped_as_the_operators_do(kind, name, c, on):
    lengths = torch.tensor([0.0, 1e-20, 1.0, 100.0, 1e4, 1e8, 1e15]).unsqueeze(-1)
    x, y = normal(0, 7, 4).float() * lengths, normal(1, 7, 4).float() / c**0.5 / 4
    if name == "expmap":  # longer tangents than any step, at points nearer to the origin
        x, y = y, x
    both = with_gradients(kind, name, (x.requires_grad_(), y.requires_grad_(), c), x, y)
    # past the boundary of the ball the operators' gradients by long tangents are rounding errors
    right = 4 if kind is Poincare and name == "expmap" else len(lengths)
    for i, (a, b) in enumerate(zip(both(), by_operators(both), strict=True)):
        sizes = b.abs().amax(-1, keepdim=True).clamp_min(1e-30)
        rows = slice(right if i else None)
        torch.testing.assert_close((a / sizes)[rows], (b / sizes)[rows], rtol=0, atol=1e-4)
    assert on


@pytest.mark.parametrize(
    ("kind", "name"), [(Lorentz, "expmap0"), (Lorentz, "logmap0"), (Poincare, "expmap0")]
)
@pytest.mark.parametrize("c", [1e-4, 1.0, 50.0])
def test_rows_at_the_origin_are_clamped_as_the_operators_do(kind, name, c, on):
    lengths = torch.tensor([0.0, 1e-30, 1e-5, 1.0, 10.0, 43.0, 100.0, 1e4, 1e15])
    x = (normal(0, len(lengths), 4).float() * lengths.unsqueeze(-1)).requires_grad_()
    both = with_gradients(kind, name, (x, c), x)
    (made, by_x), (wanted, slope) = both(), by_operators(both)
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-30)
    torch.testing.assert_close(by_x, slope, rtol=1e-4, atol=1e-6)
    assert on


@pytest.mark.parametrize("name", ["expmap0"])
@pytest.mark.parametrize("length", [20.0, 1e3, 1e6])
def test_tangents_beyond_the_boundary_of_the_ball_turn_its_points_only(name, length, on):
    u = normal(0, 5, 4, dtype=torch.float32)
    u = (length * u / u.norm(dim=-1, keepdim=True)).requires_grad_()
    g = normal(1, 5, 4, dtype=torch.float32)
    (by_u,) = torch.autograd.grad(getattr(Poincare(1.0), name)(u), u, g)
    out = (u / length).detach()
    wanted = (g - (g * out).sum(-1, keepdim=True) * out) / length
    torch.testing.assert_close(by_u * length, wanted * length, rtol=1e-5, atol=1e-5)
    assert on


@pytest.mark.parametrize("name", ["logmap0"])
@pytest.mark.parametrize("c", [1e-4, 1.0, 50.0])
def test_points_outside_the_ball_are_as_far_as_its_boundary(name, c, on):
    x = normal(0, 5, 4).float() * torch.tensor([1e3, 1e5, 1e8, 1e12, 1e15]).unsqueeze(-1)
    made = getattr(Poincare(c), name)(x)
    radii = 2 * c**0.5 * made.norm(dim=-1)
    torch.testing.assert_close(radii, torch.full((5,), 15.9), rtol=0.02, atol=0)
    assert torch.cosine_similarity(made, x).min() > 0.999
    assert on


@of(KERNELS)
@pytest.mark.parametrize("value", [1.0, 0.002], ids=["direct", "series"])
def test_first_and_second_derivatives_in_rows_and_curvature(kind, name, value, on):
    c = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    if name == "dist":
        given = points(kind, value, 0, 2, 3), points(kind, value, 1, 3)
    else:
        given = arguments(kind, name, 1.0, *((1, 2) if name in POINTS else (2, 2)))
    given = c, *(t.requires_grad_() for t in given)

    def call(c, *given):
        return getattr(kind(c), name)(*given)

    if name in POINTS:
        check_derivatives(call, given)
    else:
        assert gradcheck(call, given)
        assert gradgradcheck(call, given)
    assert on


@pytest.mark.parametrize("name", KERNELS)
def test_the_ball_of_curvature_0_is_flat(name, on):
    x, y = normal(0, 4, 3), normal(1, 4, 3)
    wanted = {"dist": 2 * (x - y).norm(dim=-1), "expmap": x + y, "logmap": y - x}.get(name, x)
    given = (x, y) if name in TWO else (x,)
    torch.testing.assert_close(getattr(Poincare(0.0), name)(*given), wanted)
    assert on


@of(TWO)
@pytest.mark.parametrize("shape", [(4, 3), (3,)])
def test_curvatures_and_rows_broadcast_in_any_layout(kind, name, shape, on):
    c = torch.tensor([0.5, 2.0], dtype=torch.float64).reshape(2, 1).requires_grad_()
    x = arguments(kind, name, 2.0, 2, 4, 3)[0]
    y = arguments(kind, name, 2.0, *shape)[1]
    x = x.mT.contiguous().mT.requires_grad_()
    y = torch.stack((y, y), -1)[..., 0].requires_grad_()
    assert not x.is_contiguous()
    assert not y.is_contiguous()
    both = with_gradients(kind, name, (x, y, c), x, y, c, weights=lambda made: 2 * made)
    for a, b in zip(both(), by_operators(both), strict=True):
        torch.testing.assert_close(a, b)
    assert on


@of(KERNELS)
@pytest.mark.parametrize("mapped", ["first", "others", "all"])
def test_vmap_of_values_and_gradients_is_a_loop(kind, name, mapped, on):
    given = *arguments(kind, name, 0.7, 3, 2), torch.tensor(0.7, dtype=torch.float64)
    last = len(given) - 1
    dims = {
        "first": (0, *[None] * last), "others": (None, *[0] * last), "all": (0,) * len(given)
    }[mapped]  # fmt: skip
    given = [
        t if d is None else torch.stack((t, t * 0.9)) for t, d in zip(given, dims, strict=True)
    ]

    def loss(*given):
        return getattr(kind(given[-1]), name)(*given[:-1]).square().sum()

    gradient = grad(loss, argnums=tuple(range(len(given))))
    got = vmap(gradient, in_dims=dims)(*given)
    assert on
    for k in range(2):
        own = [t if d is None else t[k] for t, d in zip(given, dims, strict=True)]
        wanted = by_operators(lambda own=own: gradient(*own))
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a[k], b)


@of(TWO)
def test_mixed_types_and_forward_derivatives_take_the_operators(kind, name, on):
    x, y = arguments(kind, name, 1.0, 5, 3)
    assert getattr(kind(1.0), name)(x, y.float()).dtype == torch.float64
    torch.func.jvp(lambda x: getattr(kind(1.0), name)(x, y), (x,), (normal(3, *x.shape),))
    assert not on


@of(POINTS)
def test_rows_of_another_length_are_refused_by_the_operators(kind, name, on):
    x, _ = arguments(kind, name, 1.0, 5, 3)
    with pytest.raises(RuntimeError, match="size"):
        getattr(kind(1.0), name)(x, x[..., :-1])
    assert not on


@of(KERNELS)
def test_half_types_are_computed_in_float32(kind, name, on):
    given = [t.bfloat16() for t in arguments(kind, name, 1.0, 5, 3)]
    made = getattr(kind(1.0), name)(*given)
    assert made.dtype == torch.bfloat16
    wide = getattr(kind(1.0), name)(*(t.float() for t in given))
    if name == "dist":
        assert torch.equal(made, wide.bfloat16())
    torch.testing.assert_close(made.float(), wide, rtol=0.02, atol=0.02)
    assert on


@pytest.mark.parametrize("name", ["expmap0"])
def test_points_of_half_types_lie_on_the_manifold(name, on):
    u = Lorentz().lift(3 * normal(0, 5, 3)).bfloat16()
    assert Lorentz().contains(getattr(Lorentz(), name)(u)).all()
    assert on


@of(TWO)
def test_no_rows_have_no_images(kind, name, on):
    x = torch.zeros(0, 3, requires_grad=True)
    found = getattr(kind(1.0), name)(x, torch.zeros(0, 3))
    assert found.shape == ((0,) if name == "dist" else (0, 3))
    assert torch.autograd.grad(found.sum(), x)[0].shape == (0, 3)
