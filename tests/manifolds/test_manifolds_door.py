"""Manifolds: refused and unchecked inputs, and imports."""

import copy
import math
import pickle
import subprocess
import sys

import pytest
import torch

from fedbolic.manifolds import (
    Curvature,
    Euclidean,
    Lorentz,
    Poincare,
    Product,
    Stereographic,
    change_curvature,
    to_lorentz,
)
from fedbolic.manifolds.mean import frechet_mean


@pytest.mark.parametrize("kind", [Lorentz, Poincare])
@pytest.mark.parametrize("c", [-1.0, -1e-9, math.nan, math.inf])
def test_a_bad_number_is_refused_where_the_record_is_made(kind, c):
    with pytest.raises(ValueError, match="c must be finite"):
        kind(c)


def test_flat_space_is_a_ball_but_no_hyperboloid():
    assert Poincare(0).c == 0
    with pytest.raises(ValueError, match="above 0, got 0"):
        Lorentz(0)


@pytest.mark.parametrize("kind", [Lorentz, Poincare])
def test_tensors_are_not_inspected(kind):
    assert kind(torch.tensor(-1.0)).c == -1


def test_require_names_the_point():
    x = Poincare().expmap0(torch.randn(4, 3))
    Poincare().require(x)
    x[2] = torch.tensor([1.0, 2.0, 2.0])
    with pytest.raises(ValueError, match=r"1 of 4 points .* x\[2\] = \[1.0, 2.0, 2.0\]; use projx"):
        Poincare().require(x)
    with pytest.raises(ValueError, match="1 of 1 points"):
        Lorentz().require(torch.tensor([1.0, math.nan]))
    with pytest.raises(ValueError, match="2 of 2 points"):
        Lorentz(2.0).require(Lorentz(1.0).origin(2, 3))


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="mode must be auto, mm, mm64 or broadcast, got 'fast'"):
        Lorentz().cdist(torch.ones(2, 3), torch.ones(2, 3), mode="fast")


def test_one_curvature_per_pair_is_refused_by_the_matrix_product():
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="one curvature per matrix"):
        Poincare(torch.ones(2, 2)).cdist(x, x, mode="mm")


@pytest.mark.parametrize(
    "space",
    [Lorentz(), Poincare(), Poincare(0.0), Stereographic(-1.0), Euclidean()],
)
def test_no_points_have_no_mean(space):
    for weights in (None, torch.ones(2, 0)):
        for mean in (type(space).centroid, frechet_mean):
            with pytest.raises(ValueError, match=r"one or more along axis -2, got none in .*0, 4"):
                mean(space, torch.zeros(2, 0, 4), weights)
    with pytest.raises(ValueError, match="one or more"):
        Product((Lorentz(), Euclidean()), (4, 3)).centroid(torch.zeros(2, 0, 7))


def test_conversions_refuse_what_has_no_image():
    with pytest.raises(ValueError, match="above 0"):
        to_lorentz(Poincare(0.0), torch.zeros(3))
    with pytest.raises(ValueError, match="different models"):
        change_curvature(torch.zeros(3), Poincare(), Lorentz())
    with pytest.raises(ValueError, match="no unit of length"):
        change_curvature(torch.zeros(3), Poincare(1.0), Poincare(0.0))


@pytest.mark.parametrize(
    ("c", "bounds"), [(0.0, (0.0, 1.0)), (2.0, (0.0, 1.0)), (1.0, (2.0, 1.0)), (1.0, (-1.0, 2.0))]
)
def test_a_curvature_outside_its_bounds_is_refused(c, bounds):
    with pytest.raises(ValueError, match="bounds"):
        Curvature(c, bounds=bounds)


@pytest.mark.parametrize("space", [Lorentz(0.5), Poincare(torch.tensor(2.0)), Euclidean()])
def test_a_record_is_frozen_copied_and_pickled(space):
    with pytest.raises(AttributeError):
        space.c = 3.0
    for other in (copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert type(other) is type(space)
        assert other.c == space.c


@pytest.mark.parametrize("module", ["fedbolic", "fedbolic.manifolds", "fedbolic.optim"])
def test_g17_an_import_is_silent_and_brings_no_framework(module):
    heavy = ["lightning", "flwr", "torch_geometric", "geoopt", "jsonargparse"]
    code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.strip() == "[]"
