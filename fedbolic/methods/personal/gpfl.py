"""GPFL: common class embeddings guide generic features, personal features feed a personal head."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, one_hot, relu
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.types import Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.contract.classifier_method import ClassifierMethod
from fedbolic.federated.contract.sharing import Sharing
from fedbolic.nn.network.model import Model
from fedbolic.optim import SGD, Optimizer

CLASS_EMBEDDINGS = "head.embeddings"
"""Name of the class embeddings."""


class ConditionalHead(nn.Module):
    """Class embeddings, a conditional valve (``gamma`` and ``beta``) and a linear layer.

    Args:
        num_features: Width of the features, of the embeddings and of both parts of the valve.
        num_classes: Number of classes.
    """

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.embeddings = nn.Parameter(torch.randn(num_classes, num_features))
        self.gamma, self.beta = (
            nn.Sequential(
                nn.Linear(num_features, num_features), nn.ReLU(), nn.LayerNorm(num_features)
            )
            for _ in range(2)
        )
        self.linear = nn.Linear(num_features, num_classes)

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        """Features that the valve lets through.

        Args:
            z: Features of a batch.
            condition: Vector that decides on the features, one for all.
        """
        return relu(z * (self.gamma(condition) + 1) + self.beta(condition))


@dataclass(frozen=True)
class GPFL(ClassifierMethod):
    r"""Generic and personal features of one body, told apart by a conditional valve.

    .. math::
        z_G = v(\phi(x), \tfrac1C \textstyle\sum_c e_c), \quad
        z_P = v(\phi(x), \textstyle\sum_c \alpha_{k,c} e_c), \quad
        v(z, q) = \operatorname{relu}((\gamma(q) + 1) \odot z + \beta(q)),

    .. math::
        \ell = \ell_{\mathrm{CE}}(h_k(z_P), y)
        - \log \frac{\exp \cos(z_G, e_y)}{\sum_c \exp \cos(z_G, e_c)}
        + \lambda \|z_G - \bar e_y\|
        + \tfrac{\mu}{2} \|(e, \gamma, \beta)\|^2

    with the body phi, class embeddings :math:`e_c`, the personal head :math:`h_k` and the share
    :math:`\alpha_{k,c}` of class c among the client's examples. A bar marks the values that were
    received; both conditions, the second arguments of v, are computed from these. All but the heads
    is averaged by size. Clients are scored with their heads on personal features.

    The authors' code computes the conditions from the embeddings before the last mean, the
    client's own, and begins with 0. Its third term is the norm of a whole batch.

    Args:
        optimizer: Local optimiser, reset every round.
        magnitude_weight: Weight lambda of the distance to the embedding, at least 0.
        decay: Weight decay mu of embeddings and valve, at least 0.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Zhang et al. (2023), Sec. 4 and Algorithm 1, arXiv:2308.10279.

    Example:
        >>> GPFL(decay=0.0).magnitude_weight
        0.01
    """

    optimizer: Optimizer = SGD()  # type: ignore[override]  # a constant of the base
    magnitude_weight: float = 0.01
    decay: float = 0.01

    models = "personal"
    head_type = ConditionalHead
    sharing: ClassVar[Sharing] = {"head.linear.*": "personal", "*": "shared"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative(magnitude_weight=self.magnitude_weight, decay=self.decay)

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        local, context = super().start(message, client, client_state)
        embeddings = message["parameters"][CLASS_EMBEDDINGS]
        labels = one_hot(client.train.all()["y"], client.meta.num_classes).to(embeddings)
        shares = labels.sum(0) / labels.sum().clamp(min=1)
        shared = {**context["shared"], "condition": embeddings.mean(dim=0)}
        return local, {"shared": shared, "own": {"condition": shares @ embeddings}}

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        shared, y = context["shared"], batch["y"]
        body, kept = (tree.part(of, "body.") for of in (parameters, buffers))
        z, updated = model.part("body")(body, kept, batch["x"], training=True)
        generic = _passed(model, parameters, z, shared["condition"])
        cosines = cosine_similarity(generic[:, None], parameters[CLASS_EMBEDDINGS], dim=-1)
        goals = shared["global_parameters"][CLASS_EMBEDDINGS][y]
        distance = torch.linalg.vector_norm(generic - goals, dim=-1)
        logits = self._logits(model, parameters, z, context)
        losses = self.losses(logits, y) + self.losses(cosines, y)
        return losses + self.magnitude_weight * distance, {
            f"body.{name}": value for name, value in updated.items()
        }

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        decayed = {
            n: self.decay * x
            for n, x in local["parameters"].items()
            if n.startswith("head.") and not n.startswith("head.linear.")
        }
        gradients = {n: g + decayed[n] if n in decayed else g for n, g in gradients.items()}
        return super().step(local, gradients, context)

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        z = self.features(model, local, batch, context)
        return self._logits(model, local["parameters"], z, context)

    def _logits(self, model: Model, parameters: Params, z: Tensor, context: Tree) -> Tensor:
        """Outputs of the personal head for personal features."""
        personal = _passed(model, parameters, z, context["own"]["condition"])
        return model.part("head.linear")(tree.part(parameters, "head.linear."), {}, personal)[0]


def _passed(model: Model, parameters: Params, z: Tensor, condition: Tensor) -> Tensor:
    """Features that the valve lets through under a condition."""
    return model.part("head")(tree.part(parameters, "head."), {}, z, condition)[0]
