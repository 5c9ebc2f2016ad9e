"""Names that a type checker would refuse before the recipe does."""

import pytest

from fedbolic.nn.network.resnet import ResNet


def test_unknown_stems_and_norms_are_refused_with_those_that_are_known():
    with pytest.raises(ValueError, match="stem must be one of imagenet, cifar, got 'vit'"):
        ResNet(stem="vit")
    with pytest.raises(
        ValueError, match="norm must be one of batch, batch_untracked, group, got 'layer'"
    ):
        ResNet(norm="layer")
