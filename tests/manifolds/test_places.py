"""Places against hyperbolic geometry in mpmath: distances to radius 100 and beyond, conversions."""

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from fedbolic.manifolds import (
    Euclidean,
    HalfSpacePlaces,
    Lorentz,
    ManifoldPlaces,
    Poincare,
    PolarPlaces,
    to_lorentz,
    to_poincare,
)
from fedbolic.manifolds.places import MOST_AT_ONCE, reach

DIGITS = 400
"""Enough to subtract hyperbolic cosines at radius 400 from each other."""

EPS = torch.finfo(torch.float64).eps

turns = st.integers(-(2**63), 2**63 - 1)
radii = st.floats(0, 100) | st.sampled_from([0.0, 1e-300, 1e-9, 36.0, 100.0])
far_radii = st.floats(0, 1e4)
offsets = st.integers(0, 63).flatmap(lambda bits: st.integers(0, 2**bits))


def wrapped(turn):
    """A turn as a signed number of 64 bits."""
    return (turn + 2**63) % 2**64 - 2**63


def polar(*points):
    turn, radius = zip(*points, strict=True)
    return PolarPlaces(torch.tensor(turn), torch.tensor(radius, dtype=torch.float64))


def half_space(*points):
    *x, log_y = zip(*points, strict=True)
    return HalfSpacePlaces(
        torch.tensor(x, dtype=torch.float64).T, torch.tensor(log_y, dtype=torch.float64)
    )


def polar_distance(a, b):
    """The law of cosines of the plane, in many digits."""
    with mpmath.workdps(DIGITS):
        angle = mpmath.pi * (a[0] - b[0]) / mpmath.mpf(2) ** 63
        r, s = mpmath.mpf(a[1]), mpmath.mpf(b[1])
        cosh = mpmath.cosh(r) * mpmath.cosh(s) - mpmath.sinh(r) * mpmath.sinh(s) * mpmath.cos(angle)
        return mpmath.acosh(max(cosh, 1))  # rounding can leave less at equal points


def half_space_distance(a, b):
    """``acosh(1 + |p - q|^2 / (2 y_p y_q))``, in many digits."""
    with mpmath.workdps(2 * DIGITS):
        x, y = ([mpmath.mpf(number) for number in point] for point in (a, b))
        heights = mpmath.exp(x.pop()), mpmath.exp(y.pop())
        square = mpmath.fsum((p - q) ** 2 for p, q in zip(x, y, strict=True))
        square += (heights[0] - heights[1]) ** 2
        return mpmath.acosh(1 + square / (2 * heights[0] * heights[1]))


def check(found, exact, roundings):
    """Relative error in roundings of float64."""
    assert abs(mpmath.mpf(float(found)) - exact) <= roundings * EPS * exact + mpmath.mpf(10) ** -100


@given(turns, offsets, radii, radii)
def test_distances_in_the_plane_are_right_to_a_few_roundings_to_radius_100(turn, offset, r, s):
    a, b = (turn, r), (wrapped(turn + offset), s)
    check(polar(a).dist(polar(b)), polar_distance(a, b), 16)
    check(polar(a).cdist(polar(b)), polar_distance(a, b), 16)


@given(turns, offsets, far_radii, far_radii)
def test_distances_in_the_plane_stay_right_where_exponentials_overflow(turn, offset, r, s):
    a, b = (turn, r), (wrapped(turn + offset), s)
    with mpmath.workdps(9000):
        half = mpmath.pi * (a[0] - b[0]) / mpmath.mpf(2) ** 64
        inner = mpmath.sinh(mpmath.mpf(r) / 2 - mpmath.mpf(s) / 2) ** 2
        inner += mpmath.sinh(mpmath.mpf(r)) * mpmath.sinh(mpmath.mpf(s)) * mpmath.sin(half) ** 2
        exact = 2 * mpmath.asinh(mpmath.sqrt(inner))
    check(polar(a).dist(polar(b)), exact, 16 + 4 * max(r, s))


def test_turns_wrap_around_and_narrow_turns_have_their_own_unit():
    edge = polar((2**63 - 1, 50.0), (-(2**63), 50.0))
    check(edge.dist(edge[torch.tensor([1, 0])])[0], polar_distance((0, 50.0), (1, 50.0)), 16)
    wide = polar((2**62, 3.0), (-(2**63), 4.0))
    narrow = PolarPlaces((wide.turns >> 32).to(torch.int32), wide.radii)
    assert_close(narrow.cdist(narrow), wide.cdist(wide), rtol=0, atol=0)
    assert_close(narrow.angles, wide.angles, rtol=0, atol=0)
    with pytest.raises(ValueError, match="one dtype"):
        narrow.dist(wide)
    with pytest.raises(TypeError, match="PolarPlaces have no distance from HalfSpacePlaces"):
        wide.cdist(half_space((0.0, 0.0)))


positions = st.floats(-1, 1, allow_subnormal=False)
log_heights = st.floats(-100, 100) | st.sampled_from([0.0, -1e-9])


@given(*[st.tuples(positions, positions, log_heights)] * 2, st.floats(0, 1e-3))
def test_distances_in_the_half_space_are_right_to_a_few_roundings(a, b, near):
    for other in (b, (a[0] + near, a[1], a[2] * (1 + near))):
        places = half_space(a, other)
        swapped = places[torch.tensor([1, 0])]
        exact = half_space_distance(a, other)
        check(places.dist(swapped)[0], exact, 16)
        check(places.cdist(places)[0, 1], exact, 16)


def test_distances_in_the_half_space_stay_right_where_exponentials_overflow():
    a, b, c = (0.0, -2000.0), (1e-100, -2000.0), (1e-100, -1500.5)
    for first, second in ((a, b), (b, c), (a, c), (a, a)):
        exact = half_space_distance(first, second)
        check(half_space(first).dist(half_space(second)), exact, 16 + 4 * 2000)


# of float64 images, different points closer than this may have one
coarse = st.integers(-(10**6), 10**6).map(lambda number: number / 10**6)
coarse_turns = st.integers(-(2**23), 2**23 - 1).map(lambda number: number * 2**40)


@given(coarse_turns, coarse_turns, *[coarse.map(lambda x: 7 + 7 * x)] * 2)
def test_images_in_the_models_have_the_distances_of_the_places(turn, other, r, s):
    places = polar((turn, r), (other, s))
    exact = polar_distance((turn, r), (other, s))
    # a coordinate's rounding moves a point by that times e^r
    error = 8 * EPS * math.exp(max(r, s)) + float(exact) * 1e-12
    for manifold, points in (
        (Poincare(), places.to_poincare()),
        (Lorentz(), places.to_lorentz()),
    ):
        images = ManifoldPlaces(manifold, points)
        assert abs(images.cdist(images)[0, 1] - float(exact)) <= error
        assert manifold.contains(points).all()


@given(*[st.tuples(coarse, coarse, coarse.map(lambda x: 10 * x))] * 2)
def test_images_of_the_half_space_have_its_distances_and_its_origin(a, b):
    places, exact = half_space(a, b), half_space_distance(a, b)
    radius = float(places.dist(half_space((0, 0, 0), (0, 0, 0))).max())
    for manifold, points in ((Poincare(), places.to_poincare()), (Lorentz(), places.to_lorentz())):
        images = ManifoldPlaces(manifold, points)
        error = 8 * EPS * math.exp(radius) + float(exact) * 1e-12
        assert abs(images.cdist(images)[0, 1] - float(exact)) <= error
        assert manifold.contains(points).all()


def test_the_half_space_stands_upright_in_the_ball():
    points = half_space((0.0, 0.0, math.log(3.0)), (0.5, 0.0, 0.0)).to_poincare()
    assert_close(points[0], torch.tensor([0.0, 0.0, -0.5]).double())
    assert points[1, 0] > 0 == points[1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("model", ["to_poincare", "to_lorentz"])
def test_a_model_refuses_points_that_it_cannot_hold(model, dtype):
    bound = reach(dtype)
    inside, outside = polar((0, bound - 0.01)), polar((0, 1.0), (0, bound + 0.01))
    for places in (inside, half_space((0.0, -bound + 0.01))):
        assert getattr(places, model)(dtype).dtype == dtype
    table = to_poincare(Lorentz(), Lorentz().expmap0(torch.tensor([[0.0, 15.0]]).double()))
    assert getattr(ManifoldPlaces(Poincare(), table), model)(dtype).dtype == dtype
    far = Lorentz().expmap0(torch.tensor([[0.0, bound + 0.01, 0.0]]).double())
    for places in (outside, half_space((0.0, bound + 0.01)), ManifoldPlaces(Lorentz(), far)):
        with pytest.raises(ValueError, match=rf"holds points up to radius {bound:.1f}, but one"):
            getattr(places, model)(dtype)


@pytest.mark.parametrize("model", ["to_poincare", "to_lorentz"])
def test_a_model_refuses_different_points_with_one_image(model):
    close = polar((2**61, 3.0), (2**61 + 1, 3.0))
    same = polar((5, 3.0), (5, 3.0), (1, 0.0), (2, -0.0))  # two points, each twice
    flat = half_space((0.25, 0.0), (0.25 + 1e-9, 0.0))
    assert len(getattr(same, model)()) == 4
    for places in (close, flat, ManifoldPlaces(Lorentz(), flat.to_lorentz())):
        with pytest.raises(ValueError, match="2 different points have 1 images in"):
            getattr(places, model)(torch.float32)


def test_places_of_a_manifold_are_its_points():
    space = Lorentz(0.5)
    tangents = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    points = space.expmap0(space.lift(tangents))
    places = ManifoldPlaces(space, points)
    assert (len(places), places.dim, places.tensors()["points"] is points) == (7, 3, True)
    ball = ManifoldPlaces(Poincare(0.5), places.to_poincare(torch.float32))
    assert ball.dim == 3
    for other in (ball, ManifoldPlaces(Lorentz(0.5), ball.to_lorentz())):
        assert_close(other.cdist(other), places.cdist(places), rtol=1e-4, atol=1e-5)
    assert_close(ball.to_lorentz(), to_lorentz(Poincare(0.5), ball.points.double()))
    rows = torch.tensor([3, 0, 3])
    assert_close(places[rows].dist(places[rows]), torch.zeros(3).double())
    for refused in (Euclidean(), Poincare(0.0)):
        with pytest.raises(ValueError, match="not in a hyperbolic space"):
            ManifoldPlaces(refused, points).to_lorentz()


@pytest.mark.parametrize("places", [polar(*[(t * 2**50, 1.0 + t) for t in range(70)])])
def test_chunks_and_rows_do_not_alter_distances(places, monkeypatch):
    whole = places.cdist(places)
    monkeypatch.setattr("fedbolic.manifolds.places.MOST_AT_ONCE", 200)
    assert len(whole) ** 2 < MOST_AT_ONCE
    assert_close(places.cdist(places), whole, rtol=0, atol=0)
    rows = torch.tensor([69, 3])
    assert_close(places[rows].cdist(places), whole[rows], rtol=0, atol=0)
    assert_close(places[rows].dist(places[rows.flip(0)]), whole[rows, rows.flip(0)], rtol=0, atol=0)


def test_no_places_have_no_distances():
    ball = ManifoldPlaces(Poincare(), torch.zeros(1, 2))
    for one in (polar((0, 0.0)), half_space((0.0, 0.0)), ball):
        none = one[torch.tensor([], dtype=torch.int64)]
        assert none.dist(none).shape == (0,)
        assert none.cdist(one).shape == (0, 1)
        assert one.cdist(none).shape == (1, 0)
        assert len(none.to_poincare()) == len(none.to_lorentz()) == 0
