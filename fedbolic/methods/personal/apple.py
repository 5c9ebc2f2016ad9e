"""APPLE: at every client a learned combination of the core models of all clients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import one_hot
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.aggregator import Gather
from fedbolic.federated.aggregators.update import AggregatedUpdate
from fedbolic.federated.contract.classifier_method import ClassifierMethod
from fedbolic.federated.contract.sharing import own_model

RELATIONS = "relations"
"""Name of the coefficients, which are trained together with a client's core model."""


@dataclass(frozen=True)
class Apple(ClassifierMethod):
    r"""Core models of all clients, combined by coefficients that each client learns.

    .. math::
        w_k = \sum_j p_{kj} c_j, \quad
        \ell_k = \ell_{\mathrm{CE}}(w_k) + \tfrac{\lambda(r) \mu}{2} \|p_k - p^0\|^2, \quad
        \lambda(r) = \tfrac12 \Bigl(1 + \cos \frac{\pi r}{L}\Bigr)
        \text{ for } r < L, \text{ else } 0

    Client k trains its core model :math:`c_k` and its coefficients :math:`p_k`; the other core
    models stay as received. The coefficients start from the shares of the training examples,
    :math:`p^0_j = N_j / N`, which all clients learn. Round r counts from 0; L is ``decay`` times
    the number of rounds. The penalty has the paper's factor 1/2, which the authors' code omits. All
    core models start from the same values, whereas the authors' code draws them separately.

    The server sends the core models of all K clients to every client, K times the traffic of
    FedAvg, and averages nothing, so no secure sum can hide a client's core model. Buffers stay at
    the clients, which are scored with their combinations.

    Args:
        lr: Local step size of the core model, above 0.
        relations_lr: Local step size of the coefficients, above 0.
        mu: Weight of the penalty, at least 0.
        decay: Share of the rounds during which the penalty decays to 0, in [0, 1].

    Raises:
        ValueError: If a value is outside its range.

    References:
        Luo and Wu (2022), Algorithm 1, arXiv:2110.08394.

    Example:
        >>> Apple(rounds=20, mu=1.0).penalty_weight(round=2)  # L is 4 rounds
        0.5
    """

    relations_lr: float = 0.001
    mu: float = 0.001
    decay: float = 0.2

    weights = "uniform"
    models = "personal"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(relations_lr=self.relations_lr)
        check.not_negative(mu=self.mu)
        check.rate(decay=self.decay)

    aggregator = Gather()

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        seed = rng.at("model").number()
        parameters, _ = self.model(meta).init(seed)
        num_clients = meta.num_clients
        cores = {n: torch.stack([value] * num_clients) for n, value in parameters.items()}
        sizes = torch.ones(num_clients, dtype=torch.int64)
        return {"cores": cores, "sizes": sizes, "round": 0, "seed": seed}

    @override
    def admit(self, server_state: Tree, sizes: Sequence[int]) -> Tree:
        return {**server_state, "sizes": torch.tensor(sizes)}

    def penalty_weight(self, round: int) -> float:
        """Weight of the penalty in a round, which counts from 0: lambda(r) times mu."""
        length = int(self.decay * self.rounds)
        return self.mu * (1 + math.cos(math.pi * round / length)) / 2 if round < length else 0.0

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        buffers = own_model(self.model(client.meta), message, client_state, client).buffers
        cores = message["cores"]
        begin = {name: of_all[client.id] for name, of_all in cores.items()}
        sizes = message["sizes"].to(next(iter(cores.values())).dtype)
        prior = sizes / sizes.sum()
        local = {**begin, RELATIONS: client_state.get(RELATIONS, prior)}
        # as a tensor: a captured step would keep a number
        penalty = prior.new_full((), self.penalty_weight(message["round"]))
        shared = {"cores": cores, "prior": prior, "penalty": penalty}
        itself = one_hot(torch.tensor(client.id), len(prior)).to(prior)
        own = {"itself": itself, "core": begin}
        return self.local_state(local, buffers), {"shared": shared, "own": own}

    @override
    def network_parameters(self, parameters: Params, context: Tree) -> Params:
        """The client's combination of its own core model and the received ones of the others."""
        of_itself = parameters[RELATIONS] * context["own"]["itself"]
        of_others, own = parameters[RELATIONS] - of_itself, of_itself.sum()
        return {
            name: own * parameters[name] + torch.tensordot(of_others, cores, dims=1)
            for name, cores in context["shared"]["cores"].items()
        }

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        shared, relations = context["shared"], local["parameters"][RELATIONS]
        slope = gradients[RELATIONS] + shared["penalty"] * (relations - shared["prior"])
        scaled = slope * (self.relations_lr / self.lr)  # the step of the base multiplies by lr
        return super().step(local, {**gradients, RELATIONS: scaled}, context)

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        parameters = local["parameters"]
        delta = {name: parameters[name] - core for name, core in context["own"]["core"].items()}
        kept = {RELATIONS: parameters[RELATIONS], "buffers": local["buffers"]}
        return {"delta": delta}, kept

    @override
    def template(self, message: Tree) -> Tree:
        return {"delta": {name: of_all[0] for name, of_all in message["cores"].items()}}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        cores = tree.clone(server_state["cores"])
        for client_id in total.clients:
            for name, delta in total.payload[str(client_id)]["delta"].items():
                cores[name][client_id] += delta
        return {**server_state, "cores": cores, "round": server_state["round"] + 1}
