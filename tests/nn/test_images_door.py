"""Inputs refused by the layers of images, with messages that name the input and the remedy."""

import pytest

from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn import CentroidPool2d, Conv2d


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Conv2d(Lorentz(), 0, 2, 3), "in_features must be at least 1, got 0"),
        (lambda: Conv2d(Poincare(), 2, 0, 3), "out_features must be at least 1, got 0"),
        (lambda: Conv2d(Lorentz(), 2, 2, 0), "kernel_size must be at least 1, got 0"),
        (lambda: Conv2d(Lorentz(), 2, 2, 3, stride=0), "stride must be at least 1, got 0"),
        (
            lambda: Conv2d(Poincare(), 2, 2, 3, padding=-1),
            "padding must be at least 0, got -1",
        ),
        (lambda: Conv2d(Lorentz(), 2, 2, 3, dilation=0), "dilation must be at least 1, got 0"),
        (lambda: Conv2d(Lorentz(), 2, 2, 3, concatenation="beta"), "concatenation must be"),
        (lambda: CentroidPool2d(Lorentz(), 2, stride=0), "stride must be at least 1, got 0"),
        (lambda: CentroidPool2d(Lorentz(), 2, padding=2), "padding must be at most half"),
    ],
)
def test_impossible_windows_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    "layer",
    [Conv2d(Lorentz(), 2, 2, 3), CentroidPool2d(Lorentz(), 3)],
    ids=["conv", "pool"],
)
def test_what_is_no_image_with_room_for_a_window_is_refused(layer):
    with pytest.raises(ValueError, match=r"x must be images .*got shape \(4, 3\)"):
        layer(Lorentz().origin(4, 3))
    with pytest.raises(ValueError, match=r"3 or more pixels .* got 4 x 2: use a smaller kernel"):
        layer(Lorentz().origin(4, 2, 3))
