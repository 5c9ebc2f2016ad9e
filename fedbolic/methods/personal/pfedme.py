"""pFedMe: personal models as proximal points of local models that are averaged."""

from dataclasses import dataclass

import torch
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.types import Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.contract.classifier_method import ClassifierMethod
from fedbolic.federated.contract.gradient_method import LocalTraining
from fedbolic.federated.contract.server_optimizer import ServerOptimizer, ServerSGD


@dataclass(frozen=True)
class PFedMe(ClassifierMethod):
    r"""Federated averaging of Moreau envelopes of the local losses.

    .. math::
        \tilde\theta \approx \arg\min_{\theta} f_k(\theta; B)
        + \tfrac{\lambda}{2} \|\theta - w_k\|^2, \quad
        w_k \leftarrow w_k - \eta \lambda (w_k - \tilde\theta), \quad
        w \leftarrow (1 - \beta) w + \tfrac{\beta}{|C|} \textstyle\sum_{k \in C} w_k

    For every batch B, ``local.repeats`` gradient steps approximate the personal model
    :math:`\tilde\theta`; then the local model :math:`w_k` takes one step towards it. Both start
    from w in each round. As in the authors' code, the steps on a batch continue from the personal
    model of the batch before.

    Clients are scored with the personal model of their last turn, the server's test set with w.
    Only the personal model sees examples, so its buffers are those that are averaged.

    Args:
        local: Local epochs and batch size; ``repeats`` is the paper's K.
        lr: Step size eta of the local model, above 0.
        personal_lr: Step size of the personal model, above 0.
        personal_proximal: Weight of the proximal term, the paper's lambda, above 0.
        server_lr: Server step size beta, above 0.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Dinh et al. (2020), Algorithm 1, arXiv:2006.08848.

    Example:
        >>> PFedMe().local.repeats
        5
    """

    local: LocalTraining = LocalTraining(repeats=5)
    personal_lr: float = 0.1
    personal_proximal: float = 1.0
    server_lr: float = 1.0

    weights = "uniform"
    counts_steps = True
    models = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(personal_lr=self.personal_lr, personal_proximal=self.personal_proximal)
        check.positive(server_lr=self.server_lr)

    @property
    @override
    def server_optimizer(self) -> ServerOptimizer:  # type: ignore[override]  # by a setting
        return ServerSGD(self.server_lr)

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        local, context = super().start(message, client, client_state)
        return {**local, "local_model": message["parameters"]}, context

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        steps = local["num_steps"] + 1
        ends = steps % self.local.repeats == 0  # the last step on a batch
        personal, model = {}, {}
        for name, w in local["local_model"].items():
            theta = local["parameters"][name]
            slope = gradients[name] + self.personal_proximal * (theta - w)
            theta = personal[name] = theta - self.personal_lr * slope
            nearer = w - self.lr * self.personal_proximal * (w - theta)
            model[name] = torch.where(ends, nearer, w)
        return {**local, "parameters": personal, "local_model": model, "num_steps": steps}

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        personal = {kind: tree.clone(local[kind]) for kind in ("parameters", "buffers")}
        model = {**local, "parameters": local["local_model"]}
        payload, _ = super().outcome(model, context)
        return payload, {"personal": personal}

    @override
    def scored(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        local, context = self.start(message, client, client_state)
        return {**local, **client_state.get("personal", {})}, context
