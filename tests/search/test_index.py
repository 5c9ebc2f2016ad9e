"""Exact search: brute force in other arithmetic as the oracle, on tables made to be hard."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbolic.manifolds import (
    Euclidean,
    HalfSpacePlaces,
    Lorentz,
    ManifoldPlaces,
    Poincare,
    PolarPlaces,
    to_lorentz,
)
from fedbolic.search import HyperbolicIndex
from fedbolic.search.ball import COORDINATE_ROUNDING, UnitBall, shifted_ball

seeds = st.integers(0, 2**31)
curvatures = st.sampled_from([0.25, 1.0, 3.0])


def drawn(seed, num, dim, radius):
    """Points of the unit ball in float64, of which a few are near the origin and most far out."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(num, dim))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    radii = radius * rng.uniform(0, 1, size=(num, 1)) ** 0.3
    return torch.from_numpy(np.tanh(radii / 2) * directions)


def exact_distance(x, y, c=1.0):
    """Distance of two points of the ball of curvature -c, by mpmath with 60 digits."""
    with mpmath.workdps(60):
        x, y = ([mpmath.mpf(float(v)) for v in point] for point in (x, y))
        apart = sum((a - b) ** 2 for a, b in zip(x, y, strict=True))
        gaps = [1 - c * sum(a * a for a in point) for point in (x, y)]
        return float(mpmath.acosh(1 + 2 * c * apart / (gaps[0] * gaps[1])) / mpmath.sqrt(c))


def wide_distances(queries, points):
    """All distances in the unit ball in the 80 bits of ``longdouble``, by the inverse cosine."""
    x, y = (np.asarray(a, dtype=np.longdouble) for a in (queries, points))
    apart = ((x[:, None] - y[None]) ** 2).sum(-1)
    gaps = (1 - (x**2).sum(-1))[:, None] * (1 - (y**2).sum(-1))
    return np.arccosh(1 + 2 * apart / gaps).astype(np.float64)


def assert_nearest(found, distances, k, tolerance=1e-7):
    """The rows found are ``k`` different ones at the ``k`` smallest distances."""
    rows = found.rows.numpy()
    assert rows.shape == (len(distances), k)
    assert all(len(set(row)) == k for row in rows)
    wanted = np.sort(distances, axis=1)[:, :k]
    np.testing.assert_allclose(np.take_along_axis(distances, rows, 1), wanted, atol=tolerance)
    np.testing.assert_allclose(found.distances, wanted, atol=tolerance)
    assert (found.distances.diff(dim=1) >= 0).all()


@settings(max_examples=25)
@given(seeds, st.integers(2, 6), st.floats(0.5, 14), st.integers(1, 12), curvatures, st.booleans())
def test_the_nearest_are_those_of_brute_force(seed, dim, radius, k, c, hyperboloid):
    unit = drawn(seed, 700, dim, radius)
    table = ManifoldPlaces(Poincare(c), unit / c**0.5)
    if hyperboloid:
        table = ManifoldPlaces(Lorentz(c), to_lorentz(Poincare(c), table.points))
    index = HyperbolicIndex(table)
    rows = torch.arange(0, 700, 70)
    distances = wide_distances(unit[rows], unit) / c**0.5
    found = index.search(rows, k)
    assert_nearest(found, distances, k)
    assert found.exact.all()
    assert not index.scans
    again = index.search(table[rows].points, k)
    assert torch.equal(again.rows, found.rows)


@settings(max_examples=5)
@given(seeds, st.floats(1, 18), curvatures)
def test_the_nearest_are_those_of_sixty_digits(seed, radius, c):
    points = drawn(seed, 300, 3, radius) / c**0.5
    queries = drawn(seed + 1, 3, 3, radius) / c**0.5
    found = HyperbolicIndex.of(Poincare(c), points).search(queries, 3)
    distances = [[exact_distance(q, p, c) for p in points] for q in queries]
    assert_nearest(found, np.array(distances), 3)


@given(st.floats(0, 1), st.floats(1e-3, 25), st.floats(0, 25))
def test_the_shifted_ball_holds_the_hyperbolic_ball(turn, r, radius):
    """The sphere about ``q`` of radius ``r``, made in the plane with 60 digits."""
    with mpmath.workdps(60):
        q, angle = mpmath.tanh(mpmath.mpf(radius) / 2), 2 * mpmath.pi * turn
        y = mpmath.tanh(mpmath.mpf(r) / 2) * mpmath.expj(angle)
        z = (q + y) / (1 + q * y)
        gap = float(1 - q * q)
    centre, enclosing = shifted_ball(np.array([float(q), 0.0]), gap, math.sinh(r / 2) ** 2)
    distance = float(abs(z - centre[0]))
    assert distance <= enclosing
    slack = 64 * COORDINATE_ROUNDING * (1 + math.exp(radius)) if radius < 20 else math.inf
    assert enclosing <= distance * (1 + 1e-9) + slack


@settings(max_examples=50)
@given(seeds, st.floats(0, 28), st.floats(-1, 1), st.integers(2**18, 2**40))
def test_bounds_are_above_what_rounding_hides(seed, radius, more, between):
    """``sinh^2`` of half the distance of places whose ball coordinates are rounded."""
    turn = int(np.random.default_rng(seed).integers(-(2**62), 2**62))
    radii = torch.tensor([radius, max(0.0, radius + more * 1e-3)]).double()
    places = PolarPlaces(torch.tensor([turn, turn + between]), radii)
    ball = UnitBall.of(places)
    bound = ball.bounds(ball.coordinates[0], ball.gaps[0], slice(1, 2))
    first, second = (places[torch.tensor([i])] for i in (0, 1))
    exact = float(first.dist(second))
    assert bound[0] * (1 + 1e-12) >= math.sinh(exact / 2) ** 2


def test_ties_at_the_last_distance_are_resolved():
    angles = torch.arange(3000).double() * (2 * math.pi / 3000)
    ring = torch.stack((angles.cos(), angles.sin()), 1) * math.tanh(2.0)
    found = HyperbolicIndex.of(Poincare(), torch.cat((ring, torch.zeros(1, 2)))).search([3000], 7)
    assert found.exact.all()
    assert found.rows[0, 0] == 3000
    np.testing.assert_allclose(found.distances[0, 1:], 4.0, rtol=1e-12)


@given(seeds, st.integers(1, 60))
def test_copies_of_a_point_all_count(seed, k):
    cluster = drawn(seed, 1, 4, 12.0).expand(900, 4)
    others = drawn(seed + 1, 300, 4, 12.0)
    found = HyperbolicIndex.of(Poincare(), torch.cat((cluster, others))).search([0], k)
    assert found.exact.all()
    assert found.distances.abs().max() == 0
    assert (found.rows < 900).all()


@given(seeds)
def test_close_clusters_far_out_are_kept_apart(seed):
    """Points a thousandth apart at radius 15, where coordinates differ by 1e-10."""
    rng = np.random.default_rng(seed)
    centre = drawn(seed, 1, 3, 0.1)
    centre = centre / centre.norm() * math.tanh(7.5)
    tangents = torch.from_numpy(rng.normal(size=(500, 3))) * 1e-3
    space = Poincare()
    points = space.expmap(centre, tangents * (1 - centre.square().sum()))
    found = HyperbolicIndex.of(space, points).search(torch.arange(5), 9)
    assert_nearest(found, wide_distances(points[:5], points), 9)


@given(seeds, st.integers(1, 5))
def test_a_cluster_far_from_all_inner_points_is_searched_to_the_end(seed, k):
    """The first radius is that of points near the origin, whose ball holds the whole cluster."""
    rng = np.random.default_rng(seed)
    inner = drawn(seed, 700, 3, 1.0)
    centre = torch.tensor([[math.tanh(5.0), 0.0, 0.0]]).double()
    tangents = torch.from_numpy(rng.normal(size=(2000, 3))) * (1 - centre.square().sum())
    points = torch.cat((inner, Poincare().expmap(centre, tangents)))
    rows = torch.arange(700, 2700, 250)
    found = HyperbolicIndex.of(Poincare(), points).search(rows, k)
    assert_nearest(found, wide_distances(points[rows], points), k)
    assert found.exact.all()


def test_k_may_be_the_number_of_points():
    points = drawn(0, 40, 2, 5.0)
    found = HyperbolicIndex.of(Poincare(), points).search([3], 40)
    assert_nearest(found, wide_distances(points[3:4], points), 40)
    single = HyperbolicIndex.of(Poincare(), points[:1]).search([0], 1)
    assert single.rows.tolist() == [[0]]
    assert single.exact.tolist() == [True]


def test_places_beyond_the_ball_are_scanned_and_right():
    rng = np.random.default_rng(5)
    turns = torch.from_numpy(rng.integers(-(2**62), 2**62, 400))
    places = PolarPlaces(turns, torch.from_numpy(rng.uniform(40, 70, 400)))
    index = HyperbolicIndex(places)
    assert index.scans
    found = index.search([7, 9], 5)
    assert found.exact.all()
    assert_nearest(found, places[torch.tensor([7, 9])].cdist(places).numpy(), 5)


def test_half_space_places_are_searched():
    rng = np.random.default_rng(6)
    positions = torch.from_numpy(rng.normal(size=(800, 2)))
    places = HalfSpacePlaces(positions, torch.from_numpy(rng.uniform(-9, 1, 800)))
    index = HyperbolicIndex(places)
    found = index.search(places[torch.tensor([1, 2])], 6)
    assert not index.scans
    assert found.exact.all()
    assert_nearest(found, places[torch.tensor([1, 2])].cdist(places).numpy(), 6)


@pytest.mark.parametrize(("space", "right"), [(Poincare(), 20), (Lorentz(), 30)])
@pytest.mark.parametrize("beyond", [False, True])
def test_answers_beyond_the_rounding_of_distances_are_not_called_exact(space, right, beyond):
    angles = torch.linspace(0, 6, 600).double()
    radii = torch.full((600,), right + (1.0 if beyond else -1.0)).double()
    half = torch.tanh(radii / 2).unsqueeze(1) * torch.stack((angles.cos(), angles.sin()), 1)
    if isinstance(space, Lorentz):
        flat = torch.sinh(radii).unsqueeze(1) * torch.stack((angles.cos(), angles.sin()), 1)
        half = torch.cat((torch.cosh(radii).unsqueeze(1), flat), 1)
    found = HyperbolicIndex.of(space, half).search([300], 3)
    assert found.exact.tolist() == [not beyond]


class Careless:
    """A Euclidean index that forgets every fifth point."""

    exact = False

    def __init__(self, points):
        self.points = points

    def nearest(self, centre, count, *, within):
        order = np.argsort(((self.points - centre) ** 2).sum(1))
        return order[order % 5 > 0][:count]


class Plain(Careless):
    """Brute force, which takes no notice of ``within``."""

    exact = True

    def nearest(self, centre, count, *, within):
        return np.argsort(((self.points - centre) ** 2).sum(1))[:count]


@given(seeds, st.integers(1, 9))
def test_any_exact_index_gives_the_same_and_an_inexact_one_says_so(seed, k):
    points = drawn(seed, 600, 3, 11.0)
    rows = torch.arange(0, 600, 100)
    own = HyperbolicIndex.of(Poincare(), points).search(rows, k)
    plain = HyperbolicIndex.of(Poincare(), points, Plain).search(rows, k)
    assert torch.equal(plain.rows, own.rows)
    assert plain.exact.all()
    careless = HyperbolicIndex.of(Poincare(), points, Careless).search(rows, k)
    assert not careless.exact.any()
    assert careless.rows.shape == (6, k)
    assert (careless.distances >= own.distances).all()


def test_tables_and_queries_may_be_numpy_and_of_single_precision():
    points = drawn(3, 500, 3, 8.0).float()
    own = HyperbolicIndex.of(Poincare(), points).search(points[:4], 3)
    other = HyperbolicIndex.of(Poincare(), points.numpy()).search(np.arange(4), 3)
    assert torch.equal(own.rows, other.rows)
    assert own.distances.dtype == torch.float64


def test_no_query_has_no_neighbours():
    found = HyperbolicIndex.of(Poincare(), drawn(3, 500, 3, 8.0)).search(torch.zeros(0, 3), 4)
    assert [tuple(part.shape) for part in found] == [(0, 4), (0, 4), (0,)]


@pytest.mark.parametrize(
    ("queries", "k", "message"),
    [
        ([0], 0, "k must be in 1 to 9"),
        ([0], 10, "k must be in 1 to 9"),
        ([9], 1, "rows must be in 0 to 8, got 9"),
        ([-1], 1, "rows must be in 0 to 8, got -1"),
        ([[0]], 1, "list of integers"),
        ([True], 1, "list of integers"),
        ([[0.1, 0.2]], 1, "rows of 3 numbers"),
        ([0.1, 0.2, 0.3], 1, "rows of 3 numbers"),
        ([[0.1, 0.2, math.nan]], 1, "finite"),
        ([[1.0, 0.0, 0.0]], 1, "not on"),
        (PolarPlaces(torch.zeros(1).long(), torch.zeros(1).double()), 1, "PolarPlaces"),
        (ManifoldPlaces(Poincare(2.0), torch.zeros(1, 3)), 1, "space"),
        (ManifoldPlaces(Lorentz(), torch.eye(4)[:1]), 1, "space"),
    ],
)
def test_wrong_questions_are_refused(queries, k, message):
    index = HyperbolicIndex.of(Poincare(), drawn(0, 9, 3, 2.0))
    with pytest.raises(ValueError, match=message):
        index.search(queries, k)


@pytest.mark.parametrize(
    ("space", "points", "message"),
    [
        (Poincare(), torch.zeros(0, 2), "no point"),
        (Poincare(), torch.tensor([[2.0, 0.0]]), "not on"),
        (Lorentz(), torch.tensor([[1.0, math.inf]]), "finite"),
        (Poincare(0.0), torch.zeros(3, 2), "above 0"),
        (Euclidean(), torch.zeros(3, 2), "Lorentz or Poincare"),
    ],
)
def test_wrong_tables_are_refused(space, points, message):
    with pytest.raises(ValueError, match=message):
        HyperbolicIndex.of(space, points)


def test_coordinates_of_places_without_a_manifold_are_refused():
    places = PolarPlaces(torch.zeros(3).long(), torch.arange(3).double())
    with pytest.raises(ValueError, match="give such places"):
        HyperbolicIndex(places).search(torch.zeros(1, 2), 1)


@given(seeds)
def test_points_of_the_hyperboloid_far_beyond_the_ball_do_no_harm(seed):
    """Radii to 90, of which the ball in float64 resolves 36; polar places are the oracle."""
    rng = np.random.default_rng(seed)
    radii = torch.from_numpy(rng.uniform(0, 90, 800) ** rng.uniform(0.5, 1.0, 800))
    turns = torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, 800))
    polar = PolarPlaces(turns, radii)
    flat = radii.sinh().unsqueeze(1) * torch.stack((polar.angles.cos(), polar.angles.sin()), 1)
    points = torch.cat((radii.cosh().unsqueeze(1), flat), 1)
    found = HyperbolicIndex.of(Lorentz(), points).search(torch.arange(20), 5)
    distances = polar[torch.arange(20)].cdist(polar).numpy()
    near = (radii[:20] < 30).numpy()
    assert found.exact[torch.from_numpy(near)].any()
    kth = np.sort(distances, axis=1)[:, :5]
    exact = found.exact.numpy()
    np.testing.assert_allclose(found.distances[exact], kth[exact], atol=1e-5)


def test_points_whose_squares_overflow_are_searched():
    radii = torch.tensor([*range(1, 400), 340.0, 345.0]).double()
    flat = torch.exp(radii.clamp(max=345)).unsqueeze(1) * torch.tensor([[0.6, 0.8]]).double()
    points = torch.cat((flat[:, :1], flat), 1)
    found = HyperbolicIndex.of(Lorentz(), points).search([0, 200], 3)
    assert found.rows[0].tolist() == [0, 1, 2]
    assert found.exact.tolist() == [True, False]


@pytest.mark.parametrize("space", [Lorentz, Poincare])
def test_a_learnt_curvature_has_the_value_of_now(space):
    c = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    points = space(0.5).expmap0(
        torch.nn.functional.pad(torch.eye(3).double(), (int(space is Lorentz), 0))
    )
    found = HyperbolicIndex.of(space(c), points.requires_grad_()).search(points, k=3)
    expected = HyperbolicIndex.of(space(0.5), points.detach()).search(points.detach(), k=3)
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-6)  # roots of rounding at 0
    assert torch.equal(found[1][:, 0], torch.arange(3))
    assert not found[0].requires_grad
