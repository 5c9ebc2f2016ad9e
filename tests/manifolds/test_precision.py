"""Every operation compared with 60 digits on a grid of radii: goals G1 to G3."""

import math

import pytest
import torch

from benchmarks import precision
from benchmarks.geometry import libraries
from fedbolic.manifolds import Lorentz, Poincare


def errors(model, c, dtype, radius):
    cell = (model, c, dtype, radius)
    given = precision.inputs(cell)
    space = libraries.space_of("fedbolic", model, c)
    answers = precision.answers(space, given, ball=model == "ball")
    return precision.errors(cell, given, answers)


def assert_below(bound, found):
    wrong = {name: e for name, e in found.items() if not e <= bound}
    assert not wrong, f"above {bound}: {wrong}"


@pytest.mark.parametrize("model", ["ball", "lorentz"])
@pytest.mark.parametrize("radius", [1e-4, 1e-2, 0.5, 1, 2, 3, 4, 5])
def test_g1_float32_is_right_to_2e5_within_radius_5(model, radius):
    assert_below(2e-5, errors(model, 1.0, "float32", radius))


@pytest.mark.parametrize("model", ["ball", "lorentz"])
@pytest.mark.parametrize("radius", [6, 7, 8, 9])
def test_g1_float32_is_right_to_1e3_within_radius_9(model, radius):
    assert_below(1e-3, errors(model, 1.0, "float32", radius))


@pytest.mark.parametrize("radius", [1e-4, 0.5, 5, 12, 20, 28])
def test_g2_float64_ball_is_right_to_1e3_within_radius_28(radius):
    assert_below(1e-3, errors("ball", 1.0, "float64", radius))


@pytest.mark.parametrize("radius", [1e-4, 0.5, 5, 12, 20, 28, 34, 40])
def test_g2_float64_hyperboloid_keeps_distances_to_radius_40(radius):
    found = errors("hyperboloid", 1.0, "float64", radius)
    assert_below(1e-14, {n: e for n, e in found.items() if n.startswith("far")})
    assert_below(1e-3, {"near": found["near"], "exp0, log0": found["exp0, log0"]})
    if radius <= 28:
        assert_below(1e-3, found)


@pytest.mark.parametrize("c", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("radii", [1e-4, 1e-2, 1, 3, 5, 7, 9])
def test_g3_float32_hyperboloid_separates_near_pairs_to_1e6(c, radii):
    found = errors("hyperboloid", c, "float32", max(radii / math.sqrt(c), 1e-4))
    assert_below(1e-6, {name: found[name] for name in ("near", "far", "far from tangents")})


@pytest.mark.parametrize("c", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("radii", [12, 16, 20, 28, 36, 40])
def test_g3_float32_hyperboloid_separates_near_pairs_to_1e3_far_out(c, radii):
    found = errors("hyperboloid", c, "float32", radii / math.sqrt(c))
    assert_below(1e-3, {name: found[name] for name in ("near", "far", "far from tangents")})


@pytest.mark.parametrize("c", [1e-3, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("space", [Lorentz, Poincare])
def test_g3_a_point_is_at_distance_exactly_0_from_itself(space, c, dtype):
    space = space(c)
    for scale in (1e-4, 1.0, 5.0, 30.0):
        x = space.projx(torch.randn(200, 17, dtype=dtype) * scale)
        assert torch.equal(space.dist(x, x), torch.zeros(200, dtype=dtype))


@pytest.mark.slow
@pytest.mark.parametrize("c", precision.CURVATURES)
@pytest.mark.parametrize("model", ["ball", "lorentz"])
@pytest.mark.parametrize(("dtype", "reach"), [("float32", 9.0), ("float64", 28.0)])
def test_every_curvature_keeps_the_same_reach_in_radii(model, dtype, reach, c):
    for radius in precision.RADII:
        if radius * math.sqrt(c) <= reach:
            assert_below(1e-3, errors(model, c, dtype, radius))
