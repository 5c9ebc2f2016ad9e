"""Ditto: a personal model beside the common one, held near it."""

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from fedbolic import check, tree
from fedbolic.data.client import HOLDOUT, Client
from fedbolic.federated.classifier_method import ClassifierMethod
from fedbolic.federated.gradient_method import GradientMethod
from fedbolic.federated.update import Update
from fedbolic.nn.model import Model
from fedbolic.optim import SGD, Optimizer
from fedbolic.types import Params, Tree

COMMON, OWN = "common.", "own."
"""Prefixes of the two models' values, which are trained side by side as one set of parameters."""


@dataclass(frozen=True)
class Ditto(ClassifierMethod):
    r"""FedAvg, and at every client a model of its own that is pulled towards the common one.

    .. math:: \min_{v_k} f_k(v_k) + \tfrac{\lambda}{2} \|v_k - \theta\|^2

    Both models see the same batches; neither changes the other within a round. The common part is
    FedAvg to the last bit. Clients are scored with their own model, the server's test set with the
    common one; the training loss is the sum over both.

    Args:
        backbone: The network from inputs to features; a linear head follows.
        rounds: Communication rounds, at least 1.
        local: Local epochs and batch size, for both models.
        lr: Local step size, above 0.
        optimizer: The local optimiser, started afresh each round.
        personal_proximal: Weight of the personal model's proximal term, the paper's lambda, at
            least 0; 0 trains the personal model on local data alone.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Li et al. (2021), Eq. (1) and Algorithm 1, arXiv:2012.04221.
    """

    optimizer: Optimizer = SGD()  # type: ignore[override]  # a property of the base
    personal_proximal: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative(personal_proximal=self.personal_proximal)

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        # The first time, the own model starts where the common one is.
        parameters, buffers = (
            _join(message[kind], client_state.get(f"own_{kind}", message[kind]))
            for kind in ("parameters", "buffers")
        )
        return self.local_state(parameters, buffers), self.context(message["parameters"], fixed={})

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
        global_parameters, parameters = context["shared"]["global_parameters"], local["parameters"]
        drift = {OWN + n: parameters[OWN + n] - value for n, value in global_parameters.items()}
        penalized = {n: gradients[n] + self.personal_proximal * v for n, v in drift.items()}
        return super().step(local, {**gradients, **penalized}, context)

    @override
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        update, _ = super().finish(_of(COMMON, local), client, context)
        own = _of(OWN, local)
        return update, {"own_parameters": own["parameters"], "own_buffers": own["buffers"]}

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        """The own model's logits; at the server's test set, where there is none, the common's."""
        return super().predict(model, _of(OWN, local), batch, context)

    @override
    def features(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        """Features of the common model: those of a personal model mean nothing to others."""
        return super().features(model, _of(COMMON, local), batch, context)

    @override
    def scored(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        return self.start(message, client, {} if client.id == HOLDOUT else client_state)

    @override
    def fine_tuning(self, epochs: int, lr: float | None) -> GradientMethod | None:
        return None  # every client is scored with a model of its own already


def _of(prefix: str, local: Tree) -> Tree:
    """The values of one of the two models."""
    return {kind: tree.part(local[kind], prefix) for kind in ("parameters", "buffers")}


def _join(common: Params, own: Params) -> Params:
    named = {COMMON + name: value for name, value in common.items()}
    return named | {OWN + name: value for name, value in own.items()}
