"""MOON: local training with a contrastive loss between models."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.types import Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.contract.classifier_method import ClassifierMethod
from fedbolic.nn.network.classifier import features_and_logits
from fedbolic.nn.network.model import Model
from fedbolic.optim import SGD, Optimizer


@dataclass(frozen=True)
class Moon(ClassifierMethod):
    r"""Federated averaging with a model-contrastive term in every local loss.

    .. math::
        \ell = \ell_{\mathrm{CE}} - \mu \log \frac{\exp(\cos(z, z_g) / \tau)}
        {\exp(\cos(z, z_g) / \tau) + \exp(\cos(z, z_p) / \tau)}

    with the features z of the model in training, :math:`z_g` of the global model that the client
    received, and :math:`z_p` of the client's model after its previous turn. The last two models are
    fixed and in evaluation mode, as in the authors' code. In a client's first turn its previous
    model is the global one, so that the term is constant; the authors' code begins with a random
    model instead.

    The features are the outputs of the backbone. The authors append a projection of two layers to
    their backbones; here it is part of the backbone.

    Args:
        optimizer: Local optimiser, reset every round.
        mu: Weight of the contrastive term, at least 0; 0 is FedAvg.
        temperature: Temperature tau of the contrastive term, above 0.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Li et al. (2021), Eqs. (3) and (4) and Algorithm 1, arXiv:2103.16257.

    Example:
        >>> Moon(mu=5.0).temperature
        0.5
    """

    optimizer: Optimizer = SGD()  # type: ignore[override]  # a constant of the base
    mu: float = 1.0
    temperature: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative(mu=self.mu)
        check.positive(temperature=self.temperature)

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        local, context = super().start(message, client, client_state)
        received = {kind: tree.part(message[kind], "body.") for kind in ("parameters", "buffers")}
        shared = {**context["shared"], "body": received}
        return local, {"shared": shared, "own": client_state.get("previous_body", received)}

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        x = batch["x"]
        z, logits, buffers = features_and_logits(model, parameters, buffers, x, training=True)
        to_global, to_previous = (
            cosine_similarity(z, model.part("body")(body["parameters"], body["buffers"], x)[0])
            for body in (context["shared"]["body"], context["own"])
        )
        contrast = softplus((to_previous - to_global) / self.temperature)
        return self.losses(logits, batch["y"]) + self.mu * contrast, buffers

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        kept = {kind: tree.part(local[kind], "body.") for kind in ("parameters", "buffers")}
        kept = tree.clone(kept)  # the payload takes over the storage of local
        payload, _ = super().outcome(local, context)
        return payload, {"previous_body": kept}
