"""A backbone with a linear head: the network of the plain methods."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedbolic.nn.backbone import Backbone
from fedbolic.nn.model import Model
from fedbolic.types import Meta


class Classifier(nn.Module):
    """``head(body(x))``: every parameter's name begins with ``body.`` or ``head.``.

    The sharing rules of federated methods are written over these names.
    """

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        """The logits of a batch of inputs."""
        return self.head(self.body(x))


class CosineHead(nn.Module):
    """Cosines between features and one weight vector per class; the weights start orthonormal.

    With fewer features than classes the columns are orthonormal instead, and the rows, one per
    class, are scaled to length 1.
    """

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        weight = nn.init.orthogonal_(torch.empty(num_classes, num_features))
        self.weight = nn.Parameter(nn.functional.normalize(weight))

    def forward(self, z: Tensor) -> Tensor:
        """One logit per class: features are taken to unit length, weights are used as they are."""
        return nn.functional.linear(nn.functional.normalize(z), self.weight)


@functools.cache
def classifier(
    backbone: Backbone, meta: Meta, head: Callable[[int, int], nn.Module] = nn.Linear
) -> Model:
    """The model of a backbone with a head from its features to one logit per class.

    Args:
        backbone: Inputs to features.
        meta: Gives the shape of the inputs and the number of classes.
        head: Makes the head from the numbers of features and classes.
    """
    return Model(
        lambda: Classifier(backbone.build(meta), head(backbone.num_features, meta.num_classes))
    )
