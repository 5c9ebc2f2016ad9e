"""Ditto: FedAvg with personal models, regularized towards the global model."""

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.types import Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.contract.classifier_method import (
    ClassifierMethod,
    shared_context,
    with_proximal_term,
)
from fedbolic.nn.network.model import Model
from fedbolic.optim import SGD, Optimizer

COMMON, OWN = "common.", "own."
"""Prefixes of the global and the personal model, trained together as one set of parameters."""


@dataclass(frozen=True)
class Ditto(ClassifierMethod):
    r"""FedAvg, with a personal model at every client and a proximal term to the global model.

    .. math:: \min_{v_k} f_k(v_k) + \tfrac{\lambda}{2} \|v_k - \theta\|^2

    Both models are trained on the same batches and do not influence each other within a round. The
    global model is bit for bit that of FedAvg. Clients are scored with their personal model, the
    server's test set with the global one. The training loss is the sum over both models.

    Args:
        local: Local epochs and batch size, for both models.
        optimizer: Local optimiser, reset every round.
        personal_proximal: Weight of the personal model's proximal term, the paper's lambda, at
            least 0; 0 trains the personal model on local data alone.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Li et al. (2021), Eq. (1) and Algorithm 1, arXiv:2012.04221.
    """

    optimizer: Optimizer = SGD()  # type: ignore[override]  # a constant of the base
    personal_proximal: float = 1.0

    models = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative(personal_proximal=self.personal_proximal)

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        # In a client's first round, the personal model starts from the global one.
        parameters, buffers = (
            _join(message[kind], client_state.get(f"own_{kind}", message[kind]))
            for kind in ("parameters", "buffers")
        )
        return self.local_state(parameters, buffers), shared_context(message["parameters"])

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        losses, updated = [], {}
        for prefix in (COMMON, OWN):
            of = tree.part(parameters, prefix), tree.part(buffers, prefix)
            of_model, new = super().loss(model, *of, batch, context)
            losses.append(of_model)
            updated |= {prefix + name: buffer for name, buffer in new.items()}
        return losses[0] + losses[1], updated

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        goals = {OWN + n: x for n, x in context["shared"]["global_parameters"].items()}
        strength = self.personal_proximal
        pulled = with_proximal_term(gradients, local["parameters"], goals, strength)
        return super().step(local, pulled, context)

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        payload, _ = super().outcome(_of(COMMON, local), context)
        own = _of(OWN, local)
        return payload, {"own_parameters": own["parameters"], "own_buffers": own["buffers"]}

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        """Logits of the personal model, or of the global model on the server's test set."""
        return super().predict(model, _of(OWN, local), batch, context)

    @override
    def features(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        """Features of the global model, since personal features are not comparable."""
        return super().features(model, _of(COMMON, local), batch, context)


def _of(prefix: str, local: Tree) -> Tree:
    """The values of one of the two models."""
    return {kind: tree.part(local[kind], prefix) for kind in ("parameters", "buffers")}


def _join(common: Params, own: Params) -> Params:
    named = {COMMON + name: value for name, value in common.items()}
    return named | {OWN + name: value for name, value in own.items()}
