"""Hulls: idempotent, preserved by isometries, equal to Algorithm 1 and to linear programs."""

import math
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.spatial import ConvexHull

from fedbolic.manifolds import Poincare
from fedhull.geometry.extreme import extreme_points, is_combination
from fedhull.geometry.hull import homogeneous, hull, klein, orientation, require_ball
from tests.fedhull.graham import graham_scan

seeds = st.integers(0, 2**31)
curvatures = st.sampled_from([0.1, 1.0, 4.0])


def spread(seed, n, c=1.0, radius=3.0, dim=2):
    """Points in all directions, up to the given hyperbolic radius."""
    g = np.random.default_rng(seed)
    u = g.normal(size=(n, dim))
    u *= (g.random(n) * radius / 2 / np.linalg.norm(u, axis=1))[:, None]
    return Poincare(c).expmap0(torch.from_numpy(u / math.sqrt(c))).numpy()


def cluster(seed, n, distance):
    """Points within 1 of a centre at a distance from the origin, rounded to doubles."""
    near = torch.from_numpy(spread(seed, n, radius=1.0))
    centre = Poincare().expmap0(torch.tensor([distance / 2, 0.0], dtype=torch.float64))
    return Poincare().mobius_add(centre, near).numpy()


def exact_chain(points):
    """Gift wrapping in rational arithmetic: from each corner to the point with all on its left."""
    flat = [homogeneous(point, 1.0) for point in points]
    different = [i for i, p in enumerate(points.tolist()) if points.tolist().index(p) == i]
    start = min(different, key=lambda i: [Fraction(v, flat[i][0]) for v in flat[i][1:]])
    found = [start]
    while True:
        best = None
        for i in different:
            if i == found[-1]:
                continue
            turn = 1 if best is None else -orientation(flat[found[-1]], flat[best], flat[i])
            if turn > 0 or (turn == 0 and farther(flat, found[-1], i, best)):
                best = i
        if best in (start, None):
            return found
        found.append(best)


def farther(flat, here, one, other):
    """True if ``one`` is farther than ``other`` from ``here``, all three on one line."""
    at = [[Fraction(v, flat[i][0]) for v in flat[i][1:]] for i in (here, one, other)]
    away = [max(abs(a - b) for a, b in zip(at[0], of, strict=True)) for of in at[1:]]
    return away[0] > away[1]


def exact_extremes(points):
    """Extreme points of a small set by definition, in rational arithmetic."""
    rows = [
        (Fraction(1) + Fraction(x) ** 2 + Fraction(y) ** 2, Fraction(x), Fraction(y))
        for x, y in points.tolist()
    ]
    flat = [(x / w, y / w) for w, x, y in rows]

    def side(p, q, r):
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    def inside(p, others):
        for a in others:
            for b in others:
                between = (a[0] - p[0]) * (b[0] - p[0]) + (a[1] - p[1]) * (b[1] - p[1]) <= 0
                if side(a, b, p) == 0 and between:
                    return True
        turns = [(a, b, e) for a in others for b in others for e in others]
        return any(
            side(a, b, p) >= 0 and side(b, e, p) >= 0 and side(e, a, p) >= 0 and side(a, b, e) > 0
            for a, b, e in turns
        )

    return {
        i
        for i, p in enumerate(flat)
        if not inside(p, [q for q in flat if q != p]) and flat.index(p) == i
    }


@given(seeds, st.integers(1, 60), curvatures)
def test_a_hull_is_that_of_algorithm_1(seed, n, c):
    x = spread(seed, n, c)
    assert set(hull(x, c=c)) == set(graham_scan(x, c=c))


def beyond_a_plane(flat, i):
    """True if a plane separates a point from all others, by a linear program."""
    apart = np.delete(flat, i, axis=0) - flat[i]
    bound, nothing = -np.ones(len(apart)), np.zeros(flat.shape[1])
    return linprog(nothing, A_ub=apart, b_ub=bound, bounds=(None, None)).status == 0


@given(seeds, st.integers(2, 25), curvatures, st.sampled_from([2, 3, 7]))
def test_extreme_points_lie_beyond_a_plane_and_the_rest_do_not(seed, n, c, dim):
    x = spread(seed, n, c, dim=dim)
    found, flat = set(extreme_points(x, c=c)), klein(x, c=c)
    assert found == {i for i in range(n) if beyond_a_plane(flat, i)}
    assert found == {i for i in range(n) if not is_combination(flat, i)}


@given(seeds, st.integers(1, 60), curvatures)
def test_a_hull_is_idempotent(seed, n, c):
    x = spread(seed, n, c)
    corners = x[hull(x, c=c)]
    assert hull(corners, c=c).tolist() == list(range(len(corners)))


@given(seeds, st.integers(1, 60), curvatures)
def test_isometries_keep_the_hull(seed, n, c):
    x = spread(seed, n, c)
    (by,) = torch.from_numpy(spread(seed + 1, 1, c, radius=4.0))
    moved = Poincare(c).mobius_add(by, torch.from_numpy(x)).numpy()
    turned = moved @ np.array([[0.6, -0.8], [0.8, 0.6]])
    for image in (moved, turned, turned * [1, -1]):
        assert set(hull(image, c=c)) == set(hull(x, c=c))


@given(seeds, st.integers(3, 60), curvatures)
def test_corners_run_counter_clockwise_and_turn_left(seed, n, c):
    x = spread(seed, n, c)
    corners = [homogeneous(x[i], c) for i in hull(x, c=c)]
    turns = zip(corners, corners[1:] + corners[:1], corners[2:] + corners[:2], strict=True)
    assert all(orientation(*three) > 0 for three in turns)


@given(seeds, st.permutations(range(20)))
def test_order_and_copies_change_nothing(seed, order):
    x = spread(seed, 20)
    again = np.concatenate([x[order], x])
    assert {tuple(p) for p in again[hull(again)]} == {tuple(p) for p in x[hull(x)]}
    assert len(hull(again)) == len(hull(x))
    assert max(hull(again)) < 20  # the first of equal points


@given(seeds, st.integers(1, 40), st.sampled_from([2.0**-600, 2.0**-20, 2.0**30, 2.0**300]))
def test_flat_hulls_do_not_depend_on_the_unit(seed, n, unit):
    g = np.random.default_rng(seed)
    near_one_line = g.random((n, 1)) * g.normal(size=2)  # collinear up to rounding
    x = np.concatenate([near_one_line, near_one_line[:1], [[0.0, 0.0]]])
    assert hull(x * unit, c=0.0).tolist() == hull(x, c=0.0).tolist()


def with_neighbours(seed, corners, n):
    """Random points of the disc, their copies, and points very near to some of them or in line."""
    g = np.random.default_rng(seed)
    x = spread(seed, corners)
    one, other = x[g.integers(corners, size=(2, n))]
    along = g.choice([0.0, 1e-15, 1e-10, 1e-6, 0.5, 1 - 1e-6, 1.0], size=(n, 1))
    aside = g.normal(size=(n, 2)) * g.choice([0.0, 1e-17, 1e-15, 1e-9, 1e-7], size=(n, 1))
    return np.concatenate([x, one + along * (other - one) + aside, np.round(x, 1)])


@given(seeds, st.integers(3, 30), st.integers(1, 60), st.sampled_from([0.0, 1.0, 3e-4]))
def test_many_points_are_decided_as_few_are(seed, corners, n, width):
    """Only points well inside a polygon are left out, also next to its corners and sides."""
    x = with_neighbours(seed, corners, n) * [1, width]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["fedhull.geometry.hull"], "_FEW", 3)
        assert {tuple(p) for p in x[hull(x)]} == {tuple(x[i]) for i in exact_chain(x)}


@pytest.mark.parametrize("sets", [1, 2, 3])
def test_a_large_set_has_the_hull_of_all_its_parts(sets):
    """The hull of thousands of points in clusters is that of the exact hulls of small parts."""
    centres = Poincare().expmap0(torch.eye(2).double() * 1.5)[:, None]
    some = [torch.from_numpy(spread(seed, 2000, radius=0.5)) for seed in range(sets)]
    at = [Poincare().mobius_add(c, x) for c, x in zip([*centres, -centres[0]], some, strict=False)]
    x = torch.cat(at).numpy()
    parts = x[
        np.concatenate(
            [np.arange(i, i + 50)[exact_chain(x[i : i + 50])] for i in range(0, len(x), 50)]
        )
    ]
    assert {tuple(p) for p in x[hull(x)]} == {tuple(parts[i]) for i in exact_chain(parts)}


@pytest.mark.parametrize("distance", [0.0, 10.0, 18.0, 26.0, 34.0])
def test_far_out_clusters_are_exact(distance):
    for seed in range(3):
        x = cluster(seed, 9, distance)
        assert set(hull(x)) == exact_extremes(x)


def test_qhull_alone_is_wrong_far_out():
    x = cluster(0, 100, 16.0)
    assert set(ConvexHull(klein(x)).vertices) != set(hull(x))


def test_a_large_spread_set_needs_few_exact_decisions(monkeypatch):
    calls = []
    module = sys.modules["fedhull.geometry.hull"]  # the package exports a function of that name
    monkeypatch.setattr(module, "orientation", lambda *p: calls.append(p) or orientation(*p))
    hull(spread(0, 20_000))
    assert len(calls) < 20


@given(st.permutations(range(-7, 8)), st.sampled_from([(8, 0), (4, 2), (0, 8), (4, -4)]))
def test_points_of_one_geodesic_leave_its_ends(places, direction):
    x = np.array(places)[:, None] * np.array([direction]) / 64  # dyadic: no rounding
    assert set(hull(x)) == {places.index(-7), places.index(7)}


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], []),
        ([[0.1, 0.2]], [0]),
        ([[0.1, 0.2]] * 4, [0]),
        ([[0.1, 0.2], [0.3, 0.2], [0.1, 0.2]], [0, 1]),
        ([[0.5, 0.0], [-0.5, 0.0], [0.0, 0.0], [0.25, 0.0]], [0, 1]),
        # geodesics bend inwards: the middle of a side of the square is outside
        ([[0.5, 0.5], [-0.5, 0.5], [-0.5, -0.5], [0.5, -0.5], [0.0, 0.5]], [0, 1, 2, 3, 4]),
        ([[0.5, 0.0], [0.0, 0.5], [0.25, 0.25], [0.0, 0.0]], [0, 1, 2, 3]),
        ([[0.5, 0.0], [0.0, 0.5], [0.1, 0.1], [0.0, 0.0]], [0, 1, 3]),
    ],
)
def test_small_cases_by_hand(points, expected):
    x = np.array(points, dtype=float).reshape(-1, 2)
    assert sorted(hull(x).tolist()) == expected


@pytest.mark.parametrize("point", [[1.0, 0.0], [0.8, 0.61], [math.nan, 0.0], [math.inf, 0.0]])
def test_points_outside_the_disc_are_refused(point):
    for function in (hull, graham_scan, extreme_points):
        with pytest.raises(ValueError, match=r"open ball c \|x\|\^2 < 1 with c=1.0, got .* at 1"):
            function(np.array([[0.0, 0.0], point]))


def test_a_table_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"shape \(n, dim\), got \(2,\)"):
        require_ball(np.zeros(2), c=1.0)


def test_the_last_doubles_before_the_boundary_are_points():
    edge = np.nextafter(1, 0)
    x = np.array([[edge, 0], [0, edge], [-edge, 0], [0.2, 0.2], [0, 0]])
    assert set(hull(x)) == {0, 1, 2}
