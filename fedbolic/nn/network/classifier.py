"""Classifiers made of a backbone and a head, as trained by FedAvg and its relatives."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.core.types import Meta, Params
from fedbolic.nn.network.backbone import Backbone
from fedbolic.nn.network.model import Model


class Classifier(nn.Module):
    """Body and head in sequence, ``head(body(x))``.

    Every parameter's name begins with ``body.`` or ``head.``; the sharing tables of federated
    methods match these prefixes.
    """

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        """The logits of a batch of inputs."""
        return self.head(self.body(x))


class CosineHead(nn.Module):
    """Cosines between features and one weight vector per class; weights start orthonormal.

    With fewer features than classes, the columns start orthonormal instead, and the rows, one per
    class, are normalised.
    """

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        weight = nn.init.orthogonal_(torch.empty(num_classes, num_features))
        self.weight = nn.Parameter(nn.functional.normalize(weight))

    def forward(self, z: Tensor) -> Tensor:
        """One logit per class; the features are normalised, the weights are not."""
        return nn.functional.linear(nn.functional.normalize(z), self.weight)


class SimplexHead(nn.Linear):
    """Linear head whose weights start as a regular simplex, and whose bias starts at 0.

    The rows have the length ``3 ** -0.5``, the root mean square of those of ``nn.Linear``. With
    fewer than ``num_classes - 1`` features, the rows are a projection of the simplex, scaled
    likewise.
    """

    @override
    def reset_parameters(self) -> None:
        """Re-initialise the parameters, with a random rotation of the simplex."""
        num_classes, num_features = self.weight.shape
        with torch.no_grad():
            # eigenvectors of the centering matrix: its kernel comes first, the simplex follows
            _, vectors = torch.linalg.eigh(torch.eye(num_classes) - 1 / num_classes)
            rotation = nn.init.orthogonal_(torch.empty(num_classes - 1, num_features))
            rows = vectors[:, 1:] @ rotation
            self.weight.copy_(nn.functional.normalize(rows) / 3**0.5)
            if self.bias is not None:
                self.bias.zero_()


@functools.cache
def classifier(
    backbone: Backbone, meta: Meta, head: Callable[[int, int], nn.Module] = nn.Linear
) -> Model:
    """Model of a backbone and a head that gives one logit per class.

    Args:
        backbone: Configuration of the network from inputs to features.
        meta: Shape of the inputs and number of classes.
        head: Builds the head from the number of features and the number of classes.
    """
    return Model(
        lambda: Classifier(backbone.build(meta), head(backbone.width_for(meta), meta.num_classes))
    )


def features_and_logits(
    model: Model, parameters: Params, buffers: Params, x: Tensor, *, training: bool
) -> tuple[Tensor, Tensor, Params]:
    """Outputs of the body and of the head of a :class:`Classifier`, and the updated buffers.

    Args:
        model: Model of a ``Classifier``.
        parameters: Every parameter by name.
        buffers: Every buffer by name; not modified.
        x: Batch of inputs.
        training: Whether to run in training mode, which affects batch norm and dropout.

    Example:
        >>> from fedbolic.nn.network.backbone import MLP
        >>> model = classifier(MLP((4,)), Meta(num_classes=3, input_shape=(5,), num_clients=1))
        >>> x, (parameters, buffers) = torch.ones(2, 5), model.init(seed=0)
        >>> z, logits, _ = features_and_logits(model, parameters, buffers, x, training=False)
        >>> z.shape, torch.equal(logits, model(parameters, buffers, x)[0])
        (torch.Size([2, 4]), True)
    """
    value, outputs, updated = x, [], {}
    for name in ("body", "head"):
        values = (tree.part(kind, f"{name}.") for kind in (parameters, buffers))
        value, new = model.part(name)(*values, value, training=training)
        outputs.append(value)
        updated |= {f"{name}.{key}": buffer for key, buffer in new.items()}
    return outputs[0], outputs[1], updated
