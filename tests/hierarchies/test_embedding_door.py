"""Errors of embeddings that are asked with values of other types."""

import numpy as np
import pytest
import torch

from fedbolic.hierarchies import Embedding
from fedbolic.manifolds import PolarPlaces

FOUND = Embedding(("a", "b"), PolarPlaces(torch.tensor([0, 1]), torch.ones(2).double()))


def test_a_query_is_a_name_or_a_place():
    with pytest.raises(TypeError, match="a name or a place, got 7"):
        FOUND.nearest(7)


def test_the_ball_has_floating_point_numbers():
    with pytest.raises(ValueError, match="float64, got 'int64'"):
        FOUND.to_numpy(np.int64)
