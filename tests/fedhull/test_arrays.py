"""Hulls of arrays and tensors, and errors for anything else."""

import re

import numpy as np
import pytest
import torch

pytest.importorskip("flint")

from fedhull import Central, HullPeeling, ValidatedCore, hull
from fedhull.geometry.extreme import extreme_points
from fedhull.geometry.onion import onion_layers

SQUARE = [[0.5, 0.5], [-0.5, 0.5], [-0.5, -0.5], [0.5, -0.5], [0.125, 0.25]]
FUNCTIONS = [hull, extreme_points, lambda points: next(onion_layers(points))]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "points",
    [
        np.array(SQUARE),
        np.array(SQUARE, dtype=np.float32),
        torch.tensor(SQUARE),
        torch.tensor(SQUARE, dtype=torch.float64, requires_grad=True),
        torch.tensor(SQUARE, dtype=torch.bfloat16),
    ],
)
def test_arrays_and_tensors_of_any_precision_have_the_same_hull(function, points):
    assert sorted(function(points).tolist()) == [0, 1, 2, 3]


def test_a_hull_in_single_precision_is_exact_for_its_numbers():
    g = np.random.default_rng(0)
    turn = g.random(200).astype(np.float32)
    x = (0.999 * np.stack([np.cos(turn), np.sin(turn)], axis=1)).astype(np.float32)
    assert hull(x).tolist() == hull(x.astype(np.float64)).tolist()


@pytest.mark.gpu
def test_a_tensor_may_be_on_a_gpu():
    assert sorted(hull(torch.tensor(SQUARE, device="cuda")).tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("points", "got"),
    [
        (SQUARE, "got list: convert"),
        (None, "got NoneType: convert"),
        (np.array(SQUARE, dtype=complex), "got ndarray of complex128: convert"),
        (torch.tensor(SQUARE) > 0, "got Tensor of torch.bool: convert"),
        (np.array([["a", "b"]]), "got ndarray of <U1: convert"),
    ],
)
def test_anything_else_is_refused_in_one_line(function, points, got):
    with pytest.raises(TypeError, match=f"an array or a tensor of real numbers, {re.escape(got)}"):
        function(points)


def test_points_of_another_dimension_are_refused():
    with pytest.raises(ValueError, match=r"shape \(n, 2\), got \(4, 3\)"):
        hull(torch.zeros(4, 3))


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_shares_outside_their_range_are_refused(share):
    with pytest.raises(ValueError, match=r"share must lie in \[0, 1\), got"):
        HullPeeling(share)
    with pytest.raises(ValueError, match=r"share must lie in \[0, 1\), got"):
        ValidatedCore(shares=(share,))


@pytest.mark.parametrize("shares", [(), (0.1, 0.0), (0.1, 0.1)])
def test_shares_to_choose_from_ascend(shares):
    with pytest.raises(ValueError, match="shares must be ascending numbers, at least one, got"):
        ValidatedCore(shares=shares)


def test_a_core_without_hulls_is_refused():
    with pytest.raises(ValueError, match="hulls is 'none': set hulls='once'"):
        Central(core=HullPeeling())
