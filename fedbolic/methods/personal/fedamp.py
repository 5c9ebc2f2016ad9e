"""FedAMP: every client's model is drawn to those that are near it already."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.aggregator import Gather
from fedbolic.federated.aggregators.update import AggregatedUpdate
from fedbolic.federated.contract.classifier_method import ClassifierMethod, with_proximal_term
from fedbolic.federated.contract.sharing import own_model
from fedbolic.optim import SGD, Optimizer


@dataclass(frozen=True)
class FedAMP(ClassifierMethod):
    r"""Attentive message passing: one model per client, drawn to a mean of similar models.

    .. math::
        u_k = \Bigl(1 - \sum_{j \neq k} \xi_{kj}\Bigr) w_k + \sum_{j \neq k} \xi_{kj} w_j, \quad
        \xi_{kj} = \tfrac{\alpha}{\sigma} e^{-\|w_k - w_j\|^2 / \sigma}, \quad
        w_k \leftarrow \arg\min_w f_k(w) + \tfrac{\lambda}{2 \alpha} \|w - u_k\|^2

    The server keeps the models :math:`w_k` of all K clients and sends :math:`u_k`; the client takes
    gradient steps from its own model and sends the difference to :math:`u_k`, so that the server
    knows the model again after a turn that was lost or rounded. A client that is absent keeps the
    model of its last turn. With an alpha above sigma / (K - 1) a weight could be below 0, so it is
    refused. The server needs every single model, so no secure sum can hide one. Buffers stay at the
    clients.

    Args:
        optimizer: Local optimiser, reset every round.
        alpha: Step size of the server towards similar models, above 0.
        sigma: Squared distance at which the attraction has fallen by a factor e, above 0.
        coupling: Weight lambda of the distance to the mean, at least 0; 0 is local training.

    Raises:
        ValueError: If a value is outside its range, alpha for the number of clients too.

    References:
        Huang et al. (2021), Algorithm 1 and Eqs. (3) to (6), arXiv:2007.03797.

    Example:
        >>> FedAMP(sigma=10.0).aggregator
        Gather()
    """

    optimizer: Optimizer = SGD()  # type: ignore[override]  # a constant of the base
    alpha: float = 0.1
    sigma: float = 1.0
    coupling: float = 0.1

    weights = "uniform"
    models = "personal"
    payload_like: ClassVar = {"delta": "mean"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(alpha=self.alpha, sigma=self.sigma)
        check.not_negative(coupling=self.coupling)

    aggregator = Gather()

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        most = self.sigma * (1 + 1e-12)  # 7 * 0.1 is above 0.7 by rounding
        if self.alpha * (meta.num_clients - 1) > most:
            raise ValueError(
                f"alpha must be at most sigma / (clients - 1), here {self.sigma} / "
                f"{meta.num_clients - 1}, got {self.alpha}: a client's own model would have a "
                "negative weight"
            )
        seed = rng.at("model").number()
        parameters, _ = self.model(meta).init(seed)
        models = {n: torch.stack([value] * meta.num_clients) for n, value in parameters.items()}
        return {"models": models, "seed": seed}

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        models = server_state["models"]
        gaps = [(x - x[client_id]).double().flatten(1).square().sum(1) for x in models.values()]
        weights = self.alpha / self.sigma * torch.exp(-torch.stack(gaps).sum(0) / self.sigma)
        weights[client_id] += 1 - weights.sum()
        mean = {n: torch.tensordot(weights, x.double(), dims=1).to(x) for n, x in models.items()}
        return {"mean": mean, "seed": server_state["seed"]}

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        values = own_model(self.model(client.meta), message, client_state, client)
        local = self.local_state(values.trained, values.buffers)
        return local, {"shared": {"fixed": {}}, "own": {"mean": message["mean"]}}

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        goals, strength = context["own"]["mean"], self.coupling / self.alpha
        pulled = with_proximal_term(gradients, local["parameters"], goals, strength)
        return super().step(local, pulled, context)

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        delta = tree.subtract(local["parameters"], context["own"]["mean"])
        return {"delta": delta}, {kind: local[kind] for kind in ("parameters", "buffers")}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        models = tree.clone(server_state["models"])
        for client_id in total.clients:
            mean = self.broadcast(server_state, client_id)["mean"]
            for name, delta in total.payload[str(client_id)]["delta"].items():
                models[name][client_id] = mean[name] + delta
        return {**server_state, "models": models}
