"""FedCP: two heads share the features of every example, with every layer written out."""

import math

from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedCP
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG, average, batches

METHOD = FedCP(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2, discrepancy=3.0)


def features(p, x):
    return (x @ p["body.1.weight"].T + p["body.1.bias"]).clamp(min=0)


def logits(p, head, common, way, z):
    """Both heads, on the parts of the features that the policy gives to each."""
    h = (z * way) @ p["head.policy.0.weight"].T + p["head.policy.0.bias"]
    centred = h - h.mean(dim=1, keepdim=True)
    h = centred / (centred.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
    h = (h * p["head.policy.1.weight"] + p["head.policy.1.bias"]).clamp(min=0)
    ours = 1 / (1 + (h[:, 4:] - h[:, :4]).exp())
    common = ((1 - ours) * z) @ common["weight"].T + common["bias"]
    return (ours * z) @ head["weight"].T + head["bias"] + common


def discrepancy(x, y):
    """Mean over all pairs of the kernel within both samples less twice the one between them."""
    total = 0.0
    for a, b in ((x, x), (y, y), (x, y)):
        gaps = (a[:, None] - b[None]).square().sum(dim=2)
        kernel = sum((-gaps / (2 * s)).exp() for s in (10, 15, 20, 50))
        total = total + kernel.mean() * (-2 if b is y and a is x else 1)
    return total


def way_of(head):
    rows = sum(head["weight"])
    return rows / math.sqrt(float(rows @ rows))


def part(p, prefix):
    return {n.removeprefix(prefix): v for n, v in p.items() if n.startswith(prefix)}


def local_training(method, theta, head, client, round):
    """One turn: the trained body and policy, and the personal head."""
    p = {n: v for n, v in theta.items() if not n.startswith("head.linear.")}
    common, way = part(theta, "head.linear."), way_of(head)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        p, head = ({n: v.detach().requires_grad_() for n, v in of.items()} for of in (p, head))
        z = features(p, x)
        loss = cross_entropy(logits(p, head, common, way, z), y)
        (loss + method.discrepancy * discrepancy(z, features(theta, x))).backward()
        p, head = ({n: v.detach() - method.lr * v.grad for n, v in of.items()} for of in (p, head))
    means = {f"head.linear.{n}": (head[n] + common[n]) / 2 for n in head}
    return {**p, **means}, head


def run(method, data, cohorts):
    theta, heads = initial(method, data), {}
    for r, cohort in enumerate(cohorts, 1):
        ends, common = [], part(theta, "head.linear.")
        for i in cohort:
            end, heads[i] = local_training(method, theta, heads.get(i, common), data.clients[i], r)
            ends.append({n: end[n] for n in theta})
        theta = average(ends, [len(data.clients[i].train) for i in cohort])
    common = part(theta, "head.linear.")

    def model(i):
        head = heads.get(i, common)
        return lambda x: logits(theta, head, common, way_of(head), features(theta, x))

    models = {client.id: model(client.id) for client in data.clients}
    kept = {i: {"head": head} for i, head in heads.items()}
    return End({"parameters": theta}, kept, models)


LOOPS = {"FedCP": Loop(METHOD, "Zhang et al. (2023), Algorithm 1, arXiv:2307.01217", run)}
