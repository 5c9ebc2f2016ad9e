"""SCAFFOLD: local steps corrected by control variates."""

import dataclasses
from dataclasses import dataclass

import torch
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.update import AggregatedUpdate
from fedbolic.federated.contract.classifier_method import ClassifierMethod
from fedbolic.federated.contract.server_optimizer import ServerOptimizer, ServerSGD
from fedbolic.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Scaffold(ClassifierMethod):
    r"""Federated averaging with control variates that correct client drift in local steps.

    .. math::
        \theta_k \leftarrow \theta_k - \eta (g_k - c_k + c), \quad
        c_k^+ = c_k - c + \frac{\theta - \theta_k}{S \eta}, \quad
        \theta \leftarrow \theta + \frac{\eta_g}{|C|} \sum_{k \in C} (\theta_k - \theta), \quad
        c \leftarrow c + \frac{1}{K} \sum_{k \in C} (c_k^+ - c_k)

    with S local steps, a cohort C out of K clients, and uniform weights as in the paper.

    Args:
        lr: Local step size eta, above 0; local steps are plain gradient descent.
        server_lr: Server step size eta_g, above 0.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Karimireddy et al. (2020), Algorithm 1 with option II, arXiv:1910.06378.
    """

    server_lr: float = 1.0

    weights = "uniform"
    counts_steps = True
    unsent = "optimizer", "num_clients"
    payload_like = ClassifierMethod.payload_like | {"variate": "parameters"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(server_lr=self.server_lr)

    @property
    @override
    def server_optimizer(self) -> ServerOptimizer:  # type: ignore[override]  # by a setting
        return ServerSGD(self.server_lr)

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        server_state = super().init(meta, rng)
        return {
            **server_state,
            "variate": tree.zeros_like(server_state["parameters"]),
            "num_clients": meta.num_clients,
            "seed": rng.at("model").number(),  # for the method that fine-tunes
        }

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        local, context = super().start(message, client, client_state)
        own = client_state.get("own_variate") or tree.zeros_like(message["parameters"])
        shared = {**context["shared"], "variate": message["variate"]}
        return local, {"shared": shared, "own": {"variate": own}}

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        drift = tree.subtract(context["shared"]["variate"], context["own"]["variate"])
        return super().step(local, tree.add(gradients, drift), context)

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        payload, _ = super().outcome(local, context)
        own = context["own"]["variate"]
        # Without a local step there is no gradient estimate, so the variate is kept.
        num_steps, shared = local["num_steps"], context["shared"]["variate"]
        factor = -1 / (num_steps * self.lr)
        new = tree.map(
            lambda c, common, delta: torch.where(num_steps > 0, c - common + delta * factor, c),
            own,
            shared,
            payload["delta"],
        )
        return {**payload, "variate": tree.subtract(new, own)}, {"own_variate": new}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        share = len(total.clients) / server_state["num_clients"]
        moved = tree.scale(total.payload["variate"], share)
        variate = tree.add(server_state["variate"], moved)
        return {**super().server_update(server_state, total), "variate": variate}

    @override
    def fine_tuning(self, epochs: int, lr: float | None) -> FedAvg:
        """FedAvg's local training, because the variates steer towards the global model."""
        local = dataclasses.replace(self.local, epochs=epochs)
        return FedAvg(self.backbone, local=local, lr=lr or self.lr)
