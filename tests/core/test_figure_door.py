"""Invalid figures are refused when they are created."""

import io
import math

import pytest
import torch

from fedbolic.core.figure import DiscFigure, EmbeddingFigure, write_figure

INSIDE, LABEL = torch.tensor([[0.6, 0.8]]), torch.tensor([0])  # of norm 1: ideal points are allowed


@pytest.mark.parametrize(
    ("points", "labels", "message"),
    [
        ([[0.6, 0.81]], [0], "points must lie in the unit disc, got norm 1.00"),
        ([[math.nan, 0.0]], [0], "points must lie in the unit disc, got norm nan"),
        ([[0.1, 0.1, 0.1]], [0], r"points need two coordinates, got shape \(1, 3\)"),
        ([[0.1, 0.1]], [0, 1], r"one label, got points \(1, 2\) and labels \(2,\)"),
        ([[0.1, 0.1]], [[0]], r"one label, got points \(1, 2\) and labels \(1, 1\)"),
        ([[0.1, 0.1]], [-1], "labels must be integers from 0"),
        ([[0.1, 0.1]], [0.0], "labels must be integers from 0"),
    ],
)
def test_what_is_no_point_of_the_disc_is_refused(points, labels, message):
    with pytest.raises(ValueError, match=message):
        DiscFigure(torch.tensor(points), torch.tensor(labels))


def test_marks_lie_in_the_disc_too():
    DiscFigure(INSIDE, LABEL, INSIDE)
    with pytest.raises(ValueError, match=r"marks must lie in the unit disc, got norm 1\.1"):
        DiscFigure(INSIDE, LABEL, INSIDE * 1.1)


def test_an_embedding_is_finite_and_labelled():
    EmbeddingFigure(torch.ones(1, 9), LABEL, of="vectors")
    with pytest.raises(ValueError, match="points must be finite"):
        EmbeddingFigure(torch.full((1, 9), math.inf), LABEL, of="vectors")
    with pytest.raises(ValueError, match="every point needs one label"):
        EmbeddingFigure(torch.ones(2, 9), LABEL, of="vectors")


def test_what_is_no_figure_is_not_written():
    with pytest.raises(TypeError, match="must be a DiscFigure or an EmbeddingFigure, got dict"):
        write_figure({"points": INSIDE}, io.BytesIO())
