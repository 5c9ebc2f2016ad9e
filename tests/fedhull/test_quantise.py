"""The quantiser: distances within bins, centres, numbering, and information in hulls of bins."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.manifolds import Poincare
from fedhull.leakage import leakage, nearest_neighbour, quantised_hull, quantised_hulls
from fedhull.quantise import PolarGrid
from tests.fedhull.geometry.test_hull import cluster, spread
from tests.fedhull.graham import graham_scan

seeds = st.integers(0, 2**31)
grids = st.builds(
    lambda c, share, epsilon, rings: PolarGrid(epsilon, share / math.sqrt(c), c, rings),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.sampled_from([0.5, 0.9, 0.99]),
    st.sampled_from([0.01, 0.1, 0.7]),
    st.sampled_from(["width", "area"]),
)


def dist(x, y, c):
    return Poincare(c).dist(torch.from_numpy(x), torch.from_numpy(y)).numpy()


def inside(seed, n, grid):
    g = np.random.default_rng(seed)
    norms, angles = grid.radius * np.sqrt(g.random(n)), 2 * math.pi * g.random(n)
    return norms[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)


@given(grids, seeds)
def test_a_centre_lies_in_its_own_bin(grid, seed):
    bins = np.random.default_rng(seed).integers(1, grid.num_bins + 1, 50)
    bins = np.append(bins, [1, grid.num_bins])
    assert grid.encode(grid.decode(bins)).tolist() == bins.tolist()


@given(grids, seeds)
def test_a_point_is_within_half_of_epsilon_of_its_centre(grid, seed):
    x = inside(seed, 100, grid)
    bins = grid.encode(x)
    assert (bins >= 1).all()
    assert (bins <= grid.num_bins).all()
    if grid.rings == "width":
        assert dist(x, grid.decode(bins), grid.c).max() <= grid.epsilon / 2 + 1e-12


@given(grids, seeds)
def test_points_of_one_bin_are_within_epsilon(grid, seed):
    if grid.rings == "area":
        return
    g = np.random.default_rng(seed)
    ring, angle = np.divmod(g.integers(0, grid.num_bins, 50), grid.num_angles)
    pair = []
    for _ in range(2):
        reach = (ring + g.random(50)) / grid.num_rings * grid.reach
        turn = 2 * math.pi * (angle + g.random(50)) / grid.num_angles
        norm = np.tanh(reach * math.sqrt(grid.c) / 2) / math.sqrt(grid.c)
        pair.append(norm[:, None] * np.stack([np.cos(turn), np.sin(turn)], axis=1))
    assert dist(*pair, grid.c).max() <= grid.epsilon + 1e-12


def test_rings_of_equal_area_hold_equally_many_uniform_points():
    grid = PolarGrid(epsilon=1.0, radius=0.95, rings="area")
    g = np.random.default_rng(0)
    half = np.arcsinh(np.sqrt(g.random(50_000)) * math.sinh(math.atanh(0.95)))  # tau of Alg. 3
    ring = (grid.encode(np.stack([np.tanh(half), 0 * half], 1)) - 1) // grid.num_angles
    counts = np.bincount(ring, minlength=grid.num_rings)
    expected = 50_000 / grid.num_rings
    assert ((counts - expected) ** 2 / expected).sum() < grid.num_rings + 5 * math.sqrt(
        2 * grid.num_rings
    )


def test_the_numbering_is_that_of_the_paper():
    """Innermost ring first, counter-clockwise from angle 0: j = (n2 - 1) N_Theta + n1."""
    grid = PolarGrid(epsilon=1.0, radius=0.9)
    assert grid.encode(np.array([[1e-9, 1e-12]])).tolist() == [1]
    assert grid.encode(np.array([[1e-9, -1e-15]])).tolist() == [grid.num_angles]
    assert grid.encode(np.array([[0.9 - 1e-9, 1e-12]])).tolist() == [
        (grid.num_rings - 1) * grid.num_angles + 1
    ]


def test_bins_of_the_olsson_disc():
    grid = PolarGrid(epsilon=0.01, radius=0.9771081021958592 + 1e-4)
    assert grid.num_bins == 48_668_500  # by the authors' code


def test_points_beyond_the_radius_are_clipped_or_refused():
    x = np.array([[0.0, 0.0], [0.97, 0.0]])
    clipped = PolarGrid(0.1, 0.95).encode(x)
    assert (clipped[1] - 1) // PolarGrid(0.1, 0.95).num_angles == PolarGrid(0.1, 0.95).num_rings - 1
    with pytest.raises(ValueError, match="1 points lie beyond the public radius"):
        PolarGrid(0.1, 0.95, outside="raise").encode(x)
    with pytest.raises(ValueError, match="open ball"):
        PolarGrid(0.1, 0.95).encode(np.array([[1.0, 0.0]]))


def test_bins_that_are_not_there_are_refused():
    grid = PolarGrid(1.0)
    for wrong in (0, grid.num_bins + 1):
        with pytest.raises(ValueError, match="bins are 1"):
            grid.decode(np.array([wrong]))


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="radius must be below"):
        PolarGrid(radius=1.0)
    with pytest.raises(ValueError, match="epsilon must be a positive"):
        PolarGrid(epsilon=0.0)


@given(seeds, st.integers(0, 40))
def test_a_quantised_hull_is_the_hull_of_the_centres_of_the_hull(seed, n):
    x, grid = spread(seed, n), PolarGrid(0.5, 0.95)
    found = quantised_hull(x, grid)
    centres = grid.decode(np.unique(grid.encode(x[sorted(graham_scan(x))])))
    kept = centres[sorted(graham_scan(centres))]
    assert sorted(map(tuple, grid.decode(found))) == sorted(map(tuple, kept))


def test_a_least_count_hides_lonely_bins():
    grid = PolarGrid(0.5, 0.95)
    crowd = grid.decode(np.array([5, 300, 900]))
    x = np.concatenate([np.repeat(crowd, 3, axis=0), [[0.9, 0.1]]])
    assert len(quantised_hull(x, grid)) > len(quantised_hull(x, grid, min_count=3))
    assert set(quantised_hull(x, grid, min_count=3)) <= {5, 300, 900}
    assert len(quantised_hull(x, grid, min_count=4)) == 0


def test_a_report_of_a_square_of_crowded_corners():
    grid = PolarGrid(0.5, 0.95)
    corners = grid.decode(grid.encode(np.array([[0.5, 0.5], [-0.5, 0.5], [-0.5, -0.5]])))
    x = np.concatenate([corners, corners[:1], [[-0.1, 0.1]], [[-0.1, 0.15]]])
    y = np.zeros(len(x), dtype=np.int64)
    report = leakage(x, y, grid, revealed=quantised_hulls(x, y, grid))
    assert (report.num_points, report.num_bins, report.num_revealed) == (6, 3, 4)
    assert (report.num_single, report.least_count) == (2, 1)
    assert report.share == pytest.approx(4 / 6)
    assert report.single == pytest.approx(2 / 3)


@given(seeds, st.integers(2, 60), st.sampled_from([0.0, 8.0]))
def test_the_nearest_neighbour_is_that_of_all_pairs(seed, n, distance):
    x = cluster(seed, n, distance)
    everything = Poincare().cdist(*[torch.from_numpy(x)] * 2, mode="broadcast").fill_diagonal_(9e9)
    assert nearest_neighbour(x) == pytest.approx(
        float(np.median(everything.min(dim=1).values.numpy())), rel=1e-6
    )
