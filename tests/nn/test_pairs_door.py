"""Errors of the parts for pairs that a type checker would find first."""

import pytest
import torch

from fedbolic.manifolds import Lorentz
from fedbolic.nn import CosineContrast, DistanceContrast, MarginLoss, RankingLoss, pair_keys


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (torch.zeros(2, 5, dtype=torch.int64), r"got torch.int64 of shape \(2, 5\): transpose"),
        (torch.zeros(5, dtype=torch.int64), r"shape \(5,\)"),
        (torch.zeros(5, 2), "got torch.float32"),
        (torch.zeros(5, 2, dtype=torch.bool), "got torch.bool"),
    ],
)
def test_pairs_are_two_columns_of_integers(pairs, message):
    with pytest.raises(ValueError, match=message):
        pair_keys(pairs, num_nodes=9)


@pytest.mark.parametrize("loss", [RankingLoss(), MarginLoss()])
@pytest.mark.parametrize(
    ("negatives", "mask", "message"),
    [
        (torch.zeros(2, 5), None, r"shape of positive, \(3,\), and one more axis.*\(2, 5\)"),
        (torch.zeros(3), None, "one more axis"),
        (torch.zeros(3, 5), torch.ones(3, 5), "mask must be bool.*got torch.float32"),
        (torch.zeros(3, 5), torch.ones(5, dtype=torch.bool), r"\(3, 5\), got torch.bool.*\(5,\)"),
    ],
)
def test_distances_and_masks_of_other_shapes_are_refused(loss, negatives, mask, message):
    with pytest.raises(ValueError, match=message):
        loss(torch.zeros(3), negatives, mask=mask)


@pytest.mark.parametrize(("x", "y"), [((2, 3), (3, 3)), ((2, 3), (2, 4)), ((3,), (3,))])
def test_sides_of_pairs_of_other_shapes_are_refused(x, y):
    x, y = torch.zeros(x), torch.zeros(y)
    with pytest.raises(ValueError, match="both sides must have the same shape"):
        CosineContrast()(x, y)
    with pytest.raises(ValueError, match="both sides must have the same shape"):
        DistanceContrast()(Lorentz(), x, y)
