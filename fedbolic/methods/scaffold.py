"""SCAFFOLD: local steps corrected by control variates."""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedbolic import check, tree
from fedbolic.data.client import Client
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.mean import Mean
from fedbolic.federated.gradient_method import GradientMethod, LocalTraining
from fedbolic.federated.update import AggregatedUpdate, Update
from fedbolic.methods.fedavg import FedAvg
from fedbolic.nn.backbone import MLP, Backbone
from fedbolic.nn.classifier import classifier
from fedbolic.nn.model import Model
from fedbolic.optim import SGD
from fedbolic.rng import Rng
from fedbolic.types import Meta, Params, Tree


@dataclass(frozen=True)
class Scaffold(GradientMethod):
    r"""Federated averaging with control variates that correct client drift in local steps.

    .. math::
        \theta_k \leftarrow \theta_k - \eta (g_k - c_k + c), \quad
        c_k^+ = c_k - c + \frac{\theta - \theta_k}{S \eta}, \quad
        \theta \leftarrow \theta + \frac{\eta_g}{|C|} \sum_{k \in C} (\theta_k - \theta), \quad
        c \leftarrow c + \frac{1}{K} \sum_{k \in C} (c_k^+ - c_k)

    with S local steps, a cohort C out of K clients, and uniform weights as in the paper.

    Args:
        backbone: Network from inputs to features; a linear head follows.
        rounds: Number of communication rounds, at least 1.
        local: Local epochs and batch size.
        lr: Local step size eta, above 0; local steps are plain gradient descent.
        server_lr: Server step size eta_g, above 0.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Karimireddy et al. (2020), Algorithm 1 with option II, arXiv:1910.06378.
    """

    backbone: Backbone = MLP()
    rounds: int = 20
    local: LocalTraining = LocalTraining()
    lr: float = 0.1
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        check.at_least(1, rounds=self.rounds)
        check.positive(lr=self.lr, server_lr=self.server_lr)

    @property
    @override
    def aggregator(self) -> Aggregator:
        return Mean()

    @override
    def model(self, meta: Meta) -> Model:
        return classifier(self.backbone, meta)

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        seed = rng.at("model").number()
        parameters, buffers = self.model(meta).init(seed)
        return {
            "parameters": parameters,
            "buffers": buffers,
            "variate": tree.zeros_like(parameters),
            "num_clients": meta.num_clients,
            "seed": seed,
        }

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        return {name: server_state[name] for name in ("parameters", "buffers", "variate", "seed")}

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        parameters = message["parameters"]
        steps = torch.zeros((), dtype=torch.float64, device=client.no_inputs.device)
        local = {
            "parameters": parameters,
            "buffers": message["buffers"],
            "num_steps": steps,
        }
        own = client_state.get("own_variate") or tree.zeros_like(parameters)
        common = {"global_parameters": message["parameters"], "variate": message["variate"]}
        return local, {"shared": common, "own": {"variate": own}}

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        logits, buffers = model(parameters, buffers, batch["x"], training=True)
        return cross_entropy(logits, batch["y"], reduction="none"), buffers

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        drift = tree.subtract(context["shared"]["variate"], context["own"]["variate"])
        direction = tree.add(gradients, drift)
        parameters, _ = SGD().step(local["parameters"], direction, {}, lr=self.lr, donate=True)
        return {**local, "parameters": parameters, "num_steps": local["num_steps"] + 1}

    @override
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        own, shared = context["own"]["variate"], context["shared"]
        delta = tree.subtract_(local["parameters"], shared["global_parameters"])
        # Without a local step there is no gradient estimate, so the variate is kept.
        num_steps = float(local["num_steps"])
        new = own
        if num_steps:
            mean_gradient = tree.scale(delta, -1 / (num_steps * self.lr))
            new = tree.add(tree.subtract(own, shared["variate"]), mean_gradient)
        payload = {
            "delta": delta,
            "variate": tree.subtract(new, own),
            "buffers": local["buffers"],
        }
        return Update(payload, weight=1.0), {"own_variate": new}

    @override
    def template(self, message: Tree) -> Tree:
        parameters = message["parameters"]
        return {"delta": parameters, "variate": parameters, "buffers": message["buffers"]}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        delta = tree.scale(total.payload["delta"], self.server_lr)
        share = len(total.clients) / server_state["num_clients"]
        return {
            **server_state,
            "parameters": tree.add(server_state["parameters"], delta),
            "variate": tree.add(
                server_state["variate"], tree.scale(total.payload["variate"], share)
            ),
            "buffers": total.payload["buffers"],
        }

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        return model(local["parameters"], local["buffers"], batch["x"])[0]

    @override
    def fine_tuning(self, epochs: int, lr: float | None) -> FedAvg:
        """FedAvg's local training, because the variates steer towards the global model."""
        local = dataclasses.replace(self.local, epochs=epochs)
        return FedAvg(self.backbone, local=local, lr=lr or self.lr)
