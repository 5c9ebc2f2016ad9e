"""SphereFed: features on the unit sphere, a frozen orthonormal head, and a closed-form head."""

import dataclasses
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import one_hot
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.update import AggregatedUpdate
from fedbolic.federated.contract.classifier_method import ClassifierMethod, shared_context
from fedbolic.federated.contract.method import Method
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.rounds.ridge_head import HeadExchange
from fedbolic.nn.network.classifier import CosineHead
from fedbolic.optim import SGD, Optimizer

WEIGHT = "head.weight"
"""Name of the weight of the head."""


@dataclass(frozen=True)
class SphereFed(ClassifierMethod):
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
        optimizer: Local optimiser, reset every round.
        closed_form_head: Whether the last round solves for the head in closed form.
        ridge: Regularization added to the diagonal of Z'Z, relative to its mean, above 0.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Dong et al. (2022), Sec. 3, arXiv:2207.09413.
    """

    optimizer: Optimizer = SGD()  # type: ignore[override]  # a constant of the base
    closed_form_head: bool = True
    ridge: float = 1e-4

    head_type = CosineHead

    def __post_init__(self) -> None:
        super().__post_init__()
        check.at_least(1 + self.closed_form_head, rounds=self.rounds)
        check.positive(ridge=self.ridge)

    @property
    @override
    def traits(self) -> Traits:
        return dataclasses.replace(super().traits, solves_head=self.closed_form_head)

    @override
    def phase(self, server_state: Tree) -> Method:
        if not self.closed_form_head or server_state["round"] != self.rounds - 1:
            return self
        num_classes, width = server_state["parameters"][WEIGHT].shape
        return HeadExchange(self, self.ridge, shape=(width, num_classes), place=_with_head)

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return {**super().init(meta, rng), "round": 0}

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        body = _body(message["parameters"])
        fixed = {WEIGHT: message["parameters"][WEIGHT]}
        return self.local_state(body, message["buffers"]), shared_context(body, fixed=fixed)

    @override
    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (logits - one_hot(labels, logits.shape[-1])).square().mean(dim=-1)

    @override
    def template(self, message: Tree) -> Tree:
        return {"delta": _body(message["parameters"]), "buffers": message["buffers"]}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        parameters = server_state["parameters"]
        body = {**server_state, "parameters": _body(parameters)}
        server_state = super().server_update(body, total)
        whole = {**server_state["parameters"], WEIGHT: parameters[WEIGHT]}
        return {**server_state, "parameters": whole, "round": server_state["round"] + 1}


def _with_head(server_state: Tree, head: Tensor) -> Tree:
    parameters = server_state["parameters"]
    weight = head.T.to(parameters[WEIGHT].dtype)
    return {**server_state, "parameters": {**parameters, WEIGHT: weight}}


def _body(parameters: Params) -> Params:
    return {name: value for name, value in parameters.items() if name != WEIGHT}
