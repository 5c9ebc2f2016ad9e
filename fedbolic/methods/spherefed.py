"""SphereFed: features on the unit sphere, a frozen orthonormal head, and a closed-form head."""

import dataclasses
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import one_hot
from typing_extensions import override

from fedbolic import check, tree
from fedbolic.data.client import Client
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.mean import Mean
from fedbolic.federated.gradient_method import GradientMethod, LocalTraining
from fedbolic.federated.method import Method
from fedbolic.federated.update import AggregatedUpdate, Update
from fedbolic.methods.closed_form_head import ClosedFormHead
from fedbolic.nn.backbone import MLP, Backbone
from fedbolic.nn.classifier import CosineHead, classifier
from fedbolic.nn.model import Model
from fedbolic.optim import SGD, Optimizer
from fedbolic.rng import Rng
from fedbolic.types import Meta, Params, Tree

_HEAD = "head.weight"


@dataclass(frozen=True)
class SphereFed(GradientMethod):
    r"""SphereFed: regression of the cosines to fixed class vectors on the one-hot labels.

    .. math:: \ell(x, y) = \tfrac1C \|W \hat z(x) - e_y\|^2, \qquad \hat z = z / \|z\|

    Only the body is trained, uploaded and averaged; the fixed head is sent to clients with it. With
    ``closed_form_head``, the last round does not train: it sums Z'Z and Z'Y over all clients and
    solves for the head exactly.

    With fewer features than classes, W cannot have orthonormal rows. Its columns are orthonormal
    instead, and its rows are then scaled to length 1.

    Args:
        backbone: Network from inputs to features.
        rounds: Number of communication rounds including the round of the closed-form head, at
            least 1, or 2 with ``closed_form_head``.
        local: Local epochs and batch size.
        lr: Local step size, above 0.
        optimizer: Local optimiser, reset every round.
        closed_form_head: Whether the last round solves for the head in closed form.
        ridge: Regularization added to the diagonal of Z'Z, relative to its mean, above 0.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Dong et al. (2022), Sec. 3, arXiv:2207.09413.
    """

    backbone: Backbone = MLP()
    rounds: int = 20
    local: LocalTraining = LocalTraining()
    lr: float = 0.1
    optimizer: Optimizer = SGD()
    closed_form_head: bool = True
    ridge: float = 1e-4

    def __post_init__(self) -> None:
        check.at_least(1 + self.closed_form_head, rounds=self.rounds)
        check.positive(lr=self.lr, ridge=self.ridge)

    @property
    @override
    def aggregator(self) -> Aggregator:
        return Mean()

    @override
    def phase(self, server_state: Tree) -> Method:
        calibrates = self.closed_form_head and server_state["round"] == self.rounds - 1
        return ClosedFormHead(self, _HEAD, self.ridge) if calibrates else self

    @override
    def model(self, meta: Meta) -> Model:
        return classifier(self.backbone, meta, CosineHead)

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        parameters, buffers = self.model(meta).init(rng.at("model").number())
        return {"parameters": parameters, "buffers": buffers, "round": 0}

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        return {name: server_state[name] for name in ("parameters", "buffers", "round")}

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        body = _body(message["parameters"])
        local = {
            "parameters": body,
            "buffers": message["buffers"],
            "optimizer": self.optimizer.init(body),
        }
        return local, {"shared": {"global_parameters": body, "head": message["parameters"][_HEAD]}}

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        parameters = {**parameters, _HEAD: context["shared"]["head"]}
        cosines, buffers = model(parameters, buffers, batch["x"], training=True)
        target = one_hot(batch["y"], cosines.shape[-1])
        return (cosines - target).square().mean(dim=-1), buffers

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        parameters, optimizer = self.optimizer.step(
            local["parameters"], gradients, local["optimizer"], lr=self.lr, donate=True
        )
        return {**local, "parameters": parameters, "optimizer": optimizer}

    @override
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        delta = tree.subtract_(local["parameters"], context["shared"]["global_parameters"])
        payload = {"delta": delta, "buffers": local["buffers"]}
        return Update(payload, weight=float(client.size)), {}

    @override
    def template(self, message: Tree) -> Tree:
        return {"delta": _body(message["parameters"]), "buffers": message["buffers"]}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        body = tree.add(_body(server_state["parameters"]), total.payload["delta"])
        return {
            "parameters": {**body, _HEAD: server_state["parameters"][_HEAD]},
            "buffers": total.payload["buffers"],
            "round": server_state["round"] + 1,
        }

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        parameters = {**local["parameters"], _HEAD: context["shared"]["head"]}
        return model(parameters, local["buffers"], batch["x"])[0]

    @override
    def fine_tuning(self, epochs: int, lr: float | None) -> "SphereFed":
        local = dataclasses.replace(self.local, epochs=epochs)
        return dataclasses.replace(self, local=local, lr=lr or self.lr)


def _body(parameters: Params) -> Params:
    return {name: value for name, value in parameters.items() if name != _HEAD}
