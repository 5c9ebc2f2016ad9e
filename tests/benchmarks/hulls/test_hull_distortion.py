"""Hulls over the width of the bins: distances by brute force, and a figure with both hulls."""

import numpy as np
import pytest
import torch

pytest.importorskip("flint")

from benchmarks.hulls.distortion import corners_of, distorted, draw, largest_gap
from fedbolic.core.rng import Rng
from fedbolic.data import HalfPlanes
from fedbolic.manifolds import Poincare
from fedhull import PolarGrid


@pytest.fixture(scope="module")
def data():
    return HalfPlanes(num_points=120, least=20).load(Rng(0))


def test_the_gap_is_hausdorffs_by_brute_force():
    x, y = np.random.default_rng(0).uniform(-0.6, 0.6, size=(2, 7, 2))
    dist = Poincare().dist

    def reach(a, b):
        return max(min(float(dist(*map(torch.from_numpy, (p, q)))) for q in b) for p in a)

    assert largest_gap(x, y) == pytest.approx(max(reach(x, y), reach(y, x)), rel=1e-9)


def test_narrow_bins_barely_move_a_corner_and_wide_ones_do(data):
    fine, coarse = (distorted(data, PolarGrid(e, 0.95), 0) for e in (0.001, 1.0))
    assert fine["moved"] <= 0.0005  # half of the width
    assert coarse["moved"] > 0.0005
    assert coarse["corners"] <= fine["corners"] <= fine["most corners"]


def test_the_figure_is_written(data, tmp_path):
    pytest.importorskip("matplotlib")
    draw(data, tmp_path / "hulls.png")
    assert (tmp_path / "hulls.png").stat().st_size > 10_000
    exact, quantised = corners_of(np.array([[0.1, 0.2], [-0.3, 0.0], [0.2, -0.4]]), PolarGrid(0.01))
    assert largest_gap(exact, quantised) <= 0.005
