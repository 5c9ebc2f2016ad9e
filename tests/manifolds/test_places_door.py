"""Errors of places that are given wrong tensors."""

import math

import pytest
import torch

from fedbolic.manifolds import HalfSpacePlaces, ManifoldPlaces, Poincare, PolarPlaces

NO_TURN = torch.zeros(1, dtype=torch.int64)
ONE = torch.ones(1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PolarPlaces(torch.zeros(2).double(), torch.zeros(2).double()), "int64 or int32"),
        (lambda: PolarPlaces(torch.zeros(2).long(), torch.zeros(2)), "radii float64"),
        (lambda: PolarPlaces(torch.zeros(2).long(), torch.zeros(3).double()), r"\(2,\) and \(3,\)"),
        (lambda: PolarPlaces(NO_TURN, torch.tensor([-1.0]).double()), "at least 0, got -1.0"),
        (lambda: PolarPlaces(NO_TURN, torch.tensor([math.nan]).double()), "finite"),
        (lambda: HalfSpacePlaces(torch.full((1, 1), math.inf).double(), ONE), "finite"),
        (lambda: HalfSpacePlaces(torch.zeros(2, 1), torch.zeros(2)), "float64, got torch.float32"),
        (
            lambda: HalfSpacePlaces(torch.zeros(2, 1).double(), torch.zeros(3).double()),
            "one number",
        ),
        (lambda: ManifoldPlaces(Poincare(), torch.zeros(3)), r"of shape \(3,\)"),
    ],
)
def test_places_refuse_wrong_tensors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
