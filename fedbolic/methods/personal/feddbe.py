"""FedDBE: a personal bias of the features, and a common mean that they approach without it."""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.update import AggregatedUpdate
from fedbolic.federated.contract.classifier_method import ClassifierMethod, shared_context
from fedbolic.nn.network.model import Model
from fedbolic.optim import SGD, Optimizer

BIAS, RUNNING = "bias", "running_mean"
"""Names of the personal bias among the parameters, and of the mean feature among the buffers."""


@dataclass(frozen=True)
class FedDBE(ClassifierMethod):
    r"""Federated averaging with the domain bias eliminator: each client keeps its mean feature.

    .. math::
        \ell = \ell_{\mathrm{CE}}\bigl(h(z + b_k), y\bigr)
        + \tfrac{\kappa}{2 d} \|\bar z_k - \bar z\|^2, \qquad
        \bar z_k \leftarrow (1 - \mu) \bar z_k + \mu \operatorname{mean}_B z

    with d features z, the head h, and the personal bias :math:`b_k`, which starts at 0 and is
    trained with the model. The running mean :math:`\bar z_k` over batches B starts at 0 in every
    round. In the first round there is neither bias nor penalty; the running means of its cohort, in
    a mean by size, are the consensus :math:`\bar z` of all further rounds. Clients are scored with
    their bias, the server's test set without one.

    The initial training of the authors' code, which discards all of its results but the running
    means, is the first round here. The factor 1/2 is that of their code.

    Args:
        optimizer: Local optimiser, reset every round.
        penalty: Weight kappa of the distance to the consensus, at least 0.
        momentum: Weight mu of a batch in the running mean, above 0 and at most 1.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Zhang et al. (2023), Eqs. (4) to (6) and Algorithm 1, arXiv:2311.14975.

    Example:
        >>> FedDBE(penalty=5.0).models
        'both'
    """

    optimizer: Optimizer = SGD()  # type: ignore[override]  # a constant of the base
    penalty: float = 1.0
    momentum: float = 0.1

    models = "both"
    payload_like = ClassifierMethod.payload_like | {RUNNING: "consensus"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative(penalty=self.penalty)
        check.positive(momentum=self.momentum)
        check.rate(momentum=self.momentum)

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        consensus = torch.zeros(self.backbone.width_for(meta))
        return {**super().init(meta, rng), "consensus": consensus, "known": torch.zeros(())}

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        consensus, parameters = message["consensus"], message["parameters"]
        bias = client_state.get(BIAS, torch.zeros_like(consensus))
        buffers = {**message["buffers"], RUNNING: torch.zeros_like(consensus)}
        shared = {**shared_context(parameters)["shared"], "consensus": consensus}
        local = self.local_state({**parameters, BIAS: bias}, buffers)
        return local, {"shared": {**shared, "known": message["known"]}}

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        shared, mask = context["shared"], batch["mask"]
        values = parameters, buffers, batch["x"], shared["known"]
        z, logits, updated = _outputs(model, *values, training=True)
        mean = (z * mask.unsqueeze(-1)).sum(0) / mask.sum().clamp(min=1)
        running = (1 - self.momentum) * buffers[RUNNING] + self.momentum * mean
        distance = (running - shared["consensus"]).square().mean() / 2
        penalty = shared["known"] * self.penalty * distance
        return self.losses(logits, batch["y"]) + penalty, {**updated, RUNNING: running.detach()}

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        buffers = {n: value for n, value in local["buffers"].items() if n != RUNNING}
        payload, _ = super().outcome({**local, "buffers": buffers}, context)
        sent = local["buffers"][RUNNING] * (1 - context["shared"]["known"])
        return {**payload, RUNNING: sent}, {BIAS: local["parameters"][BIAS]}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        known = server_state["known"] > 0
        consensus = torch.where(known, server_state["consensus"], total.payload[RUNNING])
        state = super().server_update(server_state, total)
        return {**state, "consensus": consensus, "known": torch.ones_like(state["known"])}

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        """Logits with the personal bias, which is 0 on the server's test set."""
        values = local["parameters"], local["buffers"], batch["x"], context["shared"]["known"]
        return _outputs(model, *values, training=False)[1]


def _outputs(
    model: Model, parameters: Params, buffers: Params, x: Tensor, known: Tensor, *, training: bool
) -> tuple[Tensor, Tensor, Params]:
    """Features without the bias, logits with it, and the updated buffers of the body."""
    body, kept, head = (
        tree.part(of, name)
        for of, name in ((parameters, "body."), (buffers, "body."), (parameters, "head."))
    )
    z, updated = model.part("body")(body, kept, x, training=training)
    logits, _ = model.part("head")(head, {}, z + known * parameters[BIAS])
    return z, logits, {f"body.{name}": value for name, value in updated.items()}
