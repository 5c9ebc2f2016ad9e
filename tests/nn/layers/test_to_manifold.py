"""The entry from features to points: its bound, its derivatives and its errors."""

import math

import geoopt
import mpmath
import pytest
import torch

from fedbolic.manifolds import Curvature, Lorentz, Poincare, to_poincare
from fedbolic.nn import MLR, ToManifold

KINDS = (Lorentz, Poincare)
MODES = ("hard", "soft", "space")
CS = (0.3, 1.0, 4.0)
LENGTHS = (0.0, 1e-8, 0.5, 1.9, 2.4, 30.0, 1e12)

every_kind = pytest.mark.parametrize("kind", KINDS)
every_mode = pytest.mark.parametrize("mode", MODES)


def features(dtype=torch.float64):
    """Vectors of known lengths in different directions."""
    angles = torch.arange(len(LENGTHS), dtype=dtype)
    unit = torch.stack((angles.cos(), angles.sin()), -1)
    return unit * torch.tensor(LENGTHS, dtype=dtype).unsqueeze(-1)


def true_distance(mode, length, c, radius):
    """Distance from the origin by 40 digits."""
    with mpmath.workdps(40):
        bound = mpmath.mpf(radius) / mpmath.sqrt(c)
        length = mpmath.mpf(length)
        if mode == "hard":
            return float(min(length, bound))
        if mode == "soft":
            return float(bound * mpmath.tanh(length / bound))
        return float(mpmath.asinh(mpmath.sqrt(c) * length) / mpmath.sqrt(c))


@every_kind
@every_mode
@pytest.mark.parametrize("c", CS)
@pytest.mark.parametrize("radius", [0.7, 2.3, 8.0])
def test_distances_from_the_origin_are_those_of_the_formula(kind, mode, c, radius):
    entry = ToManifold(kind(c=c), mode=mode, radius=None if mode == "space" else radius)
    if kind is Poincare and mode == "space":
        pytest.skip("the ball ends before 1e12, next test")
    distances = entry.manifold.dist0(entry(features()))
    expected = [true_distance(mode, length, c, radius) for length in LENGTHS]
    torch.testing.assert_close(
        distances, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0
    )


@every_mode
@pytest.mark.parametrize("c", CS)
def test_both_models_give_the_same_points_in_the_direction_of_the_features(mode, c):
    v = features()[:-1]
    x, y = (ToManifold(kind(c=c), mode=mode)(v) for kind in KINDS)
    torch.testing.assert_close(to_poincare(Lorentz(c), x), y, rtol=1e-9, atol=1e-12)
    across = y[:, 0] * v[:, 1] - y[:, 1] * v[:, 0]
    assert (across.abs() <= 1e-12 * v.norm(dim=-1)).all()


@every_kind
def test_without_a_bound_the_entry_is_the_exponential_map_of_geoopt(kind):
    v = features()[:-2]
    x = ToManifold(kind(c=0.5), radius=math.inf)(v)
    if kind is Lorentz:
        space = geoopt.Lorentz(torch.tensor(2.0, dtype=torch.float64))  # radius squared
        expected = space.expmap0(torch.nn.functional.pad(v, (1, 0)))
    else:
        space = geoopt.PoincareBall(torch.tensor(0.5, dtype=torch.float64))
        expected = space.expmap0(v / 2)
    torch.testing.assert_close(x, expected, rtol=1e-6, atol=1e-6)


@every_mode
def test_in_flat_space_nothing_is_clipped(mode):
    """The flat ball has the metric 4, so a vector at the distance |v| is v / 2."""
    v = features()
    torch.testing.assert_close(ToManifold(Poincare(c=0.0), mode=mode)(v), v / 2)


@every_kind
@every_mode
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_at_0_are_those_of_the_identity_and_finite_anywhere(kind, mode, dtype):
    entry = ToManifold(kind(c=Curvature(torch.tensor(0.7, dtype=dtype))), mode=mode)
    huge = torch.finfo(dtype).max
    v = torch.tensor([[0.0, 0.0], [1e-30, 0.0], [huge, -huge]], dtype=dtype, requires_grad=True)
    x = entry(v)
    gradients = torch.autograd.grad(x.sum(), (v, entry.curvature.raw))
    assert all(g.isfinite().all() for g in gradients)
    slope = 1.0 if kind is Lorentz else 0.5
    torch.testing.assert_close(gradients[0][:2], torch.full((2, 2), slope, dtype=dtype))


@every_kind
@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_no_float_is_mapped_beyond_the_bound(kind, mode):
    entry = ToManifold(kind(), mode=mode)
    v = torch.tensor([[1e20, -1e20], [3e38, 3e38], [2.3, 1e-3]])
    assert (entry.manifold.dist0(entry(v)) <= 2.3 * (1 + 1e-6)).all()


@every_kind
def test_the_bound_is_in_radii_of_a_learnt_curvature(kind):
    curvature = Curvature(1.0)
    entry = ToManifold(kind(c=curvature))
    v = torch.tensor([[30.0, 40.0]])
    with torch.no_grad():
        curvature.raw.copy_(curvature.raw_of(torch.tensor(4.0)))
    torch.testing.assert_close(entry.manifold.dist0(entry(v)), torch.tensor([2.3 / 2]))
    torch.testing.assert_close(entry.length(v), torch.tensor([50.0]))


def test_autocast_gives_points_in_float32_for_half_features():
    entry, head, v = (
        ToManifold(Lorentz()),
        MLR(Lorentz(), 2, 3),
        torch.randn(5, 2).bfloat16(),
    )
    assert entry(v).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        x = entry(v)
        assert x.dtype == torch.float32
        assert head(x).isfinite().all()
    torch.testing.assert_close(x, entry(v.float()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"radius": 0.0}, "radius must be above 0, got 0.0: math.inf"),
        ({"radius": float("nan")}, "radius must be above 0, got nan"),
        ({"mode": "space", "radius": 2.3}, "radius must be None for mode='space'"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ToManifold(Lorentz(), **settings)


def test_what_has_no_features_is_refused():
    with pytest.raises(ValueError, match=r"features along its last axis, got shape \(3, 0\)"):
        ToManifold(Lorentz())(torch.zeros(3, 0))
