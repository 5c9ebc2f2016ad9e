"""GPFL: embeddings, a conditional valve and personal heads, with every layer written out."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining
from fedbolic.methods import GPFL
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG, average, batches

METHOD = GPFL(
    MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2, magnitude_weight=0.3, decay=0.1
)
HEAD = "head.linear."


def affine(p, name, x):
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def condition_layer(p, name, q):
    """A linear layer, relu, and a layer norm, from their definitions."""
    h = affine(p, f"{name}.0", q).clamp(min=0)
    scaled = (h - h.mean()) / ((h - h.mean()).square().mean() + 1e-5).sqrt()
    return scaled * p[f"{name}.2.weight"] + p[f"{name}.2.bias"]


def valve(p, z, q):
    gamma, beta = condition_layer(p, "head.gamma", q), condition_layer(p, "head.beta", q)
    return torch.relu((gamma + 1) * z + beta)  # exactly 0 where both parts are


def personal_logits(p, x, q):
    return affine(p, "head.linear", valve(p, affine(p, "body.1", x).clamp(min=0), q))


def personal_condition(theta, client):
    labels = client.train.tensors["y"].tolist()
    e = theta["head.embeddings"]
    return sum(e[c] * labels.count(c) for c in range(3)) / len(labels)


def risk(method, p, theta, client, x, y):
    """The four terms of the loss; the decay is half the squared norm."""
    received = theta["head.embeddings"]
    generic = valve(p, affine(p, "body.1", x).clamp(min=0), received.mean(dim=0))
    e = p["head.embeddings"]
    lengths = generic.norm(dim=1, keepdim=True) * e.norm(dim=1)  # 0 if relu passes nothing
    cosines = (generic @ e.T) / lengths.clamp(min=1e-8)
    decayed = [p[n] for n in p if n.startswith("head.") and not n.startswith(HEAD)]
    return (
        cross_entropy(personal_logits(p, x, personal_condition(theta, client)), y)
        + cross_entropy(cosines, y)
        + method.magnitude_weight * (generic - received[y]).norm(dim=1).mean()
        + method.decay / 2 * sum(v.square().sum() for v in decayed)
    )


def run(method, data, cohorts):
    first = initial(method, data)
    theta = {n: x for n, x in first.items() if not n.startswith(HEAD)}
    heads = {c.id: {n: first[n] for n in first if n.startswith(HEAD)} for c in data.clients}
    for r, cohort in enumerate(cohorts, 1):
        ends: list[dict[str, Tensor]] = []
        for i in cohort:
            p = {**theta, **heads[i]}
            for x, y in batches(RNG, r, data.clients[i], epochs=2, batch_size=3):
                p = {n: v.detach().requires_grad_() for n, v in p.items()}
                risk(method, p, theta, data.clients[i], x, y).backward()
                p = {n: v.detach() - method.lr * v.grad for n, v in p.items()}
            heads[i] = {n: p[n] for n in heads[i]}
            ends.append({n: p[n] for n in theta})
        theta = average(ends, [len(data.clients[i].train) for i in cohort])
    conditions = {c.id: personal_condition(theta, c) for c in data.clients}
    models = {
        i: lambda x, i=i: personal_logits({**theta, **heads[i]}, x, conditions[i]) for i in heads
    }
    kept = {i: {"parameters": heads[i]} for i in set().union(*cohorts)}
    return End({"parameters": theta}, kept, models)


LOOPS = {"GPFL": Loop(METHOD, "Zhang et al. (2023), Algorithm 1, arXiv:2308.10279", run)}
