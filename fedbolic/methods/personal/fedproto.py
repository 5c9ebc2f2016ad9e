"""FedProto: clients with separate models that send class prototypes alone."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.aggregator import Sum
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update, find_outside
from fedbolic.federated.contract.classifier_method import ClassifierMethod, shared_context
from fedbolic.federated.contract.sharing import own_model
from fedbolic.federated.scores.score import chunks
from fedbolic.nn.network.classifier import features_and_logits
from fedbolic.nn.network.model import Model
from fedbolic.optim import SGD, Optimizer

UNKNOWN_DISTANCE = 100.0
"""Distance of every example from a class without a prototype, as in the authors' code."""


@dataclass(frozen=True)
class FedProto(ClassifierMethod):
    r"""Local training towards global class prototypes; no parameter leaves a client.

    .. math::
        \ell = \ell_{\mathrm{CE}} + \tfrac{\lambda}{d} \|z(x) - C_y\|^2, \quad
        C_{k,c} = \frac{1}{N_{k,c}} \sum_{y_i = c} z(x_i), \quad
        C_c \leftarrow \frac{1}{K_c} \sum_{k:\, N_{k,c} > 0} C_{k,c}

    with d features z, and the :math:`K_c` clients of the cohort that have class c. A class that no
    client of the cohort has keeps its prototype; a class without one has no term in the loss. Every
    client trains a separate model; all start from the same values.

    The paper divides a weighted mean by :math:`K_c` once more (Eq. 6). The plain mean above is that
    of the authors' code, as is the distance of single examples in place of batch means. Local
    prototypes follow Eq. (3), with the trained model and all training examples; the authors' code
    averages the features that occur during the last epoch.

    Args:
        optimizer: Local optimiser, reset every round.
        prototype_weight: Weight lambda of the distance to the prototype, at least 0.
        prediction: Class of the nearest global prototype, as in the paper's Eq. (4), or class of
            the largest output of the client's head. The authors report both.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Tan et al. (2022), Eqs. (3) to (7) and Algorithm 1, arXiv:2105.00243.

    Example:
        >>> FedProto(prediction="head").aggregator
        Sum()
    """

    optimizer: Optimizer = SGD()  # type: ignore[override]  # a constant of the base
    prototype_weight: float = 1.0
    prediction: Literal["prototypes", "head"] = "prototypes"

    weights = "uniform"
    models = "personal"
    payload_like: ClassVar = {"prototypes": "prototypes", "known": "known"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative(prototype_weight=self.prototype_weight)
        check.one_of(("prototypes", "head"), prediction=self.prediction)

    aggregator = Sum()

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        self.model(meta).init(0)  # a network that does not fit the data is refused here
        return {
            "prototypes": torch.zeros(meta.num_classes, self.backbone.width_for(meta)),
            "known": torch.zeros(meta.num_classes, dtype=torch.int64),
            "seed": rng.at("model").number(),
        }

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        values = own_model(self.model(client.meta), message, client_state, client)
        shared = {"prototypes": message["prototypes"], "known": message["known"]}
        shared |= shared_context({})["shared"]
        return self.local_state(values.trained, values.buffers), {"shared": shared}

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        shared, y = context["shared"], batch["y"]
        given = parameters, buffers, batch["x"]
        z, logits, buffers = features_and_logits(model, *given, training=True)
        distance = (z - shared["prototypes"][y]).square().mean(dim=-1) * shared["known"][y]
        return self.losses(logits, y) + self.prototype_weight * distance, buffers

    @override
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        prototypes, known = (context["shared"][name] for name in ("prototypes", "known"))
        sums, counts = torch.zeros_like(prototypes, dtype=torch.float64), torch.zeros_like(known)
        model = self.model(client.meta)
        for index in chunks(client.size):
            batch = client.train.at(index)
            labels = one_hot(batch["y"], client.meta.num_classes)
            with torch.no_grad():
                z = self.features(model, local, batch, context)
            sums, counts = sums + labels.T.double() @ z.double(), counts + labels.sum(dim=0)
        payload, client_state = self.outcome_of_sums(local, sums, counts, like=prototypes)
        return Update(payload, self.weight(client)), client_state

    def outcome_of_sums(
        self, local: Tree, sums: Tensor, counts: Tensor, *, like: Tensor
    ) -> tuple[Tree, Tree]:
        """``(payload, client_state)`` of one client, or of several with a leading axis.

        Args:
            local: ``local`` after the last step.
            sums: Sum of the features of every class, in float64.
            counts: Number of examples of every class.
            like: Tensor with the dtype of prototypes.
        """
        means = (sums / counts.clamp(min=1).unsqueeze(-1)).to(like.dtype)
        payload = {"prototypes": means, "known": (counts > 0).long()}
        return payload, {kind: local[kind] for kind in ("parameters", "buffers")}

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        fault = find_outside(payload, "known", 0, 1)
        return fault or super().find_fault(message, payload, norm)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        num_clients = total.payload["known"]
        means = total.payload["prototypes"] / num_clients.clamp(min=1)[:, None]
        found = num_clients > 0
        return {
            **server_state,
            "prototypes": torch.where(found[:, None], means, server_state["prototypes"]),
            "known": torch.where(found, 1, server_state["known"]),
        }

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        """Minus the mean squared difference from every prototype, or the logits of the head."""
        if self.prediction == "head":
            return super().predict(model, local, batch, context)
        shared = context["shared"]
        z = self.features(model, local, batch, context)
        distances = (z[:, None] - shared["prototypes"]).square().mean(dim=-1)
        return -torch.where(shared["known"] > 0, distances, UNKNOWN_DISTANCE)
