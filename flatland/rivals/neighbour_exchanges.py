"""Exchanges of FedSage+ before its first round: local training of generators, and gradients."""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Params, Tree
from fedbolic.data import Client, Graph, GraphSplit
from fedbolic.federated.aggregators.aggregator import Gather, Sum
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update
from fedbolic.federated.contract.method import Phase
from fedbolic.federated.contract.traits import Traits
from fedbolic.optim import SGD, Adam
from flatland.graphs.model import GCN
from flatland.rivals.mending import ImpairedGraph, impair, nearest_loss, neighbours_of
from flatland.rivals.neighbours import LAYER, NeighbourGenerator


@dataclass(frozen=True)
class NeighbourExchange(Phase):
    """Base of both exchanges, in which all clients take part; no round passes.

    Args:
        generator: Settings of the generators.
        network: Classifier with which a generator is trained.
        optimizer: Local optimiser.
    """

    generator: NeighbourGenerator
    network: GCN
    optimizer: Adam | SGD

    traits = Traits(cohort="all", evaluates=False)


@dataclass(frozen=True)
class GeneratorTraining(NeighbourExchange):
    """Local steps of the generators, with the gradients of the other clients if there are any.

    After the last exchange a client generates the neighbours of all its nodes and forgets the
    generator.

    Args:
        is_last: Whether this is the last exchange before the first round.
    """

    is_last: bool

    aggregator = Gather()

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        own = {n: server_state[n] for n in ("seed", "stage")}
        return {**own, "gradients": server_state["gradients"].get(str(client_id), {})}

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        split = client.split_of(GraphSplit)
        stream = Rng(message["seed"]).at("hidden", client.id).generator()
        impaired = impair(split.graph, split.nodes, self.generator.hidden_share, stream)
        draws = rng.at("noise").generator()
        parameters, optimizer, loss = self._train(message, client, client_state, impaired, draws)
        metrics = {"train/generator_loss": float(loss)}
        with torch.no_grad():
            if self.is_last:
                z, counts = self.generator.embed(parameters, split.graph, client.meta)
                codes = z + _noise(z, draws)
                found = self.generator.features(tree.part(parameters, LAYER), codes)
                features, owner = neighbours_of(counts, found)
                kept = {"neighbours": {"features": features, "owner": owner.clone()}}
                metrics["train/generated"] = float(len(owner))
                return Update({}, float(client.size), metrics), kept
            kept = {"generator": {"parameters": parameters, "optimizer": optimizer}}
            if not self.generator.cross_weight:
                return Update({}, float(client.size), metrics), kept
            z, _ = self.generator.embed(parameters, impaired.graph, client.meta)
        rows = torch.randint(len(z), (self.generator.num_codes,), generator=draws).to(z.device)
        layer = {n: x.clone() for n, x in tree.part(parameters, LAYER).items()}
        payload = {**layer, "codes": z[rows] + _noise(z[rows], draws)}
        return Update(payload, float(client.size), metrics), kept

    def _train(
        self,
        message: Tree,
        client: Client,
        client_state: Tree,
        impaired: ImpairedGraph,
        draws: torch.Generator,
    ) -> tuple[Params, Tree, Tensor]:
        """Parameters and optimiser after the local steps, and the loss before the last of them."""
        like, meta = client.no_inputs, client.meta
        known = client_state.get("generator", {})
        parameters = known.get("parameters") or self.generator.begin(
            self.network, meta, message["seed"], like
        )
        parameters = tree.clone(parameters)
        optimizer = tree.clone(known.get("optimizer") or self.optimizer.init(parameters))
        loss = like.new_zeros(())
        for epoch in range(self.generator.epochs):
            trained = {n: x.detach().requires_grad_() for n, x in parameters.items()}
            noise = _noise(like.new_zeros(len(impaired.graph), self.generator.width), draws)
            loss = self.generator.loss(trained, impaired, noise, self.network, meta)
            found = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True)
            gradients = dict(zip(trained, found, strict=True))
            if epoch == 0:  # the others' gradients are at these parameters
                for name, gradient in message["gradients"].items():
                    gradients[LAYER + name] = gradients[LAYER + name] + gradient
            with torch.no_grad():
                parameters, optimizer = self.optimizer.step(
                    tree.map_tensors(Tensor.detach, trained),
                    gradients,
                    optimizer,
                    lr=self.generator.lr,
                )
        return parameters, optimizer, loss.detach()

    @override
    def template(self, message: Tree) -> Tree | None:
        return {} if self.is_last or not self.generator.cross_weight else None

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        layers = {i: layer for i, layer in total.payload.items() if layer}
        stage = server_state["stage"] + 1
        return {**server_state, "stage": stage, "generators": layers, "gradients": {}}


@dataclass(frozen=True)
class CrossGradients(NeighbourExchange):
    """Gradients of the generators of all others with respect to a client's own features.

    A client answers with one gradient for each feature layer that it received, and with zeros for
    its own, so that all payloads have one form and the server only sums them.
    """

    aggregator = Sum()

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        own = {n: server_state[n] for n in ("seed", "stage")}
        return {**own, "generators": server_state["generators"]}

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        graph = client.split_of(GraphSplit).graph
        gradients = {
            i: _zeros(layer)
            if int(i) == client.id
            else layer_gradients(self.generator, layer, layer["codes"], graph)
            for i, layer in message["generators"].items()
        }
        return Update({"gradients": gradients}, float(client.size)), client_state

    @override
    def template(self, message: Tree) -> Tree:
        return {"gradients": {i: _zeros(of) for i, of in message["generators"].items()}}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        stage = server_state["stage"] + 1
        gradients = total.payload["gradients"]
        return {**server_state, "stage": stage, "generators": {}, "gradients": gradients}


def layer_gradients(
    generator: NeighbourGenerator, layer: Params, codes: Tensor, graph: Graph
) -> Params:
    r"""Gradient of :math:`\alpha` times ``nearest_loss`` for another client's feature layer.

    Args:
        generator: Settings of the generators.
        layer: ``weight`` and ``bias`` of the other client.
        codes: Noisy embeddings of some of its nodes.
        graph: Graph of this client.
    """
    trained = {n: layer[n].detach().requires_grad_() for n in ("weight", "bias")}
    loss = generator.cross_weight * nearest_loss(generator.features(trained, codes), graph)
    found = torch.autograd.grad(generator.feature_weight * loss, list(trained.values()))
    return dict(zip(trained, found, strict=True))


def _zeros(layer: Params) -> Params:
    return {name: torch.zeros_like(layer[name]) for name in ("weight", "bias")}


def _noise(z: Tensor, draws: torch.Generator) -> Tensor:
    """Standard normal noise of the shape of ``z``, the same on all devices."""
    return torch.randn(z.shape, generator=draws).to(z)
