"""Ditto: FedAvg with personal models, regularized towards the global model."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedbolic import check, tree
from fedbolic.data.client import HOLDOUT, Client
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.mean import Mean
from fedbolic.federated.gradient_method import GradientMethod, LocalTraining
from fedbolic.federated.update import AggregatedUpdate, Update
from fedbolic.nn.backbone import MLP, Backbone
from fedbolic.nn.classifier import classifier
from fedbolic.nn.model import Model
from fedbolic.optim import SGD, Optimizer
from fedbolic.rng import Rng
from fedbolic.types import Meta, Params, Tree

COMMON, OWN = "common.", "own."
"""Prefixes of the global and the personal model, trained together as one set of parameters."""


@dataclass(frozen=True)
class Ditto(GradientMethod):
    r"""FedAvg, with a personal model at every client and a proximal term to the global model.

    .. math:: \min_{v_k} f_k(v_k) + \tfrac{\lambda}{2} \|v_k - \theta\|^2

    Both models are trained on the same batches and do not influence each other within a round. The
    global model is bit for bit that of FedAvg. Clients are scored with their personal model, the
    server's test set with the global one. The training loss is the sum over both models.

    Args:
        backbone: Network from inputs to features; a linear head follows.
        rounds: Number of communication rounds, at least 1.
        local: Local epochs and batch size, for both models.
        lr: Local step size, above 0.
        optimizer: Local optimiser, reset every round.
        personal_proximal: Weight of the personal model's proximal term, the paper's lambda, at
            least 0; 0 trains the personal model on local data alone.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Li et al. (2021), Eq. (1) and Algorithm 1, arXiv:2012.04221.
    """

    backbone: Backbone = MLP()
    rounds: int = 20
    local: LocalTraining = LocalTraining()
    lr: float = 0.1
    optimizer: Optimizer = SGD()
    personal_proximal: float = 1.0

    def __post_init__(self) -> None:
        check.at_least(1, rounds=self.rounds)
        check.positive(lr=self.lr)
        check.not_negative(personal_proximal=self.personal_proximal)

    @property
    @override
    def aggregator(self) -> Aggregator:
        return Mean()

    @override
    def model(self, meta: Meta) -> Model:
        return classifier(self.backbone, meta)

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        parameters, buffers = self.model(meta).init(rng.at("model").number())
        return {"parameters": parameters, "buffers": buffers}

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        # In a client's first round, the personal model starts from the global one.
        parameters = _join(
            message["parameters"], client_state.get("own_parameters", message["parameters"])
        )
        buffers = _join(message["buffers"], client_state.get("own_buffers", message["buffers"]))
        local = {
            "parameters": parameters,
            "buffers": buffers,
            "optimizer": self.optimizer.init(parameters),
        }
        return local, {"shared": {"global_parameters": message["parameters"]}}

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        losses, updated = [], {}
        for prefix in (COMMON, OWN):
            logits, new = model(
                tree.part(parameters, prefix), tree.part(buffers, prefix), batch["x"], training=True
            )
            losses.append(cross_entropy(logits, batch["y"], reduction="none"))
            updated |= {prefix + name: buffer for name, buffer in new.items()}
        return losses[0] + losses[1], updated

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        global_parameters, parameters = context["shared"]["global_parameters"], local["parameters"]
        drift = {OWN + n: parameters[OWN + n] - value for n, value in global_parameters.items()}
        penalized = {n: gradients[n] + self.personal_proximal * v for n, v in drift.items()}
        parameters, optimizer = self.optimizer.step(
            parameters, {**gradients, **penalized}, local["optimizer"], lr=self.lr, donate=True
        )
        return {**local, "parameters": parameters, "optimizer": optimizer}

    @override
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        parameters, buffers = local["parameters"], local["buffers"]
        delta = tree.subtract_(
            tree.part(parameters, COMMON), context["shared"]["global_parameters"]
        )
        payload = {"delta": delta, "buffers": tree.part(buffers, COMMON)}
        client_state = {
            "own_parameters": tree.part(parameters, OWN),
            "own_buffers": tree.part(buffers, OWN),
        }
        return Update(payload, weight=float(client.size)), client_state

    @override
    def template(self, message: Tree) -> Tree:
        return {"delta": message["parameters"], "buffers": message["buffers"]}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        parameters = tree.add(server_state["parameters"], total.payload["delta"])
        return {"parameters": parameters, "buffers": total.payload["buffers"]}

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        """Logits of the personal model, or of the global model on the server's test set."""
        return model(
            tree.part(local["parameters"], OWN), tree.part(local["buffers"], OWN), batch["x"]
        )[0]

    @override
    def features(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        """Features of the global model, since personal features are not comparable."""
        kinds = ("parameters", "buffers")
        common = {kind: tree.part(local[kind], COMMON) for kind in kinds}
        return super().features(model, common, batch, context)

    @override
    def scored(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        return self.start(message, client, {} if client.id == HOLDOUT else client_state)


def _join(common: Params, own: Params) -> Params:
    named = {COMMON + name: value for name, value in common.items()}
    return named | {OWN + name: value for name, value in own.items()}
