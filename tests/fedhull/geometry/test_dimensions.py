"""FedHull in three and more dimensions: bins, hulls, cores, and the whole protocol."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data import HOLDOUT, Client, Examples, FederatedData, HalfPlanes
from fedhull import (
    Central,
    Farthest,
    FedHull,
    HullPeeling,
    HyperbolicBoundary,
    PolarGrid,
    Spectral,
    ValidatedCore,
)
from fedhull.exchanges import arrays
from fedhull.geometry.extreme import extreme_points
from fedhull.geometry.hull import klein
from fedhull.geometry.onion import onion_layers
from fedhull.geometry.shells import Shells
from fedhull.leakage import quantised_hull
from tests.federated.simple_method import train
from tests.fedhull.geometry.test_hull import beyond_a_plane, curvatures, seeds, spread
from tests.fedhull.geometry.test_onion import peeled
from tests.fedhull.test_method import received, scores, sent

dims = st.sampled_from([2, 3, 5, 8])


def distance(x, y, c):
    """Distance from the inner product of the hyperboloid, with a formula for small gaps."""
    gap = np.square(x - y).sum(axis=-1)
    room = (1 - c * np.square(x).sum(axis=-1)) * (1 - c * np.square(y).sum(axis=-1))
    return np.arccosh(1 + 2 * c * gap / room) / math.sqrt(c)


def shells_and_points(dim, epsilon, share, c, seed, n=100):
    """Bins of a ball, and points of it that are uniform in direction and distance."""
    length = 1 / math.sqrt(c)
    epsilon, reach = epsilon * length, 2 * length * math.atanh(share)
    x = spread(seed, n, c, radius=2 * math.atanh(share), dim=dim)
    return Shells(dim, epsilon, reach, length), x


@given(dims, st.sampled_from([0.5, 1.0]), st.sampled_from([0.3, 0.9]), curvatures, seeds)
def test_a_point_is_within_half_of_epsilon_of_its_bins_centre(dim, epsilon, share, c, seed):
    shells, x = shells_and_points(dim, epsilon, share, c, seed)
    bins = shells.encode(x)
    assert 1 <= bins.min() <= bins.max() <= shells.num_bins
    assert distance(x, shells.decode(bins), c).max() <= shells.epsilon / 2 + 1e-9


@given(dims, st.sampled_from([0.3, 0.9]), curvatures, seeds)
def test_points_of_one_bin_are_within_epsilon(dim, share, c, seed):
    """Random points around a start, those of its bin, and all their distances."""
    shells, starts = shells_and_points(dim, 0.5, share, c, seed, n=10)
    g = np.random.default_rng(seed)
    for start in starts:
        width = shells.epsilon * (1 - c * start @ start) / 4
        near = start + width * g.uniform(-1, 1, size=(400, dim))
        near = near[c * np.square(near).sum(axis=1) < share**2]
        same = near[shells.encode(near) == shells.encode(start[None])[0]]
        if len(same):
            assert distance(same[:, None], same, c).max() <= shells.epsilon + 1e-9


@pytest.mark.parametrize(("dim", "epsilon"), [(2, 0.2), (3, 0.6), (4, 1.5), (5, 2.5)])
def test_the_bins_of_a_small_ball_are_numbered_without_gaps(dim, epsilon):
    shells = Shells(dim, epsilon, reach=2.0, length=1.0)
    bins = np.arange(1, shells.num_bins + 1)
    assert (shells.encode(shells.decode(bins)) == bins).all()


@given(st.sampled_from([3, 5, 6]), seeds)
def test_a_centre_of_a_large_grid_lies_in_its_own_bin(dim, seed):
    grid = PolarGrid(0.1, 0.9, dim=dim)
    bins = np.random.default_rng(seed).integers(1, grid.num_bins + 1, 50)
    bins = np.append(bins, [1, grid.num_bins])
    assert grid.encode(grid.decode(bins)).tolist() == bins.tolist()


def test_the_number_of_bins_is_that_of_the_formula():
    """Written out for three dimensions: 6 faces, K squared cells each."""
    grid, n = PolarGrid(0.4, 0.7, c=1.5, dim=3), 0
    s = 1 / math.sqrt(1.5)
    reach = s * math.log((s + 0.7) / (s - 0.7))
    num_shells = math.ceil(3 * reach / 0.4)
    for k in range(1, num_shells + 1):
        n += 6 * math.ceil(6 * s * math.sinh(k * reach / num_shells / s) / 2**0.5 / 0.4) ** 2
    assert grid.num_bins == n


@given(seeds, st.sampled_from([0.05, 0.7]), st.sampled_from([0.5, 0.95]))
def test_bins_of_the_plane_are_those_of_the_paper(seed, epsilon, radius):
    """Eq. (11) to (13), one point at a time."""
    grid = PolarGrid(epsilon, radius)
    assert grid == PolarGrid(epsilon, radius, dim=2)
    reach = math.log((1 + radius) / (1 - radius))
    num_angles = math.ceil(2 * 2 * math.pi * math.sinh(reach) / epsilon)
    width = reach / math.ceil(2 * reach / epsilon)
    points = spread(seed, 20, radius=reach)
    for x, number in zip(points, grid.encode(points), strict=True):
        ring = math.floor(2 * math.atanh(math.hypot(*x)) / width)
        turn = math.atan2(x[1], x[0]) % (2 * math.pi) / (2 * math.pi)
        assert number == ring * num_angles + math.floor(turn * num_angles) + 1


def in_hull(flat, point):
    """True if a point is a convex combination of others, by a linear program."""
    sums = np.vstack([flat.T, np.ones(len(flat))])
    target = np.append(point, 1.0)
    return linprog(np.zeros(len(flat)), A_eq=sums, b_eq=target).status == 0


@settings(max_examples=6)
@given(seeds, st.integers(2, 20), curvatures, st.sampled_from([3, 5, 8]))
def test_every_point_of_a_class_lies_in_its_hull(seed, n, c, dim):
    x = spread(seed, n, c, dim=dim)
    flat, corners = klein(x, c=c), extreme_points(x, c=c)
    assert all(in_hull(flat[corners], point) for point in flat)
    assert all(not in_hull(np.delete(flat[corners], k, 0), flat[i]) for k, i in enumerate(corners))


@settings(max_examples=6)
@given(seeds, st.integers(2, 20), st.sampled_from([3, 4]))
def test_layers_in_space_are_those_of_the_definition(seed, n, dim):
    x = spread(seed, n, dim=dim)
    x = np.concatenate([x, x[:2]])  # copies are in one layer

    def corners(left):
        distinct = np.unique(left, axis=0)
        flat = klein(distinct)
        outer = [i for i in range(len(flat)) if beyond_a_plane(flat, i)]
        return [left.tolist().index(point) for point in distinct[outer].tolist()]

    assert [layer.tolist() for layer in onion_layers(x)] == peeled(x, corners)


@settings(max_examples=6)
@given(seeds, st.integers(0, 40), st.sampled_from([Farthest(0.2), HullPeeling(0.2)]))
def test_the_hull_of_a_core_lies_in_that_of_the_class_whatever_the_order(seed, n, rule):
    x, y = spread(seed, n, dim=3), np.zeros(n, dtype=np.int64)
    kept = rule.kept(x, y, c=1.0, boundary=HyperbolicBoundary())
    order = np.random.default_rng(seed).permutation(n)
    again = rule.kept(x[order], y, c=1.0, boundary=HyperbolicBoundary())
    assert (again == kept[order]).all()
    flat = klein(x)
    outer = flat[extreme_points(x)]
    assert all(in_hull(outer, point) for point in flat[kept])
    corners = len(extreme_points(x[kept]))
    assert corners >= 4 or kept.all()


def test_peeling_takes_a_shell_of_points_off():
    g = np.random.default_rng(0)
    directions = g.normal(size=(40, 4))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    x = np.concatenate([0.5 * directions, 0.1 * directions])
    expected = np.arange(80) >= 40
    assert (HullPeeling(0.5).inside(x, c=1.0, share=0.5) == expected).all()
    assert (Farthest(0.5).inside(x, c=1.0, share=0.5) == expected).all()


def federation(seed, dim, num_clients=3, num_classes=3, n=15):
    """Clients with points around one centre for each class, far apart in different axes."""
    g = np.random.default_rng(seed)

    def examples(count):
        y = np.repeat(np.arange(num_classes), count)
        x = 0.08 * g.normal(size=(len(y), dim))
        x[np.arange(len(y)), y] += 0.55
        return Examples({"x": torch.from_numpy(x), "y": torch.from_numpy(y)})

    meta = Meta(num_classes, (dim,), num_clients)
    empty = Examples({"x": torch.empty(0, dim).double(), "y": torch.empty(0).long()})
    clients = [Client(i, examples(n), empty, examples(5), meta) for i in range(num_clients)]
    held = Client(HOLDOUT, empty, empty, examples(30), meta)
    return FederatedData(tuple(clients), meta, held)


@pytest.mark.parametrize("dim", [3, 5, 8])
@pytest.mark.parametrize("core", [None, Farthest(0.1)])
def test_every_hull_is_the_same_before_and_after_the_coded_round(dim, core):
    data = federation(dim, dim)
    method = FedHull(PolarGrid(0.5, 0.95, dim=dim), boundary=HyperbolicBoundary(10.0), core=core)
    positions, rows = train(method, data)
    if core is None:
        server_state = positions[-1].server_state
        assert received(server_state) == sent(method.grid, server_state, data)
    assert scores(rows, "holdout/accuracy")[None] == 1.0


@pytest.mark.parametrize("grouping", [None, Spectral()])
def test_small_bins_give_the_classifier_of_the_pooled_hulls(grouping):
    data, dim = federation(1, 3), 3
    boundary = HyperbolicBoundary(10.0, pairs=1)
    method = FedHull(PolarGrid(1e-4, 0.95, dim=dim), boundary=boundary)
    if grouping is not None:
        method = dataclasses.replace(method, grouping=grouping)
    positions, _ = train(method, data)
    server_state = positions[-1].server_state
    names = server_state["names"].numpy()
    points, labels = [], []
    for client, k in itertools.product(data.clients, range(3)):
        x, y = arrays(client.train)
        of_class = x[y == k]
        points.append(of_class[extreme_points(of_class)])
        labels.append(np.full(len(points[-1]), k))
    pooled = boundary.fit(np.concatenate(points), np.concatenate(labels), c=1.0)
    assert data.holdout is not None
    test, _ = arrays(data.holdout.test)
    plain = boundary.log_odds(pooled, test, c=1.0)
    ours = boundary.log_odds(server_state["model"], test, c=1.0)
    assert np.abs(ours - plain[:, names]).max() < 0.01 * np.abs(plain).max()


def test_a_quantised_hull_in_space_has_the_corners_of_a_simplex():
    grid = PolarGrid(0.1, 0.95, dim=4)
    corners = np.vstack([0.8 * np.eye(4), -0.4 * np.ones(4)])
    weights = np.random.default_rng(0).dirichlet(np.ones(5), size=50)
    inside = klein(corners)
    flat = weights @ inside
    x = np.concatenate([flat / (1 + np.sqrt(1 - np.square(flat).sum(1, keepdims=True))), corners])
    inner = x[:50] * 0.9
    found = quantised_hull(np.concatenate([inner, corners]), grid)
    assert found.tolist() == sorted(grid.encode(corners).tolist())


@pytest.mark.parametrize("dim", [3, 5])
def test_an_empty_class_has_no_hull_no_layers_and_no_bins(dim):
    empty, grid = np.empty((0, dim)), PolarGrid(0.5, dim=dim)
    assert len(extreme_points(empty)) == 0
    assert list(onion_layers(empty)) == []
    assert len(quantised_hull(empty, grid)) == 0
    assert len(quantised_hull(np.zeros((1, dim)), grid, min_count=2)) == 0


def test_generated_points_of_a_ball_are_learned():
    data = HalfPlanes(600, offset=0.2, margin=0.5, least=50, dim=3).load(Rng(0))
    grid = PolarGrid(0.1, 0.95, dim=3)
    _, rows = train(FedHull(grid, boundary=HyperbolicBoundary(1e4, pairs=1)), data)
    assert scores(rows, "holdout/accuracy")[None] > 0.9


def test_what_does_not_exist_is_refused_before_anything_is_sent():
    with pytest.raises(ValueError, match=r"about 2\^\d+ bins, and 2\^62 can be numbered"):
        PolarGrid(0.01, 0.99, dim=8)
    with pytest.raises(ValueError, match="rings='area' needs dim=2, got 3"):
        PolarGrid(rings="area", dim=3)
    with pytest.raises(ValueError, match="dim must be at least 2, got 1"):
        PolarGrid(dim=1)
    with pytest.raises(ValueError, match="1 points lie beyond the public radius"):
        PolarGrid(0.5, 0.5, outside="raise", dim=3).encode(np.array([[0.6, 0.0, 0.0]]))
    with pytest.raises(ValueError, match="bins are 1"):
        PolarGrid(0.5, dim=3).decode(np.array([0]))
    with pytest.raises(ValueError, match=r"shape \(n, 3\), got \(1, 2\)"):
        PolarGrid(0.5, dim=3).encode(np.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"points with 3 coordinates, got 2 classes.*grid's dim"):
        FedHull(PolarGrid(dim=3)).init(Meta(2, (5,), 2), Rng(0))
    for core in (HullPeeling(), ValidatedCore(HullPeeling())):
        for method in (FedHull(PolarGrid(0.5, 0.9, dim=7), core=core), None):
            method = method or Central(hulls="once", core=core)
            with pytest.raises(ValueError, match="in up to 6 dimensions, got 7: cut classes with"):
                method.init(Meta(2, (7,), 2), Rng(0))
    FedHull(PolarGrid(0.5, 0.9, dim=7), core=Farthest()).init(Meta(2, (7,), 2), Rng(0))


def test_points_beyond_the_radius_are_clipped_to_the_last_shell():
    grid = PolarGrid(0.5, 0.5, dim=3)
    assert grid.encode(np.array([[0.0, -0.9, 0.1]])) == grid.encode(np.array([[0.0, -0.49, 0.055]]))
    assert grid.encode(np.zeros((1, 3))).tolist() == grid.encode(np.full((1, 3), 0.0)).tolist()
