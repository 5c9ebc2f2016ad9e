"""FedTAD: federated averaging, and a server that distils its clients on dense pseudo graphs."""

import torch
from torch.nn.functional import cross_entropy

from fedbolic.core.rng import Rng
from flatland import Distillation, FedTad
from tests.conformance.graphs import (
    NET,
    SETTINGS,
    Learner,
    closed,
    convolutions,
    gcn,
    models_of,
    normalised,
    odd_graphs,
    six_graphs,
    weights_of,
)
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG, average

OF = Distillation(
    10, 3, (4,), 3, 2, 2, 2, generator_lr=0.02, model_lr=0.01, semantic=0.7, diversity=0.9
)
EPS = SETTINGS["optimizer"].eps
METHOD = FedTad(NET, walks=3, distillation=OF, **SETTINGS)


def reliability(method, split):
    """Sums by class of the mean similarities to neighbours."""
    graph = split.graph
    a = closed(graph) - torch.eye(len(graph), dtype=torch.float64)
    step = a / a.sum(dim=1, keepdim=True).clamp(min=1)
    walks = range(1, method.walks + 1)
    back = [torch.linalg.matrix_power(step, k).diagonal() for k in walks]
    x = torch.cat((graph.features, torch.stack(back, dim=1)), dim=1)
    sums = torch.zeros(3, dtype=torch.float64)
    for v, y in zip(split.nodes.tolist(), split.labels.tolist(), strict=True):
        near = a[v].nonzero()[:, 0].tolist()
        norms = [(x[v].norm() * x[j].norm()).clamp(min=1e-16) for j in near]
        cosines = [x[v] @ x[j] / norm for j, norm in zip(near, norms, strict=True)]
        sums[y] += (1 + sum(cosines)) / (1 + len(near))
    return sums


def generated(g, noise, y):
    x = torch.cat((g["classes.weight"][y], noise), dim=1)
    x = torch.tanh(x @ g["layers.0.weight"].T + g["layers.0.bias"])
    return x @ g["layers.1.weight"].T + g["layers.1.bias"]


def logits(x, p, neighbours):
    """Logits of the nodes of a pseudo graph."""
    n, directions = len(x), x.detach() / x.detach().norm(dim=1, keepdim=True)
    a = torch.eye(n, dtype=torch.float64)
    for i, order in enumerate((-directions @ directions.T).argsort(dim=1)[:, :neighbours]):
        a[i, order] = a[order, i] = 1.0
    h = convolutions(normalised(a), x @ p["body.0.space"], p)
    return h @ p["head.space"] + p["head.bias"]


def weighed(values, y, phi):
    """Sum over classes of a client's reliability times the mean over the class."""
    return sum(phi[c] * values[y == c].mean() for c in range(3))


def distil(theta, ends, phis, g, draws):
    """The common model and the generator after the steps of a round."""
    y = torch.arange(OF.nodes) * 3 // OF.nodes
    theta, g = ({n: x.clone().requires_grad_() for n, x in of.items()} for of in (theta, g))
    common = torch.optim.Adam(theta.values(), lr=OF.model_lr, eps=EPS)
    maker = torch.optim.Adam(g.values(), lr=OF.generator_lr, eps=EPS)
    for _ in range(OF.epochs):
        noise = torch.randn(OF.nodes, OF.noise, generator=draws, dtype=torch.float64)
        for _ in range(OF.generator_steps):
            x = generated(g, noise, y)
            loss = 0.0
            for end, phi in zip(ends, phis, strict=True):
                theirs = logits(x, end, OF.neighbours)
                away = (logits(x, theta, OF.neighbours) - theirs.detach()).abs().mean(dim=1)
                entropies = cross_entropy(theirs, y, reduction="none")
                apart = torch.cdist(noise, noise).square() / OF.noise
                apart = apart * (x[:, None] - x).abs().sum(dim=-1)
                loss = loss - weighed(away, y, phi) + OF.semantic * weighed(entropies, y, phi)
                loss = loss + OF.diversity * (-apart.mean() / x.shape[1]).exp()
            maker.zero_grad()
            loss.backward()
            maker.step()
        x = generated(g, noise, y).detach()
        for _ in range(OF.model_steps):
            loss = 0.0
            for end, phi in zip(ends, phis, strict=True):
                away = logits(x, theta, OF.neighbours) - logits(x, end, OF.neighbours)
                loss = loss + weighed(away.abs().mean(dim=1), y, phi)
            common.zero_grad()
            loss.backward()
            common.step()
    return ({n: x.detach() for n, x in of.items()} for of in (theta, g))


def run(method, data, cohorts):
    begun, theta = method.init(data.meta, RNG.at("init")), initial(method, data)
    g = {n: x.double() for n, x in begun["generator"].items()}
    learners = {client.id: Learner(method, client, theta) for client in data.clients}
    for r, cohort in enumerate(cohorts):
        ends = [learners[i].train(theta) for i in cohort]
        phis = torch.stack([reliability(method, data.clients[i].train) for i in cohort])
        phis = phis / phis.sum(dim=0)
        mean = average(ends, weights_of(method, data, cohort))
        draws = Rng(begun["seed"]).at("distillation", r).generator()
        theta, g = distil(mean, ends, phis, g, draws)
    models = models_of(learners, dict.fromkeys(learners, theta))
    models[None] = lambda graph: gcn(graph, theta)
    return End({"parameters": theta, "generator": g}, {}, models)


SOURCE = "Zhu et al. (2024), arXiv:2404.14061, and its authors' code"
LOOPS = {
    "FedTAD": Loop(METHOD, SOURCE, run, six_graphs),
    "FedTAD, odd graphs": Loop(METHOD, SOURCE, run, odd_graphs),
}
