"""FedSage+: generators of missing neighbours, then federated averaging on mended graphs."""

from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy, smooth_l1_loss

from fedbolic.core.rng import Rng
from flatland import FedSagePlus, NeighbourGenerator
from tests.conformance.graphs import (
    NET,
    SETTINGS,
    Learner,
    closed,
    convolutions,
    gcn,
    normalised,
    weights_of,
)
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG, average
from tests.flatland.cases import complete, federation, path, star

GENERATOR = NeighbourGenerator(
    8,
    most=2,
    rounds=2,
    epochs=4,
    lr=0.1,
    hidden_share=0.4,
    count_weight=2.0,
    feature_weight=0.5,
    class_weight=0.7,
    cross_weight=0.6,
    num_codes=5,
)
METHOD = FedSagePlus(NET, generator=GENERATOR, **SETTINGS)


def mended(a, x, owner, features):
    """Dense ``A + I`` and features with new nodes, each joined to its owner."""
    n = len(a)
    whole = torch.eye(n + len(owner), dtype=torch.float64)
    whole[:n, :n] = a
    for new, v in enumerate(owner):
        whole[v, n + new] = whole[n + new, v] = 1
    return whole, torch.cat((x, features))


def classifier(a, x, p):
    h = convolutions(normalised(a), x @ p["body.0.space"], p)
    return h @ p["head.space"] + p["head.bias"]


def on_mended(owner, features):
    """Logits of a graph's nodes, with generated neighbours."""

    def logits(graph, p):
        return classifier(*mended(closed(graph), graph.features, owner, features), p)[: len(graph)]

    return logits


def part(p, prefix):
    return {n.removeprefix(prefix): x for n, x in p.items() if n.startswith(prefix)}


def embedded(a, x, p):
    """Embeddings of nodes and the numbers of their missing neighbours."""
    of_encoder = part(p, "encoder.")
    z = convolutions(normalised(a), x @ of_encoder["body.0.space"], of_encoder, torch.relu)
    return z, (z @ p["count.space"] + p["count.bias"]).relu().squeeze(1)


def vectors(p, codes):
    """Features of all vectors of each node."""
    flat = torch.tanh(codes @ p["features.weight"] + p["features.bias"])
    return flat.reshape(len(codes), GENERATOR.most, -1)


def taken(counts, generated):
    """Owners and features of the generated neighbours."""
    chosen = [
        (v, p) for v, n in enumerate(counts.tolist()) for p in range(min(round(n), GENERATOR.most))
    ]
    rows = [generated[v, p] for v, p in chosen]
    none = generated.new_zeros(0, generated.shape[2])
    return [v for v, _ in chosen], torch.stack(rows) if rows else none


@dataclass
class Impaired:
    """A graph without its hidden nodes."""

    a: torch.Tensor
    x: torch.Tensor
    hidden_neighbours: list[list[torch.Tensor]]
    train: list[int]
    labels: torch.Tensor


def impair(client, draws):
    graph, n = client.train.graph, len(client.train.graph)
    order = torch.randperm(n, generator=draws).tolist()
    num_hidden = min(round(GENERATOR.hidden_share * n), n - 1)
    hidden, visible = order[:num_hidden], sorted(order[num_hidden:])
    a, trained = closed(graph), client.train.nodes.tolist()
    return Impaired(
        a[visible][:, visible],
        graph.features[visible],
        [[graph.features[u] for u in hidden if a[v, u]] for v in visible],
        [place for place, v in enumerate(visible) if v in trained],
        graph.labels[visible],
    )


def nearest(vector, rows):
    return min((vector - row).square().sum() for row in rows)


def local_loss(p, graph, noise):
    """Numbers, features and classes of a client's own visible nodes."""
    z, counts = embedded(graph.a, graph.x, p)
    generated, n = vectors(p, z + noise), len(graph.x)
    missing = torch.tensor([len(found) for found in graph.hidden_neighbours]).double()
    loss = GENERATOR.count_weight * smooth_l1_loss(counts, missing)
    for v, found in enumerate(graph.hidden_neighbours):
        for vector in generated[v, : len(found)]:
            loss = loss + GENERATOR.feature_weight / n * nearest(vector, found)
    if graph.train:
        whole = mended(graph.a, graph.x, *taken(counts, generated))
        logits = classifier(*whole, part(p, "classifier."))[graph.train]
        loss = loss + GENERATOR.class_weight * cross_entropy(logits, graph.labels[graph.train])
    return loss


class Generator:
    """A client's generator of neighbours."""

    def __init__(self, method, client, seed):
        self.client, self.codes, adam = client, None, method.optimizer
        like = torch.zeros(0, dtype=torch.float64)
        first = GENERATOR.begin(method.network, client.meta, seed, like)
        self.p = {n: x.clone().requires_grad_() for n, x in first.items()}
        self.graph = impair(client, Rng(seed).at("hidden", client.id).generator())
        self.optimizer = torch.optim.Adam(
            self.p.values(), GENERATOR.lr, (adam.beta1, adam.beta2), adam.eps
        )

    def train(self, others, draws):
        """Local steps; the first is also on the distances to the nodes of the others."""
        for epoch in range(GENERATOR.epochs):
            self.optimizer.zero_grad()
            noise = torch.randn(len(self.graph.x), GENERATOR.width, generator=draws).double()
            loss = local_loss(self.p, self.graph, noise)
            if epoch == 0 and self.codes is not None:
                loss = loss + self.cross_loss(others)
            loss.backward()
            for x in self.p.values():  # Adam's moments decay where there is no gradient, too
                x.grad = torch.zeros_like(x) if x.grad is None else x.grad
            self.optimizer.step()

    def cross_loss(self, others):
        weight = GENERATOR.feature_weight * GENERATOR.cross_weight / len(self.codes)
        rows = vectors(self.p, self.codes).flatten(0, 1)
        return weight * sum(nearest(row, x) for x in others for row in rows)

    @torch.no_grad()
    def send(self, draws):
        """Noisy embeddings of random nodes."""
        z, _ = embedded(self.graph.a, self.graph.x, self.p)
        rows = torch.randint(len(z), (GENERATOR.num_codes,), generator=draws)
        noise = torch.randn(GENERATOR.num_codes, GENERATOR.width, generator=draws).double()
        self.codes = z[rows] + noise

    @torch.no_grad()
    def generate(self, draws):
        """Neighbours of all nodes of the whole graph."""
        graph = self.client.train.graph
        z, counts = embedded(closed(graph), graph.features, self.p)
        noise = torch.randn(z.shape, generator=draws).double()
        return taken(counts, vectors(self.p, z + noise))


def generated(method, data, seed):
    """Neighbours of every client after the rounds of the generators, in which all take part."""
    generators = [Generator(method, client, seed) for client in data.clients]
    for r in range(GENERATOR.rounds):
        found = {}
        for one in generators:
            i = one.client.id
            # an exchange for the gradients lies between two of local steps
            stream = RNG.at("round", 1, "exchange", 2 * r, "client", i)
            draws = stream.at("noise").generator()
            one.train([c.train.graph.features for c in data.clients if c.id != i], draws)
            if r < GENERATOR.rounds - 1:
                one.send(draws)
            else:
                found[i] = one.generate(draws)
    return found


def run(method, data, cohorts):
    theta, seed = initial(method, data), method.init(data.meta, RNG.at("init"))["seed"]
    neighbours = generated(method, data, seed)
    learners = {
        client.id: Learner(method, client, theta, on_mended(*neighbours[client.id]))
        for client in data.clients
    }
    for cohort in cohorts:
        ends = [learners[i].train(theta) for i in cohort]
        theta = average(ends, weights_of(method, data, cohort))
    kept = {
        i: {"neighbours": {"features": features, "owner": torch.tensor(owner).long()}}
        for i, (owner, features) in neighbours.items()
    }
    models = {i: (lambda graph, one=one: one.logits(graph, theta)) for i, one in learners.items()}
    models[None] = lambda graph: gcn(graph, theta)
    return End({"parameters": theta}, kept, models)


def three_graphs():
    return federation([(path(8), 8), (star(6), 6), (complete(5), 5)])


LOOPS = {
    "FedSage+": Loop(
        METHOD, "Zhang et al. (2021), Algorithm 1 of the supplement", run, three_graphs
    )
}
