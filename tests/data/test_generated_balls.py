"""Generated points in three and more dimensions: uniform by volume, labelled by a hyperplane."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import beta, kstest

from fedbolic.core.rng import Rng
from fedbolic.data import HalfPlanes, uniform_points
from fedbolic.manifolds import Poincare


@pytest.mark.parametrize(("dim", "radius", "c"), [(3, 0.95, 1.0), (5, 0.5, 2.0)])
def test_points_are_uniform_by_volume(dim, radius, c):
    x = uniform_points(2000, radius=radius, c=c, rng=Rng(1), dim=dim).numpy()

    def volume(reach):
        return quad(lambda r: math.sinh(r) ** (dim - 1), 0, reach)[0]

    norms = np.linalg.norm(x, axis=1)
    whole = volume(2 * math.atanh(radius * math.sqrt(c)))
    share = [volume(2 * math.atanh(norm * math.sqrt(c))) / whole for norm in norms]
    assert kstest(share, "uniform").pvalue > 1e-3
    # the square of a coordinate of a uniform direction has a beta distribution
    squares = np.square(x[:, 0] / norms)
    assert kstest(squares, beta(0.5, (dim - 1) / 2).cdf).pvalue > 1e-3


def test_a_margin_is_kept_on_both_sides_of_a_hyperplane():
    data = HalfPlanes(num_points=2000, margin=0.5, least=50, dim=3).load(Rng(0))
    assert data.meta.input_shape == (3,)
    examples = [client.train.all() for client in data.clients]
    x, y = (torch.cat([of[name] for of in examples]) for name in "xy")
    assert float(Poincare().cdist(x[y == 0], x[y == 1]).min()) >= 1.0


def test_a_line_has_no_half_planes():
    with pytest.raises(ValueError, match="dim must be at least 2, got 1"):
        HalfPlanes(dim=1)
