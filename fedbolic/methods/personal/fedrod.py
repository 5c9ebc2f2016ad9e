"""FedRoD: a generic head for all clients, and a personal one on top of it at each."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import one_hot
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.core.types import Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.contract.classifier_method import ClassifierMethod, shared_context
from fedbolic.nn.network.classifier import features_and_logits
from fedbolic.nn.network.model import Model
from fedbolic.optim import SGD, Optimizer

PERSONAL_HEAD = "personal_head."
"""Prefix of the personal head, which is trained together with the generic model."""


@dataclass(frozen=True)
class FedRoD(ClassifierMethod):
    r"""Federated averaging of a class-balanced model, with a personal head at every client.

    .. math::
        \ell_G = -\log \frac{N_{k,y} \exp g_y(z)}{\sum_c N_{k,c} \exp g_c(z)}, \qquad
        \ell_P = \ell_{\mathrm{CE}} \bigl( \bar g(\bar z) + h_k(\bar z), y \bigr)

    with features z, the generic head g, the personal head :math:`h_k` of client k, and its number
    :math:`N_{k,c}` of training examples of class c. A bar stops the gradient: the balanced softmax
    trains the backbone and the generic head, the cross-entropy the personal head alone. This is the
    linear variant of the paper; its other variant generates the personal heads by a hypernetwork.

    Clients are scored with the sum of both heads, the server's test set with the generic head. A
    personal head starts at 0, so that a new client predicts with the generic head. The training
    loss is the sum of both losses.

    Args:
        backbone: Network from inputs to features; both heads are linear.
        optimizer: Local optimiser, reset every round.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Chen and Chao (2022), Sec. 4, arXiv:2107.00778; Ren et al. (2020), arXiv:2007.10740, for
        the balanced softmax.

    Example:
        >>> FedRoD(lr=0.05).rounds
        20
    """

    optimizer: Optimizer = SGD()  # type: ignore[override]  # a constant of the base

    models = "both"

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        parameters = message["parameters"]
        initial = tree.zeros_like(tree.part(parameters, "head."))
        personal = client_state.get("personal_head", initial)
        named = {PERSONAL_HEAD + name: value for name, value in personal.items()}
        local = self.local_state({**parameters, **named}, message["buffers"])
        labels = one_hot(client.train.all()["y"], client.meta.num_classes)
        own = {"log_counts": labels.sum(dim=0).double().log()}  # -inf for an absent class
        return local, {**shared_context(parameters), "own": own}

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        generic, personal, buffers = _heads(model, parameters, buffers, batch["x"], training=True)
        balanced = generic + context["own"]["log_counts"].to(generic.dtype)
        both = generic.detach() + personal
        labels = batch["y"]
        return self.losses(balanced, labels) + self.losses(both, labels), buffers

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        payload, _ = super().outcome(local, context)
        return payload, {"personal_head": tree.part(local["parameters"], PERSONAL_HEAD)}

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        """Sum of both heads, which is the generic head on the server's test set."""
        del context
        values = local["parameters"], local["buffers"]
        generic, personal, _ = _heads(model, *values, batch["x"], training=False)
        return generic + personal


def _heads(
    model: Model, parameters: Params, buffers: Params, x: Tensor, *, training: bool
) -> tuple[Tensor, Tensor, Params]:
    """Logits of the generic and of the personal head, and the updated buffers."""
    common = {n: value for n, value in parameters.items() if not n.startswith(PERSONAL_HEAD)}
    z, generic, buffers = features_and_logits(model, common, buffers, x, training=training)
    head = tree.part(parameters, PERSONAL_HEAD)
    return generic, model.part("head")(head, {}, z.detach())[0], buffers
