"""AdaFGL: federated averaging of graph convolutions, and a last round of four perceptrons."""

import torch
from torch.nn.functional import cross_entropy, elu

from flatland import AdaFgl, PersonalPropagation
from tests.conformance.graphs import (
    NET,
    SETTINGS,
    Learner,
    closed,
    gcn,
    normalised,
    odd_graphs,
    six_graphs,
    weights_of,
)
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG, average

NETWORK = PersonalPropagation((5,), 0.0, "elu", steps=2, alpha=0.6, threshold=0.995)
METHOD = AdaFgl(NET, propagation=NETWORK, personal_share=0.3, **SETTINGS)


def cosines(p):
    """Cosines of all pairs of rows, with zeros on the diagonal."""
    n = len(p)
    found = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            if i != j:
                found[i, j] = p[i] @ p[j] / (p[i] @ p[i] * (p[j] @ p[j])).sqrt()
    return found


def powers(method, graph, soft):
    """Powers of the smoothing of the completed graph, times the features."""
    eye = torch.eye(len(graph), dtype=torch.float64)
    alpha = method.propagation.alpha
    a = alpha * (closed(graph) - eye)
    a = a + (1 - alpha) * (cosines(soft) > method.propagation.threshold).double()
    step = normalised(a + eye)
    return [
        torch.linalg.matrix_power(step, k) @ graph.features
        for k in range(method.propagation.steps + 1)
    ]


def score(method, client):
    """Share of every second training node that labels of the others reach."""
    graph, (nodes, labels) = client.train.graph, (client.train.nodes, client.train.labels)
    alpha = method.propagation.alpha
    first = torch.full((len(graph), 3), 1 / 3, dtype=torch.float64)
    for node, label in zip(nodes.tolist()[::2], labels.tolist()[::2], strict=True):
        first[node] = torch.eye(3)[label]
    found = first
    for _ in range(10):
        found = alpha * normalised(closed(graph)) @ found + (1 - alpha) * first
        for node in nodes.tolist()[::2]:
            found[node] += first[node]
    asked = nodes.tolist()[1::2]
    right = [int(found[v].argmax()) == y for v, y in zip(asked, labels.tolist()[1::2], strict=True)]
    return sum(right) / len(right) if right else 0.5


def perceptron(p, name, x):
    count = len({n for n in p if n.startswith(f"{name}.") and n.endswith("space")})
    for layer in range(count):
        x = x @ p[f"{name}.layers.{layer}.space"] + p[f"{name}.layers.{layer}.bias"]
        x = x if layer == count - 1 else elu(x)
    return x


def messages(x):
    """Outputs with signed messages between all nodes."""
    s = cosines(x.softmax(1))
    mean, top = s.mean(), s.max()
    relation = torch.where(s > mean, (s - mean) / (top - mean).clamp(min=1e-9), -s / mean)
    relation = relation + torch.eye(len(x), dtype=torch.float64)
    near = (relation.clamp(min=0) @ x).softmax(1)
    far = ((-relation).clamp(min=0) @ x).softmax(1)
    return (near - far + x) / 2


def outputs(p, steps):
    known = torch.cat(steps, dim=1)
    signed = messages(perceptron(p, "signed", known))
    parts = perceptron(p, "features", steps[0]), perceptron(p, "smoothed", known), signed
    return [perceptron(p, "similar", known), *parts]


def predicted(p, steps, soft, h):
    similar, *others = outputs(p, steps)
    near = (similar.softmax(1) + soft) / 2
    return (h * near + (1 - h) * sum(x.softmax(1) for x in others) / 3).log()


class Personal(Learner):
    """A client in the second stage, which knows what the common model predicts."""

    def __init__(self, method, client, parameters, theta):
        super().__init__(method, client, parameters)
        graph = client.train.graph
        self.soft = gcn(graph, theta).softmax(1)
        self.steps, self.h = powers(method, graph, self.soft), score(method, client)

    def loss(self):
        train, parts = self.client.train, outputs(self.p, self.steps)
        entropies = sum(cross_entropy(x[train.nodes], train.labels) for x in parts)
        return entropies + (parts[0] - self.soft).square().mean()


def run(method, data, cohorts):
    theta = initial(method, data)
    learners = {client.id: Learner(method, client, theta) for client in data.clients}
    num_common = method.rounds - 1
    for cohort in cohorts[:num_common]:
        ends = [learners[i].train(theta) for i in cohort]
        theta = average(ends, weights_of(method, data, cohort))
    begun = method.init(data.meta, RNG.at("init"))
    stage = method.phase({**begun, "round": num_common})
    first, _ = stage.model(data.meta).init(begun["seed"])
    first = {n: x.double() for n, x in first.items()}
    personal = {client.id: Personal(method, client, first, theta) for client in data.clients}
    for cohort in cohorts[num_common:]:
        for i in cohort:
            personal[i].train({})
    last = set().union(*cohorts[num_common:])
    kept = {i: {"personal": {"parameters": personal[i].values()}} for i in last}
    models = {
        i: lambda graph, one=one: predicted(one.values(), one.steps, one.soft, one.h)
        for i, one in personal.items()
    }
    return End({"parameters": theta}, kept, models)


SOURCE = "Li et al. (2024), arXiv:2401.11750, and its authors' code"
LOOPS = {
    "AdaFGL": Loop(METHOD, SOURCE, run, six_graphs),
    "AdaFGL, odd graphs": Loop(METHOD, SOURCE, run, odd_graphs),
}
