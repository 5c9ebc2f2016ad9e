"""Generator of missing neighbours: its settings, its network and the local part of its loss."""

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.types import Meta, Params
from fedbolic.data import Graph
from fedbolic.nn.network.model import Model
from flatland.graphs.blocks import GraphBlock, graph_block
from flatland.graphs.model import GCN, Flat, FlatHead, widths_of
from flatland.rivals.mending import ImpairedGraph, count_loss, feature_loss, mend, neighbours_of

LAYER = "features."
"""Prefix of the parameters of the feature layer, which other clients receive."""

CLASSIFIER = "classifier."
"""Prefix of the parameters of the classifier with which a generator is trained."""


@dataclass(frozen=True)
class NeighbourGenerator:
    r"""Generator of the number and the features of a node's missing neighbours, and its training.

    .. math:: \tilde n_v = \mathrm{relu}(z_v a + a_0), \qquad
        \tilde x_v^p = \tanh\bigl((z_v + \epsilon) W^p + b^p\bigr), \quad p = 1, \dots, P

    with the embedding z of a graph convolutional network and standard normal noise. The first
    ``round(n)`` vectors, at most P, are the generated neighbours of v.

    Args:
        width: Width of the embedding, at least 1.
        most: Largest number P of generated neighbours of a node, at least 1.
        rounds: Number of training rounds before the first round of the run, at least 0.
        epochs: Local steps of each training round, at least 1.
        lr: Step size, above 0.
        hidden_share: Share of the nodes that a client hides, in [0, 1).
        count_weight: Weight :math:`\lambda_d` of the numbers in the loss, at least 0.
        feature_weight: Weight :math:`\lambda_f` of the features, at least 0.
        class_weight: Weight :math:`\lambda_c` of the classifier on the mended graph, at least 0.
        cross_weight: Weight :math:`\alpha` of the features of other clients, at least 0; with 0
            each generator is trained by itself, and nothing is sent.
        num_codes: Number of noisy embeddings that a client sends, at least 1.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Zhang et al. (2021), arXiv:2106.13430.

    Example:
        >>> parameters, _ = NeighbourGenerator(4, most=2).model(Meta(3, (5,), 1)).init(0)
        >>> parameters["features.weight"].shape
        torch.Size([4, 10])
    """

    width: int = 32
    most: int = 5
    rounds: int = 20
    epochs: int = 5
    lr: float = 0.01
    hidden_share: float = 0.3
    count_weight: float = 1.0
    feature_weight: float = 1.0
    class_weight: float = 1.0
    cross_weight: float = 1.0
    num_codes: int = 32

    def __post_init__(self) -> None:
        check.at_least(1, width=self.width, most=self.most, epochs=self.epochs)
        check.at_least(1, num_codes=self.num_codes)
        check.at_least(0, rounds=self.rounds)
        check.positive(lr=self.lr)
        check.rate(below_one=True, hidden_share=self.hidden_share)
        check.not_negative(
            count_weight=self.count_weight,
            feature_weight=self.feature_weight,
            class_weight=self.class_weight,
            cross_weight=self.cross_weight,
        )

    def model(self, meta: Meta) -> Model:
        """Network from a block of graphs to embeddings and numbers of missing neighbours."""
        return _generator(self, meta)

    def begin(self, network: GCN, meta: Meta, seed: int, like: Tensor) -> Params:
        """Initial parameters of a generator and of its classifier, equal at all clients.

        Args:
            network: Settings of the classifier; its dropout is not used.
            meta: Facts about the federation.
            seed: Seed of the parameters.
            like: Tensor of the device and dtype to work in.
        """
        parameters, _ = self.model(meta).init(seed)
        of_classifier, _ = _classifier(network, meta).init(seed)
        parameters |= {CLASSIFIER + name: value for name, value in of_classifier.items()}
        return tree.to(parameters, like.device, like.dtype)

    def embed(
        self, parameters: Params, graph: Graph, meta: Meta
    ) -> tuple[Float[Tensor, "n width"], Float[Tensor, " n"]]:
        """Embeddings of the nodes of a graph, and the numbers of their missing neighbours."""
        own = {n: x for n, x in parameters.items() if not n.startswith(CLASSIFIER)}
        outputs, _ = self.model(meta)(own, {}, graph_block((graph,)))
        return outputs[0, :, :-1], outputs[0, :, -1]

    def features(
        self, layer: Params, codes: Float[Tensor, "n width"]
    ) -> Float[Tensor, "n most features"]:
        """Features of generated neighbours.

        Args:
            layer: ``weight`` and ``bias`` of a feature layer.
            codes: Noisy embeddings, one row for each node.
        """
        return (codes @ layer["weight"] + layer["bias"]).tanh().unflatten(1, (self.most, -1))

    def loss(
        self,
        parameters: Params,
        impaired: ImpairedGraph,
        noise: Float[Tensor, "n width"],
        network: GCN,
        meta: Meta,
    ) -> Float[Tensor, ""]:
        """Local part of the loss, which needs no other client.

        Args:
            parameters: Parameters of the generator and of its classifier.
            impaired: Client's graph without the hidden nodes.
            noise: Standard normal noise for the embedding of each visible node.
            network: Settings of the classifier; its dropout is not used.
            meta: Facts about the federation.
        """
        z, counts = self.embed(parameters, impaired.graph, meta)
        generated = self.features(tree.part(parameters, LAYER), z + noise)
        loss = self.count_weight * count_loss(counts, impaired.missing)
        loss = loss + self.feature_weight * feature_loss(generated, impaired)
        if not len(impaired.train):
            return loss
        whole = mend(impaired.graph, *neighbours_of(counts, generated))
        of_classifier = tree.part(parameters, CLASSIFIER)
        logits, _ = _classifier(network, meta)(of_classifier, {}, graph_block((whole,)))
        labels = impaired.graph.labels[impaired.train]
        return loss + self.class_weight * cross_entropy(logits[0, impaired.train], labels)


@functools.cache
def _generator(settings: NeighbourGenerator, meta: Meta) -> Model:
    return Model(lambda: GeneratorNetwork(settings, meta))


@functools.cache
def _classifier(network: GCN, meta: Meta) -> Model:
    plain = GCN(network.widths, 0.0, network.activation, network.neighbours)
    return Model(lambda: plain.build(meta))


class GeneratorNetwork(nn.Module):
    """Encoder, count layer and feature layer of a :class:`NeighbourGenerator`.

    Args:
        settings: Widths of the network.
        meta: Facts about the federation.
    """

    def __init__(self, settings: NeighbourGenerator, meta: Meta) -> None:
        super().__init__()
        sizes = widths_of(meta, (settings.width, settings.width))
        self.encoder = Flat(sizes, nn.Identity(), 0.0, "relu")
        self.count = FlatHead(settings.width, 1)
        self.features = FeatureLayer(settings.width, settings.most * sizes[0])

    @override
    def forward(self, block: GraphBlock) -> Float[Tensor, "clients n width_and_one"]:
        """Embeddings, and in the last column numbers of missing neighbours before rounding."""
        z = self.encoder(block)
        return torch.cat((z, self.count(z).relu()), -1)


class FeatureLayer(nn.Module):
    """Parameters of the generated features, which ``NeighbourGenerator.features`` applies.

    Args:
        width: Width of the embedding.
        num_outputs: Number of all features of a node's generated neighbours.
    """

    def __init__(self, width: int, num_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, num_outputs))
        self.bias = nn.Parameter(torch.zeros(num_outputs))
        nn.init.xavier_uniform_(self.weight)
