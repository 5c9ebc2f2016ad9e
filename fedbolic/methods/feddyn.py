"""FedDyn: local losses with a dynamic regularizer that aligns their minima with the global one."""

from dataclasses import dataclass

from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.update import AggregatedUpdate
from fedbolic.federated.contract.classifier_method import ClassifierMethod


@dataclass(frozen=True)
class FedDyn(ClassifierMethod):
    r"""Federated averaging with a linear and a proximal term in every local loss.

    .. math::
        \theta_k = \arg\min f_k(\theta_k) - \langle g_k, \theta_k \rangle
        + \tfrac{\alpha}{2} \|\theta_k - \theta\|^2, \quad
        g_k \leftarrow g_k - \alpha (\theta_k - \theta)

    .. math::
        h \leftarrow h - \tfrac{\alpha}{K} \textstyle\sum_{k \in C} (\theta_k - \theta), \quad
        \theta \leftarrow \tfrac{1}{|C|} \sum_{k \in C} \theta_k - \tfrac{1}{\alpha} h

    with a cohort C out of K clients; the minimum is approximated by local gradient steps.

    Args:
        alpha: Weight of the regularizer, above 0.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Acar et al. (2021), Algorithm 1, arXiv:2111.04263.
    """

    alpha: float = 0.1

    weights = "uniform"
    unsent = "optimizer", "h", "num_clients"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(alpha=self.alpha)

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        server_state = super().init(meta, rng)
        h = tree.zeros_like(server_state["parameters"])
        return {**server_state, "h": h, "num_clients": meta.num_clients}

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        local, context = super().start(message, client, client_state)
        linear = client_state.get("linear") or tree.zeros_like(message["parameters"])
        return local, {**context, "own": {"linear": linear}}

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        drift = tree.subtract(local["parameters"], context["shared"]["global_parameters"])
        slope = tree.subtract(tree.scale(drift, self.alpha), context["own"]["linear"])
        return super().step(local, tree.add(gradients, slope), context)

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        payload, _ = super().outcome(local, context)
        moved = tree.scale(payload["delta"], self.alpha)
        return payload, {"linear": tree.subtract(context["own"]["linear"], moved)}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        share = len(total.clients) / server_state["num_clients"]
        moved = tree.scale(total.payload["delta"], self.alpha * share)
        h = tree.subtract(server_state["h"], moved)
        server_state = super().server_update(server_state, total)
        correction = tree.scale(h, 1 / self.alpha)
        parameters = tree.subtract(server_state["parameters"], correction)
        return {**server_state, "parameters": parameters, "h": h}
