"""Scores of familiar and foreign examples by networks made by hand, and their areas."""

import torch
from torch import nn

from benchmarks import foreign_images, twins
from fedbolic.manifolds import Lorentz
from fedbolic.nn import LorentzMLR, ToManifold

FAMILIAR = torch.tensor([[30.0, 0.0], [0.0, 40.0]])
FOREIGN = torch.tensor([[3.0, 4.0], [8.0, 6.0]])


def network(*head):
    """A trained network, so without gradients, whose features are its inputs."""
    return nn.Sequential(nn.Identity(), *head).requires_grad_(False)


def test_a_hard_clip_hides_how_long_features_were():
    """Lengths 30 and 40 against 5 and 10: all beyond the clip, hence at one distance."""
    model = network(ToManifold(Lorentz), LorentzMLR(2, 3))
    assert foreign_images.areas(model, FAMILIAR, FOREIGN)["length"] == 100
    distances = dict(foreign_images.scores(model, torch.cat([FAMILIAR, FOREIGN])))
    torch.testing.assert_close(distances["distance of the point"], torch.full((4,), 2.3))


def test_without_a_bound_the_distance_is_the_length():
    model = network(*twins.HEADS["PrototypeHead"](2))
    areas = foreign_images.areas(model, FAMILIAR, FOREIGN)
    assert areas["distance of the point"] == areas["length"] == 100


def test_the_area_is_the_share_of_pairs_in_order():
    """Of four pairs of lengths, 30 and 4 against 5 and 3, three are in order."""
    model = network(nn.Linear(2, 3))
    familiar, foreign = torch.tensor([[30.0, 0], [4, 0]]), torch.tensor([[5.0, 0], [0, 3]])
    assert foreign_images.areas(model, familiar, foreign)["length"] == 75
