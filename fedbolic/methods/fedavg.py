"""FedAvg: the simplest method, and the template for new ones.

One round of the paper's Algorithm 1: the server sends its parameters to a cohort, every client
trains them on its own data, and the server averages the results.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedbolic import check, tree
from fedbolic.data.client import HOLDOUT, Client
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.mean import Mean
from fedbolic.federated.gradient_method import GradientMethod, LocalTraining
from fedbolic.federated.sharing import Sharing, assemble, check_patterns, check_sharing, select_kind
from fedbolic.federated.update import AggregatedUpdate, Update
from fedbolic.nn.backbone import MLP, Backbone
from fedbolic.nn.classifier import classifier
from fedbolic.nn.model import Model
from fedbolic.optim import SGD, Optimizer
from fedbolic.rng import Rng
from fedbolic.types import Meta, Params, Tree


@dataclass(frozen=True)
class FedAvg(GradientMethod):
    r"""Federated averaging with optional proximal term, server momentum and personal parameters.

    .. math::
        \theta \leftarrow \theta + v, \quad v \leftarrow \beta v + \sum_k \frac{N_k}{N}
        (\theta_k - \theta), \quad \theta_k = \text{local steps on }
        f_k(\theta_k) + \tfrac{\mu}{2} \|\theta_k - \theta\|^2

    The ``sharing`` table gives other methods: ``{"*": personal}`` is local training,
    ``{"head.*": personal, "*": shared}`` FedPer, ``{"head.*": fixed, "*": shared}`` FedBABU.

    Args:
        backbone: Network from inputs to features; a linear head follows.
        rounds: Number of communication rounds, at least 1.
        local: Local epochs and batch size.
        lr: Local step size, above 0.
        optimizer: Local optimiser, reset every round.
        sharing: Kind of every parameter and buffer, ``shared``, ``personal`` or ``fixed``, by
            pattern of its name. The first match wins, and unused patterns are refused.
        proximal: Weight of FedProx's proximal term, mu, at least 0; 0 is FedAvg.
        momentum: Server momentum, beta, in [0, 1); 0 is FedAvg.
        weights: Weight of a client in the mean: its number of training examples (``size``) or 1
            (``uniform``).

    Raises:
        ValueError: If a value is outside its range.

    References:
        McMahan et al. (2017), Algorithm 1, arXiv:1602.05629; Li et al. (2020), Eq. (2),
        arXiv:1812.06127; Hsu et al. (2019), Sec. 4.3, arXiv:1909.06335.

    Example:
        >>> FedAvg(lr=0.05, proximal=0.01).rounds
        20
    """

    backbone: Backbone = MLP()
    rounds: int = 20
    local: LocalTraining = LocalTraining()
    lr: float = 0.1
    optimizer: Optimizer = SGD()
    sharing: Sharing = field(default_factory=lambda: {"*": "shared"})
    proximal: float = 0.0
    momentum: float = 0.0
    weights: Literal["size", "uniform"] = "size"

    def __post_init__(self) -> None:
        check.at_least(1, rounds=self.rounds)
        check.positive(lr=self.lr)
        check.not_negative(proximal=self.proximal)
        check.rate(momentum=self.momentum, below_one=True)
        check_sharing(self.sharing)

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
        shared = select_kind(parameters, self.sharing, "shared")
        shared_buffers = select_kind(buffers, self.sharing, "shared")
        check_patterns(self.sharing, parameters | buffers)
        return {
            "parameters": shared,
            "buffers": shared_buffers,
            "velocity": tree.zeros_like(shared) if self.momentum else {},
            "seed": seed,
        }

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        return {name: server_state[name] for name in ("parameters", "buffers", "seed")}

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        values = assemble(self.model(client.meta), self.sharing, message, client_state, client)
        local = {
            "parameters": values.trained,
            "buffers": values.buffers,
            "optimizer": self.optimizer.init(values.trained),
        }
        return local, {
            "shared": {"global_parameters": message["parameters"], "fixed": values.fixed}
        }

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        parameters = {**parameters, **context["shared"]["fixed"]}
        logits, buffers = model(parameters, buffers, batch["x"], training=True)
        return cross_entropy(logits, batch["y"], reduction="none"), buffers

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        if self.proximal:
            global_parameters = context["shared"]["global_parameters"]
            drift = {
                n: local["parameters"][n] - global_parameters[n]
                for n in global_parameters
                if n in gradients
            }
            gradients = {
                **gradients,
                **{n: gradients[n] + self.proximal * v for n, v in drift.items()},
            }
        parameters, optimizer = self.optimizer.step(
            local["parameters"], gradients, local["optimizer"], lr=self.lr, donate=True
        )
        return {**local, "parameters": parameters, "optimizer": optimizer}

    @override
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        global_parameters = context["shared"]["global_parameters"]
        payload = {
            "delta": tree.subtract_(
                {n: local["parameters"][n] for n in global_parameters}, global_parameters
            ),
            "buffers": select_kind(local["buffers"], self.sharing, "shared"),
        }
        personal = {
            "parameters": select_kind(local["parameters"], self.sharing, "personal"),
            "buffers": select_kind(local["buffers"], self.sharing, "personal"),
        }
        weight = float(client.size) if self.weights == "size" else 1.0
        return Update(payload, weight), personal if any(personal.values()) else {}

    @override
    def template(self, message: Tree) -> Tree:
        return {"delta": message["parameters"], "buffers": message["buffers"]}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        delta = total.payload["delta"]
        if self.momentum:
            delta = tree.add(tree.scale(server_state["velocity"], self.momentum), delta)
        return {
            **server_state,
            "parameters": tree.add(server_state["parameters"], delta),
            "buffers": total.payload["buffers"],
            "velocity": delta if self.momentum else {},
        }

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        parameters = {**local["parameters"], **context["shared"]["fixed"]}
        return model(parameters, local["buffers"], batch["x"])[0]

    @override
    def features(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        parameters = {**local["parameters"], **context["shared"]["fixed"]}
        return super().features(model, {**local, "parameters": parameters}, batch, context)

    @override
    def scored(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree] | None:
        if client.id == HOLDOUT and "personal" in self.sharing.values():
            return None  # there is no global model
        return self.start(message, client, client_state)

    @override
    def fine_tuning(self, epochs: int, lr: float | None) -> "FedAvg | None":
        if "shared" not in self.sharing.values():
            return None  # purely local training gains nothing from fine-tuning
        local = dataclasses.replace(self.local, epochs=epochs)
        return dataclasses.replace(self, local=local, lr=lr or self.lr)

    @property
    @override
    def ridge_head(self) -> "FedAvg | None":
        return None if "personal" in self.sharing.values() else self  # there is no global model
