"""Maps between points far from the origin are right as far out as the docstring of Lorentz says."""

import pytest
import torch
from mpmath import mp, mpf

from benchmarks.geometry import truth
from fedbolic.manifolds import Lorentz
from tests.manifolds.cases import lifted, normal
from tests.manifolds.test_far import ULPS, pairs, sensitivity


def error(found, true):
    """Length of the difference between the space coordinates of a result and the truth."""
    return truth.length(truth.combine(mpf(1), truth.exact(found[1:].tolist()), mpf(-1), true))


def halfway(space):
    """The centroid of two points: their sum over its Minkowski length in radii."""

    def function(x, y):
        size = mp.sqrt(2 - 2 * space.c * space.product(x, y))
        return truth.combine(1 / size, x, 1 / size, y)

    return function


@pytest.mark.parametrize(("dtype", "radius"), [(torch.float32, 10.0), (torch.float64, 20.0)])
@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("c", [0.1, 10.0])
def test_logarithms_and_centroids_are_right_to_rounding(c, dim, dtype, radius):
    eps, space, true_space = torch.finfo(dtype).eps, Lorentz(c), truth.Hyperboloid(c)
    for x, y in ((x, y) for x, y, r in pairs(c, dim, dtype) if r <= radius):
        points = torch.stack((lifted(Lorentz, x), lifted(Lorentz, y)))
        logarithm = true_space.logmap, space.logmap(*points)
        for f, found in (logarithm, (halfway(true_space), space.centroid(points))):
            true, moved = sensitivity(f, truth.exact(x.tolist()), truth.exact(y.tolist()), eps)
            assert error(found, true) <= ULPS * (moved + eps * truth.length(true)), (x, y, found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("c", [0.1, 10.0])
def test_transport_loses_no_more_than_the_square_of_the_time_coordinate(c, dim, dtype):
    eps, space, true_space = torch.finfo(dtype).eps, Lorentz(c), truth.Hyperboloid(c)
    for x, y, _ in pairs(c, dim, dtype):
        start, end = lifted(Lorentz, x), lifted(Lorentz, y)
        for v in (x, normal(3, dim).to(dtype)):
            found = space.transp(start, end, space.lift(v))
            given = [truth.exact(t.tolist()) for t in (x, y, v)]
            true = true_space.transp(*given)
            time = max(true_space.root * true_space.time(p) for p in given[:2])
            assert error(found, true) <= 4 * eps * time**2 * truth.length(true), (x, y, v, found)
