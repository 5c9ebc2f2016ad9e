"""FedPAC: a body aligned to common prototypes, and for each client a combination of all heads."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.aggregator import Gather, Mean
from fedbolic.federated.aggregators.min_norm import min_norm_point
from fedbolic.federated.aggregators.update import (
    MOST_WEIGHT,
    AggregatedUpdate,
    Update,
    find_outside,
)
from fedbolic.federated.contract.classifier_method import ClassifierMethod
from fedbolic.federated.scores.score import chunks
from fedbolic.methods.personal.stages import StagedSteps
from fedbolic.nn.network.classifier import features_and_logits
from fedbolic.nn.network.model import Model

_HEAD = "head."  # prefix of the parameters that are combined for every client by itself


@dataclass(frozen=True)
class FedPAC(StagedSteps, ClassifierMethod):
    r"""Personalisation with feature alignment and classifier collaboration.

    .. math::
        \ell = \ell_{\mathrm{CE}} + \tfrac{\lambda}{d} \|z(x) - C_y\|^2, \quad
        h_k \leftarrow \sum_j \alpha_{kj} h_j, \quad
        \alpha_k = \arg\min_{\alpha \in \Delta} \sum_j \alpha_j^2 V_j
        + \Bigl\| \sum_j \alpha_j (m_j - m_k) \Bigr\|_F^2

    with d features z, the prototypes :math:`C_c` of all classes, and, over a client's examples and
    with the body as received, the moments :math:`m_{j,c} = \tfrac1{N_j} \sum_{y_i = c} z(x_i)` and
    the variance :math:`V_j = \tfrac1{N_j} (\tfrac1{N_j} \sum_i \|z(x_i)\|^2 - \|m_j\|_F^2)`. The
    first local steps train the head, the others the body. Bodies are averaged by size, prototypes
    are the means of features with the trained bodies, by the number of examples of the class, and
    the sums over j are over the cohort. Clients that took no part keep their heads; those without
    examples are left out.

    Clients are scored with the body and the head that they receive. The server needs every single
    head and its moments, so no secure sum can hide them.

    Args:
        local: Local epochs and batch size, of head and body together.
        lr: Local step size, above 0; local steps are plain gradient descent.
        alignment: Weight lambda of the distance to the prototype, at least 0.
        head_share: Share of the local steps that train the head, in (0, 1).

    Raises:
        ValueError: If a value is outside its range.

    References:
        Xu et al. (2023), Algorithm 1 and Sec. 4, arXiv:2306.11867.

    Example:
        >>> FedPAC(alignment=0.5).aggregator
        Gather()
    """

    alignment: float = 1.0
    head_share: float = 0.2

    models = "personal"
    unsent = "optimizer", "heads"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative(alignment=self.alignment)

    aggregator = Gather()

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        parameters, buffers = self.model(meta).init(rng.at("model").number())
        body = {n: x for n, x in parameters.items() if not n.startswith(_HEAD)}
        heads = {
            n: torch.stack([x] * meta.num_clients) for n, x in parameters.items() if n not in body
        }
        return {
            **self.server_state(body, buffers),
            "heads": heads,
            "prototypes": torch.zeros(meta.num_classes, self.backbone.width_for(meta)),
            "known": torch.zeros(meta.num_classes, dtype=torch.int64),
        }

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        head = {name: of_all[client_id] for name, of_all in server_state["heads"].items()}
        message = super().broadcast(server_state, client_id)
        return {**message, "parameters": {**message["parameters"], **head}}

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        received = message["parameters"]
        shared = {name: message[name] for name in ("prototypes", "known", "buffers")}
        local = self.local_state(received, message["buffers"])
        return local, {"shared": {**shared, "fixed": {}}, "own": {"received": received}}

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        shared, y = context["shared"], batch["y"]
        given = self.in_training(parameters, batch), buffers, batch["x"]
        z, logits, buffers = features_and_logits(model, *given, training=True)
        distance = (z - shared["prototypes"][y]).square().mean(dim=-1) * shared["known"][y]
        return self.losses(logits, y) + self.alignment * distance, buffers

    @override
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        received, like = context["own"]["received"], context["shared"]["prototypes"]
        before = {"parameters": received, "buffers": context["shared"]["buffers"]}
        sums, squares, counts = self._sums(before, client, context)
        trained, _, _ = self._sums(local, client, context)
        moments = sums / max(client.size, 1)
        variance = squares / max(client.size, 1) - moments.square().sum()
        payload = {
            "delta": tree.subtract(local["parameters"], received),
            "buffers": local["buffers"],
            "means": (trained / counts.clamp(min=1).unsqueeze(-1)).to(like.dtype),
            "counts": counts,
            "moments": moments.to(like.dtype),
            "variance": (variance.clamp(min=0) / max(client.size, 1)).to(like.dtype),
        }
        return Update(payload, self.weight(client)), {}

    def _sums(self, local: Tree, client: Client, context: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """Sums of the features of each class, sum of all their squares, and counts."""
        like, model = context["shared"]["prototypes"], self.model(client.meta)
        sums, squares = torch.zeros_like(like, dtype=torch.float64), like.new_zeros(()).double()
        counts = torch.zeros_like(context["shared"]["known"])
        for index in chunks(client.size):
            batch = client.train.at(index)
            labels = one_hot(batch["y"], client.meta.num_classes)
            with torch.no_grad():
                z = self.features(model, local, batch, context).double()
            sums, counts = sums + labels.T.double() @ z, counts + labels.sum(dim=0)
            squares = squares + z.square().sum()
        return sums, squares, counts

    @override
    def template(self, message: Tree) -> Tree:
        prototypes = message["prototypes"]
        return {
            "delta": message["parameters"],
            "buffers": message["buffers"],
            "means": prototypes,
            "counts": message["known"],
            "moments": prototypes,
            "variance": prototypes.new_zeros(()),
        }

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        fault = find_outside(payload, "counts", 0, MOST_WEIGHT)
        fault = fault or find_outside(payload, "variance", 0, float("inf"))
        if not fault and not payload["counts"].any():
            fault = "it counts no examples, so that its head has no variance"
        return fault or super().find_fault(message, payload, norm)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        sent = [total.payload[str(i)] for i in total.clients]
        counts = torch.stack([one["counts"] for one in sent]).double()
        mean = Mean().aggregate((i, _of_body(x)) for i, x in zip(total.clients, sent, strict=True))
        parameters, optimizer = self.server_optimizer.step(
            server_state["parameters"], mean.payload["delta"], server_state["optimizer"]
        )
        of_class = counts.sum(dim=0)
        shares = (counts / of_class.clamp(min=1)).unsqueeze(-1)
        means = (torch.stack([one["means"] for one in sent]) * shares).sum(dim=0)
        old, found = server_state["prototypes"], of_class > 0
        return {
            **server_state,
            "parameters": parameters,
            "buffers": mean.payload["buffers"],
            "optimizer": optimizer,
            "heads": _combined(server_state["heads"], total),
            "prototypes": torch.where(found[:, None], means.to(old), old),
            "known": torch.where(found, 1, server_state["known"]),
        }


def _of_body(payload: Tree) -> Update:
    """Update of the body and the buffers, weighted by the number of examples."""
    delta = {n: x for n, x in payload["delta"].items() if not n.startswith(_HEAD)}
    part = {"delta": delta, "buffers": payload["buffers"]}
    return Update(part, float(payload["counts"].sum()))


def _combined(heads: Params, total: AggregatedUpdate) -> Params:
    """Heads of all clients, those of a cohort as combinations of the trained heads of all of it."""
    ids = list(total.clients)
    sent = [total.payload[str(i)] for i in ids]
    moments = torch.stack([one["moments"] for one in sent]).double().flatten(1).cpu()
    variances = torch.stack([one["variance"] for one in sent]).double().cpu()
    trained = {
        n: torch.stack([x[i] + one["delta"][n] for i, one in zip(ids, sent, strict=True)])
        for n, x in heads.items()
    }
    combined = tree.clone(heads)
    for row, client_id in enumerate(ids):
        gaps = moments - moments[row]
        form = variances.diag() + gaps @ gaps.T
        first = torch.zeros_like(variances)
        first[row] = 1
        weights, _ = min_norm_point(form, first)
        for name, x in trained.items():
            mean = torch.tensordot(weights.to(x.device), x.double(), dims=1)
            combined[name][client_id] = mean.to(x)
    return combined
